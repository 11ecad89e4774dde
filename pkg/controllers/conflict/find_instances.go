package conflict

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// duplicateInstance: another installation has this instance's name. It stands by and ends, and says so on the Lease; or the Lease is marked
// as its.
func duplicateInstance(v *view) []Finding {
	for _, lease := range v.Instances {
		if lease.Name != v.Self.Instance {
			continue
		}
		other := v.Contender
		differs := func(theirs, ours string) bool { return theirs != "" && ours != "" && theirs != ours }
		if differs(lease.PoolNamespace, v.Self.PoolNamespace) || differs(lease.Release, v.Self.Release) {
			other = fmt.Sprintf("release %s, pool namespace %s", lease.Release, lease.PoolNamespace)
		}
		if other == "" {
			continue
		}
		return []Finding{{
			Type: v1beta1.ReasonDuplicateInstance, Owner: v.Self.Instance, Classes: v.own, Other: other,
			Object: corev1.ObjectReference{
				APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: v.LeaseNamespace, Name: lease.LeaseName, UID: lease.LeaseUID,
			},
			Message: fmt.Sprintf("two installations are called %q: this one (release %s, pool namespace %s) and another (%s). Give one of them another instance.name",
				v.Self.Instance, v.Self.Release, v.Self.PoolNamespace, other),
		}}
	}
	return nil
}

// sharedPoolNamespaces: two live instances have one pool namespace, so each takes the other's hosts for its own.
func sharedPoolNamespaces(v *view) (found []Finding) {
	for _, namespace := range slices.Sorted(maps.Keys(v.holders)) {
		holders := v.holders[namespace]
		if len(holders) < 2 {
			continue
		}
		f := Finding{
			Type: v1beta1.ReasonSharedPoolNamespace, Owner: holders[0], Other: holders[1],
			Object: corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: namespace},
			Message: fmt.Sprintf("namespace %s is the pool namespace of instances %s: each takes all its SSHHosts for its own. Give each instance a namespace to itself",
				namespace, some(holders)),
		}
		if namespace == v.Self.PoolNamespace {
			f.Classes = v.own
		}
		found = append(found, f)
	}
	return found
}
