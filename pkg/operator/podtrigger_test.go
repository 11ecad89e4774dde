package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type counted struct{ calls int }

func (c *counted) Reconcile(context.Context, *corev1.Pod) (reconcile.Result, error) {
	c.calls++
	return reconcile.Result{}, nil
}

// provisionable is a pod that the scheduler found no node for.
func provisionable(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name = name
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	return p
}

// A12: a pod that core is not shown does not wake its provisioner, which would find nothing, every ten seconds, for every such pod.
func TestHiddenPodsDoNotWakeTheProvisioner(t *testing.T) {
	core := &counted{}
	trigger := &podTrigger{trigger: core, hidden: func(p *corev1.Pod) bool { return p.Name == "theirs" }}
	bound := provisionable("theirs")
	bound.Spec.NodeName = "n"
	for _, tc := range []struct {
		name    string
		pod     *corev1.Pod
		calls   int
		recheck bool
	}{
		{"ours goes to core", provisionable("ours"), 1, false},
		{"theirs is looked at again", provisionable("theirs"), 0, true},
		{"one that has a node is not asked about", bound, 1, false},
	} {
		core.calls = 0
		result, err := trigger.Reconcile(t.Context(), tc.pod)
		if err != nil || core.calls != tc.calls || (result.RequeueAfter > 0) != tc.recheck {
			t.Errorf("%s: core called %d times, result %+v, error %v", tc.name, core.calls, result, err)
		}
	}
}
