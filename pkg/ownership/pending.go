package ownership

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodFilter decides which pending pods core sees. The pods may be shared with a cache: it must not change them.
type PodFilter interface {
	// Shown is those of all pending pods that core sees, in another slice.
	Shown(pending []corev1.Pod) []corev1.Pod
	// Hidden is the decision on one of them.
	Hidden(pending *corev1.Pod) bool
}

// FilterPending makes core see only some pending pods. Core's provisioner and its disruption both learn of them from one List, which
// nobody else makes. Call it before the manager starts.
func (s *Seam) FilterPending(f PodFilter) { s.pending = f }

// List reads the cache. A List of pending pods is filtered; it never fails but as the cache's own does.
func (c *guardedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	pods, ok := list.(*corev1.PodList)
	filter := c.seam.pending
	if !ok || filter == nil {
		return c.Client.List(ctx, list, opts...)
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if !allPending(options) {
		return c.Client.List(ctx, list, opts...)
	}
	// Copying is left until after the filter: most pods may be others'.
	if err := c.Client.List(ctx, pods, options, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	pods.Items = filter.Shown(pods.Items)
	if !ptr.Deref(options.UnsafeDisableDeepCopy, false) {
		for i := range pods.Items {
			pods.Items[i] = *pods.Items[i].DeepCopy()
		}
	}
	return nil
}

// allPending recognises core's List: all pods without a node, and no other condition.
func allPending(o *client.ListOptions) bool {
	return o.FieldSelector != nil && o.FieldSelector.String() == pendingPods &&
		(o.LabelSelector == nil || o.LabelSelector.Empty()) && o.Namespace == "" && o.Limit == 0 && o.Continue == ""
}

var pendingPods = fields.OneTermEqualSelector("spec.nodeName", "").String()
