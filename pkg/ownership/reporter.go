package ownership

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Reporter runs one of core's controllers that report on Nodes or Pods, so that it reports on this instance's only. All instances see
// all Nodes and Pods, and each would report them all. To the inner controller those of others do not exist, which also makes it
// forget what it once reported.
type Reporter struct {
	name        string
	object      client.Object
	inner       reconcile.Reconciler
	concurrency int
}

// NewReporter makes a Reporter. The name must be that of the inner controller, for logs and metrics; the inner controller must read through the manager's client.
func NewReporter(name string, object client.Object, inner reconcile.Reconciler, concurrency int) *Reporter {
	return &Reporter{name: name, object: object, inner: inner, concurrency: concurrency}
}

// Name of the inner controller.
func (r *Reporter) Name() string { return r.name }

// Register adds the controller to a manager, as core would.
func (r *Reporter) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(r.name).For(r.object).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.concurrency}).Complete(r)
}

// Reconcile lets the inner controller look at one object.
func (r *Reporter) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return r.inner.Reconcile(context.WithValue(ctx, ownOnly{}, true), request)
}

// ownOnly marks the context of a report.
type ownOnly struct{}

// reportable makes a Node or Pod that was read for a report, and is not this instance's, one that does not exist.
func (c *guardedClient) reportable(ctx context.Context, o client.Object) error {
	if ctx.Value(ownOnly{}) == nil {
		return nil
	}
	switch o := o.(type) {
	case *corev1.Node:
		if c.seam.id.judgeNode(c.seam.classes.Snapshot(), o) != ours {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, o.Name)
		}
	case *corev1.Pod:
		if !c.ownPod(ctx, o) {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, o.Name)
		}
	}
	return nil
}

// ownPod: on an own Node, or on none yet and not somebody else's affair.
func (c *guardedClient) ownPod(ctx context.Context, p *corev1.Pod) bool {
	if p.Spec.NodeName == "" {
		return c.seam.pending == nil || !c.seam.pending.Hidden(p)
	}
	node := &corev1.Node{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node); err != nil {
		return false // its Node is gone, or not known yet: then the pod's next event tells
	}
	return c.seam.id.judgeNode(c.seam.classes.Snapshot(), node) == ours
}
