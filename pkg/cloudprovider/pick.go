package cloudprovider

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
)

// pick is the hosts that could serve a NodeClaim, by type: the cheapest type first, and among equals the machine that is the
// smaller loss. Which host of a type, the inventory decides. The text says why there are none.
func pick(types []instancetype.Type, nodeClaim *karpv1.NodeClaim) (candidates []host.Candidate, why string) {
	wanted := scheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	type choice struct {
		host.Candidate
		price float64
		shape instancetype.Shape
	}
	var choices []choice
	var fitting []string
	for _, t := range types {
		if len(t.Zones) == 0 || !wanted.IsCompatible(t.Requirements, scheduling.AllowUndefinedWellKnownLabels) || !resources.Fits(nodeClaim.Spec.Resources.Requests, t.Allocatable()) {
			continue
		}
		fitting = append(fitting, t.Name)
		found := choice{Candidate: host.Candidate{InstanceType: t.Name}, price: math.MaxFloat64, shape: t.Shape}
		for index, zone := range t.Zones {
			if offering := t.Offerings[index]; wanted.IsCompatible(offering.Requirements, scheduling.AllowUndefinedWellKnownLabels) {
				found.price = min(found.price, offering.Price)
				found.Hosts = append(found.Hosts, zone.Free...)
			}
		}
		if len(found.Hosts) > 0 {
			choices = append(choices, found)
		}
	}
	slices.SortStableFunc(choices, func(a, b choice) int {
		return cmp.Or(
			cmp.Compare(a.price, b.price),
			cmp.Compare(a.shape.CPU, b.shape.CPU),
			// A machine with a GPU is the last to be spent on a pod that asks for none.
			cmp.Compare(a.shape.Extra, b.shape.Extra),
			cmp.Compare(a.shape.Memory, b.shape.Memory),
			cmp.Compare(a.shape.EphemeralStorage, b.shape.EphemeralStorage),
			cmp.Compare(a.InstanceType, b.InstanceType),
		)
	})
	for _, found := range choices {
		candidates = append(candidates, found.Candidate)
	}
	switch {
	case len(types) == 0:
		return nil, "the class selects no SSHHost that could be offered"
	case len(fitting) == 0:
		return nil, fmt.Sprintf("none of the %d instance types meets its requirements and requests (%s)", len(types), resources.String(nodeClaim.Spec.Resources.Requests))
	case len(candidates) == 0:
		return nil, "no SSHHost is free among those of " + abbreviate(fitting)
	}
	return candidates, "every SSHHost of " + abbreviate(fitting) + " was taken in the meantime"
}

// abbreviate lists names, a few of them.
func abbreviate(names []string) string {
	const shown = 5
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// regionOf is the region that the NodePool's template put on a NodeClaim.
func regionOf(nodeClaim *karpv1.NodeClaim) string {
	return nodeClaim.Labels[corev1.LabelTopologyRegion]
}
