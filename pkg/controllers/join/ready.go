package join

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// readiness measures how long claims take to a Node that is Ready. It remembers, by host, the claims that this process saw register, so that
// a Node that was Ready before, or becomes so again, is not measured.
type readiness struct {
	mu      sync.Mutex
	awaited map[string]types.UID
}

func (r *readiness) expect(host string, claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited == nil {
		r.awaited = map[string]types.UID{}
	}
	r.awaited[host] = claim
}

func (r *readiness) forget(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.awaited, host)
}

// observe looks at the Node of a host's claim. The kubelet's own time of the change counts: a reconcile may come later.
func (r *readiness) observe(host string, claim *v1beta1.ClaimReference, node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if awaited, found := r.awaited[host]; !found || awaited != claim.UID || claim.ClaimedAt == nil {
		return
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			delete(r.awaited, host)
			metrics.ClaimToReady.Observe(max(0, condition.LastTransitionTime.Sub(claim.ClaimedAt.Time).Seconds()))
		}
	}
}
