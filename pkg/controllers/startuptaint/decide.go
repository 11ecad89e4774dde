package startuptaint

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// gated is a taint of a Node that a gate of its class decides about.
type gated struct {
	taint corev1.Taint
	gate  v1beta1.StartupTaintGate
}

// gatedTaints are a Node's taints that may be removed one day: those that are startup taints of its NodeClaim, by key, value and effect, and that
// a gate of the class names. A permanent taint of the same key is another taint (section 3 #35).
func gatedTaints(gates []v1beta1.StartupTaintGate, startup, node []corev1.Taint) []gated {
	var found []gated
	for _, taint := range node {
		gate := slices.IndexFunc(gates, func(g v1beta1.StartupTaintGate) bool { return g.TaintKey == taint.Key })
		if gate >= 0 && slices.ContainsFunc(startup, func(s corev1.Taint) bool { return same(s, taint) }) {
			found = append(found, gated{taint, gates[gate]})
		}
	}
	return found
}

// same compares what makes a taint, which is not when it was added.
func same(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

// without is taints less those that go.
func without(taints []corev1.Taint, going []gated) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(going, func(g gated) bool { return same(g.taint, t) })
	})
}

// conditionOpens tells whether a Node's conditions open a gate. One that is absent keeps it closed.
func conditionOpens(want v1beta1.NodeConditionIs, conditions []corev1.NodeCondition) bool {
	status := want.Status
	if status == "" {
		status = corev1.ConditionTrue
	}
	return slices.ContainsFunc(conditions, func(c corev1.NodeCondition) bool {
		return string(c.Type) == want.Type && c.Status == status
	})
}

// podsOpen tells whether enough of the pods that a gate selects are ready on the Node.
func podsOpen(want v1beta1.PodsReady, pods []corev1.Pod) bool {
	ready := int32(0)
	for index := range pods {
		if counts(&pods[index]) {
			ready++
		}
	}
	return ready >= max(want.MinReady, 1)
}

// counts tells whether a pod counts as ready: one that is ending will not be for long.
func counts(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
