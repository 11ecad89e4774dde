package profile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Section 2 #27: a kubelet that is given a label of a Kubernetes domain does not start.
func TestKubeletLabels(t *testing.T) {
	for key, allowed := range map[string]bool{
		"team":                                   true,
		"app.example/tier":                       true,
		"karpenter.sh/nodepool":                  true,
		"karpenter.sh/capacity-type":             true,
		"karpenter.dklesev.github.io/host-class": true,
		"node.kubernetes.io/instance-type":       true,
		"kubelet.kubernetes.io/x":                true,
		"custom.node.kubernetes.io/x":            true,
		"custom.kubelet.kubernetes.io/x":         true,
		"notkubernetes.io/x":                     true,
		"myk8s.io/x":                             true,
		"kubernetes.io/arch":                     false,
		"kubernetes.io/hostname":                 false,
		"topology.kubernetes.io/zone":            false,
		"node-role.kubernetes.io/worker":         false,
		"node-restriction.kubernetes.io/x":       false,
		"mynode.kubernetes.io/x":                 false,
		"k8s.io/x":                               false,
		"sub.k8s.io/x":                           false,
		"node.k8s.io/x":                          false,
		"node.kubernetes.io.evil/x":              true,
	} {
		_, found := KubeletLabels(map[string]string{key: "v"})[key]
		if found != allowed {
			t.Errorf("%s: allowed %v, want %v", key, found, allowed)
		}
	}
	if KubeletLabels(nil) == nil {
		t.Error("nil for no labels: callers add to it")
	}
}

// Section 3 #52: equal labels are equal text.
func TestLabelListIsSorted(t *testing.T) {
	labels := map[string]string{"b": "2", "a": "1", "d/e": "", "c": "3", "kubernetes.io/os": "linux"}
	for range 20 {
		if got, want := labelList(labels), "a=1,b=2,c=3,d/e="; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// Section 2 #28, E7: a Node without the unregistered taint takes pods before karpenter has set it up.
func TestTaintListBeginsWithUnregistered(t *testing.T) {
	for _, test := range []struct {
		name   string
		taints []corev1.Taint
		want   string
	}{
		{"none", nil, "karpenter.sh/unregistered:NoExecute"},
		{"the claim's order", []corev1.Taint{
			{Key: "z", Value: "1", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: corev1.TaintEffectNoExecute},
		}, "karpenter.sh/unregistered:NoExecute,z=1:NoSchedule,a:NoExecute"},
		{"given by the claim too", []corev1.Taint{
			{Key: "a", Effect: corev1.TaintEffectNoExecute}, {Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
		}, "karpenter.sh/unregistered:NoExecute,a:NoExecute"},
		{"one key, two effects", []corev1.Taint{
			{Key: "a", Effect: corev1.TaintEffectNoExecute}, {Key: "a", Effect: corev1.TaintEffectNoSchedule},
		}, "karpenter.sh/unregistered:NoExecute,a:NoExecute,a:NoSchedule"},
		{"one key and effect twice", []corev1.Taint{
			{Key: "a", Value: "1", Effect: corev1.TaintEffectNoExecute}, {Key: "a", Value: "2", Effect: corev1.TaintEffectNoExecute},
		}, "karpenter.sh/unregistered:NoExecute,a=1:NoExecute"},
	} {
		if got := taintList(test.taints); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
