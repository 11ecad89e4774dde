package arbitration

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type poolOption func(*karpv1.NodePool)

// nodePool names class `class`.
func nodePool(name, class string, options ...poolOption) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ownership.ClassKind, Name: class}
	for _, option := range options {
		option(p)
	}
	return p
}

func weighing(w int32) poolOption { return func(p *karpv1.NodePool) { p.Spec.Weight = &w } }

func static(p *karpv1.NodePool) { p.Spec.Replicas = new(int64) }

func ofAWS(p *karpv1.NodePool) {
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
}

func deleting(p *karpv1.NodePool) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func tainted(key string, effect corev1.TaintEffect) poolOption {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Taints = append(p.Spec.Template.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func startupTainted(key string) poolOption {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.StartupTaints = append(p.Spec.Template.Spec.StartupTaints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
}

func requiring(key string, operator corev1.NodeSelectorOperator, values ...string) poolOption {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements,
			karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: operator, Values: values})
	}
}

func labelled(key, value string) poolOption {
	return func(p *karpv1.NodePool) {
		if p.Spec.Template.Labels == nil {
			p.Spec.Template.Labels = map[string]string{}
		}
		p.Spec.Template.Labels[key] = value
	}
}

type podOption func(*corev1.Pod)

// pending is a pod that the scheduler gave up on now.
func pending(name string, options ...podOption) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.NewTime(now)}}
	for _, option := range options {
		option(p)
	}
	return p
}

func selecting(key, value string) podOption {
	return func(p *corev1.Pod) {
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[key] = value
	}
}

func tolerating(key string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

func nodeAffinity(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	return p.Spec.Affinity.NodeAffinity
}

// or adds an alternative.
func or(key string, operator corev1.NodeSelectorOperator, values ...string) podOption {
	return func(p *corev1.Pod) {
		a := nodeAffinity(p)
		if a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
			a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
		}
		terms := &a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		*terms = append(*terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}})
	}
}

func preferring(key, value string) podOption {
	return func(p *corev1.Pod) {
		a := nodeAffinity(p)
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
			Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}},
		})
	}
}

// hosts are what the instance's hosts are, by NodePool.
type hosts map[string]scheduling.Requirements

func (h hosts) Offered(p *karpv1.NodePool) scheduling.Requirements { return h[p.Name] }

// inZones are hosts in these zones, of one class and architecture.
func inZones(zones ...string) scheduling.Requirements {
	return scheduling.NewRequirements(
		scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
		scheduling.NewRequirement(v1beta1.HostClassLabel, corev1.NodeSelectorOpIn, "big"),
		scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
	)
}

// classes: a and a2 are instance seg-a's, b seg-b's.
func overviewOf(pools ...*karpv1.NodePool) *Overview {
	o := NewOverview()
	for class, instance := range map[string]string{"a": "seg-a", "a2": "seg-a", "b": "seg-b", "c": "seg-c"} {
		o.Observe(sshClass(class, instance))
	}
	for _, p := range pools {
		o.Observe(p)
	}
	return o
}

func sshClass(name, instance string) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1beta1.SSHNodeClassSpec{Instance: instance}}
}
