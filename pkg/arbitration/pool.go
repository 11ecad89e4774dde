package arbitration

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	core "sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/samber/lo"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
)

// OtherProvider is the owner of NodePools whose class is of another provider's kind. It cannot be an instance's name.
const OtherProvider = "*"

// Pool is a NodePool as far as it decides which pods it takes.
type Pool struct {
	name   string
	weight int32
	owner  string
	taints []corev1.Taint
	// declared is what everybody can know: every instance has the same for the same NodePool.
	declared scheduling.Requirements
	// offered narrows declared to what the owner's hosts have. Only the owner knows; declared for everybody else.
	offered scheduling.Requirements
	// unknown tells which labels a node of the pool may carry though the pool does not say so.
	unknown func(label string) bool
}

// NewPool is false for a NodePool that takes no pod at all: one that names no class, whose size does not follow pods, or that is being
// deleted. Owner is an instance or OtherProvider.
func NewPool(p *karpv1.NodePool, owner string) (Pool, bool) {
	ref := p.Spec.Template.Spec.NodeClassRef
	if ref == nil || p.Spec.Replicas != nil || p.DeletionTimestamp != nil {
		return Pool{}, false
	}
	made := Pool{
		name: p.Name, weight: lo.FromPtr(p.Spec.Weight), owner: owner,
		// Core gives up on avoiding a PreferNoSchedule taint before it gives up on a pod.
		taints: lo.Reject(p.Spec.Template.Spec.Taints, func(t corev1.Taint, _ int) bool {
			return t.Effect == corev1.TaintEffectPreferNoSchedule
		}),
		// Core's own template, so that a pool means here what it means there.
		declared: core.NewNodeClaimTemplate(p).Requirements,
		unknown:  karpv1.WellKnownLabels.Has,
	}
	if owner == OtherProvider {
		made.unknown = func(label string) bool { return mayCarry(ref.Group, label) }
	} else {
		made.declared.Add(instancetype.Everywhere(owner, p.Spec.Template.Labels[corev1.LabelTopologyRegion]).Values()...)
	}
	made.offered = made.declared
	return made, true
}

// mayCarry tells whether another provider's nodes may carry a label that its pool does not mention: a standard one or one of its own,
// which this process has not heard of. Ours they do not carry.
func mayCarry(group, label string) bool {
	domain, _, _ := strings.Cut(label, "/")
	switch {
	case domain == v1beta1.Group:
		return false
	case domain == group || strings.HasSuffix(domain, "."+group):
		return true
	}
	return karpv1.WellKnownLabels.Has(label)
}

// offering is the pool narrowed to what its hosts have; nil narrows nothing.
func (p Pool) offering(offered scheduling.Requirements) Pool {
	if offered == nil {
		return p
	}
	p.offered = scheduling.NewRequirements(p.declared.Values()...)
	p.offered.Add(offered.Values()...)
	return p
}

// inOrder sorts pools as core tries them: the heaviest first, at equal weight the one whose name is later in the alphabet.
func inOrder(pools []Pool) {
	slices.SortFunc(pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), strings.Compare(b.name, a.name))
	})
}

// wish is what a pod demands of its node: every toleration it has, and alternatives of which one must hold.
type wish struct {
	tolerations  []corev1.Toleration
	alternatives []scheduling.Requirements
}

// wishOf reads a pod and changes nothing of it. What a pod only prefers excludes no node. Volumes, topology and resources are left to
// core: they can only narrow what is found here.
func wishOf(pod *corev1.Pod) wish {
	w := wish{tolerations: pod.Spec.Tolerations}
	var terms []corev1.NodeSelectorTerm
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(terms) == 0 {
		w.alternatives = []scheduling.Requirements{scheduling.NewLabelRequirements(pod.Spec.NodeSelector)}
		return w
	}
	for _, term := range terms {
		alternative := scheduling.NewLabelRequirements(pod.Spec.NodeSelector)
		alternative.Add(scheduling.NewNodeSelectorRequirements(term.MatchExpressions...).Values()...)
		w.alternatives = append(w.alternatives, alternative)
	}
	return w
}

// fits tells whether a pool with these requirements takes the pod.
func (p Pool) fits(w wish, has scheduling.Requirements) bool {
	for i := range p.taints {
		if !tolerated(&p.taints[i], w.tolerations) {
			return false
		}
	}
	return slices.ContainsFunc(w.alternatives, func(demands scheduling.Requirements) bool { return p.meets(has, demands) })
}

func tolerated(taint *corev1.Taint, tolerations []corev1.Toleration) bool {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(klog.Logger{}, taint, true) {
			return true
		}
	}
	return false
}

// meets is scheduling.Requirements.Compatible without the errors, which take ten times as long to make as the answer.
func (p Pool) meets(has, demands scheduling.Requirements) bool {
	for label, demand := range demands {
		offer, defined := has[label]
		switch {
		case !defined:
			if !p.unknown(label) && !absent(demand) {
				return false
			}
		case !offer.HasIntersection(demand) && (!absent(offer) || !absent(demand)):
			return false
		}
	}
	return true
}

// absent tells whether a node without the label is meant too.
func absent(r *scheduling.Requirement) bool {
	operator := r.Operator()
	return operator == corev1.NodeSelectorOpNotIn || operator == corev1.NodeSelectorOpDoesNotExist
}
