package conflict

import (
	"fmt"
	"maps"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// unownedClasses: nobody is there who would act for the class.
func unownedClasses(v *view) (found []Finding) {
	alive := []string{v.Self.Instance}
	for name, life := range v.Lives {
		if life == Alive && name != v.Self.Instance {
			alive = append(alive, name)
		}
	}
	slices.Sort(alive)
	for i := range v.Classes {
		class := &v.Classes[i]
		instance := class.Spec.Instance
		if !v.isMissing(instance) {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonUnownedNodeClass, Object: classRef(class), Owner: instance, Other: instance,
			Message: fmt.Sprintf("instance %q, which owns this class, has not renewed its lease for 40 seconds, or never had one: nodes of the class are neither launched nor removed. Start that instance; if the name is a mistake, create a class for one of those that are alive (%s) and delete this one",
				instance, some(alive)),
		})
	}
	return found
}

// danglingPools name a class that does not exist: the pool is nobody's.
func danglingPools(v *view) (found []Finding) {
	for i := range v.Pools {
		pool := &v.Pools[i]
		name, ours := classOf(pool.Spec.Template.Spec.NodeClassRef)
		if !ours || v.classes[name] != nil || !pool.DeletionTimestamp.IsZero() {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonDanglingNodePool, Object: poolRef(pool), Other: name,
			Message: fmt.Sprintf("SSHNodeClass %q does not exist, so no instance owns this NodePool: create the class, or correct spec.template.spec.nodeClassRef.name", name),
		})
	}
	return found
}

// danglingClaims were asked for by an instance that was cut off for so long that its class went meanwhile: nobody acts for them.
func danglingClaims(v *view) (found []Finding) {
	for _, claim := range v.Labelled {
		found = append(found, Finding{
			Type: v1beta1.ReasonDanglingNodeClaim, Other: claim.Class,
			Object:  claimRef(claim.Name, claim.UID),
			Message: fmt.Sprintf("SSHNodeClass %q does not exist, so no instance owns this NodeClaim: delete it, and if it keeps finalizers take them off, or create the class again for its owner to end it", claim.Class),
		})
	}
	return found
}

// unownedPools name a class that nobody is there to act for: their pods get no nodes.
func unownedPools(v *view) (found []Finding) {
	for i := range v.Pools {
		pool := &v.Pools[i]
		name, ours := classOf(pool.Spec.Template.Spec.NodeClassRef)
		class := v.classes[name]
		if !ours || class == nil || !pool.DeletionTimestamp.IsZero() {
			continue
		}
		instance := class.Spec.Instance
		if !v.isMissing(instance) {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonUnownedNodePool, Object: poolRef(pool), Owner: instance, Other: instance,
			Message: fmt.Sprintf("SSHNodeClass %q of this NodePool is instance %q's, which is not running: it gets no nodes, and those it has are not removed. Start that instance, or name a class of an instance that is alive in a new NodePool",
				name, instance),
		})
	}
	return found
}

// movedPools have NodeClaims of this instance and name a class that is not its any more. Only this instance sees those NodeClaims.
func movedPools(v *view) (found []Finding) {
	classes := map[string]map[string]struct{}{} // of each pool's live claims
	counts := map[string]int{}
	for i := range v.Claims {
		claim := &v.Claims[i]
		pool := claim.Labels[karpv1.NodePoolLabelKey]
		class, ours := classOf(claim.Spec.NodeClassRef)
		if pool == "" || !ours || !claim.DeletionTimestamp.IsZero() {
			continue
		}
		if classes[pool] == nil {
			classes[pool] = map[string]struct{}{}
		}
		classes[pool][class] = struct{}{}
		counts[pool]++
	}
	for i := range v.Pools {
		pool := &v.Pools[i]
		if counts[pool.Name] == 0 {
			continue
		}
		other := "another provider"
		name, ours := classOf(pool.Spec.Template.Spec.NodeClassRef)
		if ours {
			class := v.classes[name]
			if class == nil || class.Spec.Instance == v.Self.Instance {
				continue
			}
			other = class.Spec.Instance
		}
		f := Finding{
			Type: v1beta1.ReasonMovedNodePool, Object: poolRef(pool), Owner: v.Self.Instance, Other: other,
			Message: fmt.Sprintf("%d NodeClaims of instance %q live in this NodePool, which now names a class of %s: they keep running and are never consolidated or replaced. Name the old class again, or delete those NodeClaims; to move a pool, create a new one and drain the old",
				counts[pool.Name], v.Self.Instance, other),
		}
		for _, class := range slices.Sorted(maps.Keys(classes[pool.Name])) {
			f.Classes = append(f.Classes, v.ifOwn(class)...)
		}
		found = append(found, f)
	}
	return found
}

// unmanagedPools make nodes that the controller itself may be scheduled to, though it removes them.
func unmanagedPools(v *view) (found []Finding) {
	for i := range v.Pools {
		pool := &v.Pools[i]
		name, ours := classOf(pool.Spec.Template.Spec.NodeClassRef)
		class := v.classes[name]
		if !ours || class == nil || !pool.DeletionTimestamp.IsZero() || pool.Spec.Template.Labels[v1beta1.ManagedLabel] == "true" {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonMissingManagedLabel, Object: poolRef(pool), Owner: class.Spec.Instance, Classes: v.ifOwn(name),
			Message: fmt.Sprintf("the template lacks the label %s: \"true\", so the controller may be scheduled to a node that it removes itself: add it to spec.template.metadata.labels",
				v1beta1.ManagedLabel),
		})
	}
	return found
}
