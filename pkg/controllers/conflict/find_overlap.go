package conflict

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// reach is what a NodePool says about the pods it takes.
type reach struct {
	pool *karpv1.NodePool
	// owner is the instance; of another provider's pool, provider is set instead.
	owner, provider string
	weight          int32
	// taints that keep pods off, in one spelling.
	taints       string
	requirements scheduling.Requirements
}

// overlappingPools: a pod that fits one may as well fit the other, and two controllers would make a node for it.
func overlappingPools(v *view) (found []Finding) {
	var reaches []reach
	for i := range v.Pools {
		if r, ok := v.reachOf(&v.Pools[i]); ok {
			reaches = append(reaches, r)
		}
	}
	for i := range reaches {
		mine := &reaches[i]
		if mine.provider != "" {
			continue // its owner is not one of us
		}
		var others []string
		for j := range reaches {
			if other := &reaches[j]; i != j && mine.overlaps(other) {
				others = append(others, other.name())
			}
		}
		if len(others) == 0 {
			continue
		}
		slices.Sort(others)
		class, _ := classOf(mine.pool.Spec.Template.Spec.NodeClassRef)
		found = append(found, Finding{
			Type: v1beta1.ReasonOverlappingPools, Object: poolRef(mine.pool), Owner: mine.owner, Other: others[0], Classes: v.ifOwn(class),
			Message: fmt.Sprintf("nothing tells the pods of this NodePool of instance %q from those of %s: set a taint, or a required label, on one of them, or give instances' pools different weights",
				mine.owner, some(others)),
		})
	}
	return found
}

// reachOf leaves out pools that take no pending pods, and those that are nobody's.
func (v *view) reachOf(pool *karpv1.NodePool) (reach, bool) {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref == nil || pool.Spec.Replicas != nil || !pool.DeletionTimestamp.IsZero() {
		return reach{}, false
	}
	r := reach{pool: pool, taints: spell(pool.Spec.Template.Spec.Taints), requirements: requirementsOf(pool)}
	if pool.Spec.Weight != nil {
		r.weight = *pool.Spec.Weight
	}
	name, ours := classOf(ref)
	if !ours {
		r.provider = ref.Group
		// A provider's own labels are as well known to it as the zone is: they keep no pod off that does not ask for them.
		for key := range r.requirements {
			if domain, _, _ := strings.Cut(key, "/"); domain == ref.Group || strings.HasSuffix(domain, "."+ref.Group) {
				delete(r.requirements, key)
			}
		}
		return r, true
	}
	class := v.classes[name]
	if class == nil {
		return reach{}, false
	}
	r.owner = class.Spec.Instance
	return r, true
}

func (r *reach) name() string {
	if r.provider != "" {
		return fmt.Sprintf("%s (provider %s)", r.pool.Name, r.provider)
	}
	return fmt.Sprintf("%s (instance %s)", r.pool.Name, r.owner)
}

// overlaps: weights order the pools of instances among each other; another provider does not know ours.
func (r *reach) overlaps(other *reach) bool {
	if other.provider == "" && (r.owner == other.owner || r.weight != other.weight) {
		return false
	}
	return r.taints == other.taints && r.admits(other) && other.admits(r)
}

// admits: nothing that other requires contradicts r, and no label of other's choice is one that r lacks.
func (r *reach) admits(other *reach) bool {
	return r.requirements.IsCompatible(other.requirements, scheduling.AllowUndefinedWellKnownLabels)
}

// requirementsOf leaves out labels that are on every pool of ours, or on one alone: they tell apart only pods that name them, which nobody
// means who did not set them for this.
func requirementsOf(pool *karpv1.NodePool) scheduling.Requirements {
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(pool.Spec.Template.Spec.Requirements...)
	requirements.Add(scheduling.NewLabelRequirements(pool.Spec.Template.Labels).Values()...)
	for _, implied := range []string{v1beta1.ManagedLabel, v1beta1.InstanceLabel, karpv1.NodePoolLabelKey} {
		delete(requirements, implied)
	}
	return requirements
}

func spell(taints []corev1.Taint) string {
	var all []string
	for _, t := range taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule {
			all = append(all, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
