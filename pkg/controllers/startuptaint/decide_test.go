package startuptaint

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func taint(key, value string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: effect}
}

var startup = []corev1.Taint{taint("cni", "", corev1.TaintEffectNoSchedule), taint("gpu", "a", corev1.TaintEffectNoExecute)}

// A taint may go if the NodeClaim and the class both name it, and the NodeClaim names exactly this one.
func TestWhichTaintsMayGo(t *testing.T) {
	gates := []v1beta1.StartupTaintGate{{TaintKey: "cni"}, {TaintKey: "gpu"}, {TaintKey: "permanent"}}
	for name, row := range map[string]struct {
		gates []v1beta1.StartupTaintGate
		taint corev1.Taint
		want  bool
	}{
		"named by both":                         {gates, taint("cni", "", corev1.TaintEffectNoSchedule), true},
		"with its value":                        {gates, taint("gpu", "a", corev1.TaintEffectNoExecute), true},
		"no gate for it":                        {gates[:1], taint("gpu", "a", corev1.TaintEffectNoExecute), false},
		"no startup taint of the NodeClaim":     {gates, taint("permanent", "", corev1.TaintEffectNoSchedule), false},
		"section 3 #35: another effect":         {gates, taint("cni", "", corev1.TaintEffectNoExecute), false},
		"section 3 #35: another value":          {gates, taint("gpu", "b", corev1.TaintEffectNoExecute), false},
		"karpenter's own":                       {gates, taint("karpenter.sh/unregistered", "", corev1.TaintEffectNoExecute), false},
		"a class without gates removes nothing": {nil, taint("cni", "", corev1.TaintEffectNoSchedule), false},
	} {
		if got := len(gatedTaints(row.gates, startup, []corev1.Taint{row.taint})) == 1; got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	both := []corev1.Taint{startup[0], taint("cni", "", corev1.TaintEffectNoExecute)}
	if left := without(both, gatedTaints(gates, startup, both)); len(left) != 1 || left[0].Effect != corev1.TaintEffectNoExecute {
		t.Errorf("left are %v", left)
	}
}

func TestConditionOpens(t *testing.T) {
	conditions := []corev1.NodeCondition{{Type: "NetworkReady", Status: corev1.ConditionTrue}, {Type: "Broken", Status: corev1.ConditionFalse}}
	for want, open := range map[v1beta1.NodeConditionIs]bool{
		{Type: "NetworkReady"}:                                true, // True is the default
		{Type: "NetworkReady", Status: corev1.ConditionTrue}:  true,
		{Type: "NetworkReady", Status: corev1.ConditionFalse}: false,
		{Type: "Broken", Status: corev1.ConditionFalse}:       true,
		{Type: "Broken"}: false,
		{Type: "Absent"}: false,
		{Type: "Absent", Status: corev1.ConditionFalse}:         false,
		{Type: "NetworkReady", Status: corev1.ConditionUnknown}: false,
	} {
		if got := conditionOpens(want, conditions); got != open {
			t.Errorf("%+v: %v, want %v", want, got, open)
		}
	}
}

func TestPodsOpen(t *testing.T) {
	pod := func(ready corev1.ConditionStatus, ending bool) corev1.Pod {
		p := corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
		if ending {
			p.DeletionTimestamp = new(metav1.NewTime(time.Now()))
		}
		return p
	}
	ready, notReady, ending := pod(corev1.ConditionTrue, false), pod(corev1.ConditionFalse, false), pod(corev1.ConditionTrue, true)
	for name, row := range map[string]struct {
		want int32
		pods []corev1.Pod
		open bool
	}{
		"none":                    {1, nil, false},
		"one ready":               {1, []corev1.Pod{ready}, true},
		"at least one is asked":   {0, nil, false},
		"not ready":               {1, []corev1.Pod{notReady}, false},
		"ending":                  {1, []corev1.Pod{ending}, false},
		"too few":                 {2, []corev1.Pod{ready, notReady, ending}, false},
		"enough among the others": {2, []corev1.Pod{ready, notReady, ready}, true},
	} {
		if got := podsOpen(v1beta1.PodsReady{MinReady: row.want}, row.pods); got != row.open {
			t.Errorf("%s: %v, want %v", name, got, row.open)
		}
	}
}
