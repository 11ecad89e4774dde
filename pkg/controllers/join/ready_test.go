package join

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// Alert JoinSlow: a claim is measured once, to the moment from which on its Node was Ready, and only by the process that saw it register.
func TestTheTimeToAReadyNodeIsMeasuredOnce(t *testing.T) {
	measured := func() (uint64, float64) {
		var m dto.Metric
		if err := metrics.ClaimToReady.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum()
	}
	node := func(ready corev1.ConditionStatus, after time.Duration) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(start.Add(after))},
		}}}
	}
	claim := &v1beta1.ClaimReference{Name: "n", UID: "u", ClaimedAt: new(metav1.NewTime(start))}
	var r readiness
	count, sum := measured()
	want := func(what string, more uint64, seconds float64) {
		t.Helper()
		if c, s := measured(); c-count != more || s-sum != seconds {
			t.Errorf("%s: %d measurements of %gs, want %d of %gs", what, c-count, s-sum, more, seconds)
		}
	}
	r.observe("h", claim, node(corev1.ConditionTrue, time.Hour))
	want("a Node that registered before this process started", 0, 0)
	r.expect("h", "u")
	r.observe("h", claim, node(corev1.ConditionFalse, time.Minute))
	want("a Node that is not Ready", 0, 0)
	r.observe("h", &v1beta1.ClaimReference{Name: "m", UID: "v", ClaimedAt: claim.ClaimedAt}, node(corev1.ConditionTrue, time.Hour))
	want("the Node of another claim", 0, 0)
	r.observe("h", claim, node(corev1.ConditionTrue, 90*time.Second))
	want("it is Ready", 1, 90)
	r.observe("h", claim, node(corev1.ConditionTrue, time.Hour))
	want("it is Ready again", 1, 90)
}
