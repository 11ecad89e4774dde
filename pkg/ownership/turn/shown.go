package turn

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// pageSize of the one list of Nodes that a new turn costs.
const pageSize = 500

// Tainted tells whether a Node is marked as one that is about to be disrupted.
func Tainted(n *corev1.Node) bool {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].MatchTaint(&karpv1.DisruptedNoScheduleTaint) {
			return true
		}
	}
	return false
}

// shown tells whether core's state has every disruption taint that the API server has now. Nobody writes another one while the turn
// is held here, so once shown it stays so for the whole turn. Called with t.mu.
func (t *Turn) shown(ctx context.Context) (bool, error) {
	if ptr.Deref(t.settled, epoch{}) == *t.held {
		return true, nil
	}
	known := t.tainted()
	page := &corev1.NodeList{}
	for {
		if err := t.live.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return false, fault.New(fault.Cluster, "TurnUnknown", err, "listing Nodes for a new turn of disruption")
		}
		for i := range page.Items {
			if _, ok := known[page.Items[i].Name]; !ok && Tainted(&page.Items[i]) {
				return false, nil
			}
		}
		if page.Continue == "" {
			t.settled = t.held
			return true, nil
		}
	}
}
