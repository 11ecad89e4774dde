package instancetype

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// Type is an instance type and the hosts behind it.
type Type struct {
	*cloudprovider.InstanceType
	// Shape of its hosts.
	Shape Shape
	// Zones in order of name; one offering each.
	Zones []Zone
}

// Zone is one offering.
type Zone struct {
	Name string
	// Free hosts: those that could be claimed now. Unordered.
	Free []*v1beta1.SSHHost
}

// Inputs of ForClass.
type Inputs struct {
	Class *v1beta1.SSHNodeClass
	// Selected is the hosts that the class selects, in any order and any state.
	Selected []*v1beta1.SSHHost
	// Held is the hosts that claims of the class hold; those that the class no longer selects too.
	Held []*v1beta1.SSHHost
	// Instance is the name of this controller instance.
	Instance string
	// Region is the topology.kubernetes.io/region label that the NodePool's template puts on its nodes; empty if it puts none.
	Region string
}

// ForClass is every instance type of a class, sorted by host class and size, the held types that no host has any more last.
// Hosts that Rejected names are left out.
func ForClass(in Inputs) []Type {
	found := in.group()
	shapes := make([]Shape, 0, len(found))
	for shape := range found {
		shapes = append(shapes, shape)
	}
	slices.SortFunc(shapes, Shape.compare)
	named, held := names(shapes), heldNames(in)
	types := make([]Type, 0, len(shapes)+len(held))
	for _, shape := range shapes {
		_, backs := held[named[shape]]
		types = append(types, in.build(named[shape], shape, sortedZones(found[shape]), backs))
		delete(held, named[shape])
	}
	first := len(types)
	for name, shape := range held {
		types = append(types, in.build(name, shape, nil, true))
	}
	slices.SortFunc(types[first:], func(a, b Type) int { return cmp.Compare(a.Name, b.Name) })
	return types
}

// group is the free hosts of every zone of every shape that is offered.
func (in Inputs) group() map[Shape]map[string][]*v1beta1.SSHHost {
	found := map[Shape]map[string][]*v1beta1.SSHHost{}
	for _, h := range in.Selected {
		shape, why := ShapeOf(h)
		if why != nil {
			continue
		}
		zones, known := found[shape]
		if !known {
			if exhausted(in.Class, shape) == "" {
				zones = map[string][]*v1beta1.SSHHost{}
			}
			found[shape] = zones
		}
		if zones == nil {
			continue
		}
		zone := ZoneOf(in.Class, h)
		if free, _ := host.Claimable(h); free {
			zones[zone] = append(zones[zone], h)
		} else if _, known := zones[zone]; !known {
			zones[zone] = nil
		}
	}
	maps.DeleteFunc(found, func(_ Shape, zones map[string][]*v1beta1.SSHHost) bool { return zones == nil })
	return found
}

// heldNames is every name that a claim of the class was launched as, with the smallest shape that a host so named has now.
func heldNames(in Inputs) map[string]Shape {
	held := map[string]Shape{}
	for _, h := range in.Held {
		if h.Status.ClaimRef == nil {
			continue
		}
		shape, _ := ShapeOf(h)
		name := NameOfClaim(h)
		if other, known := held[name]; !known || shape.compare(other) < 0 {
			held[name] = shape
		}
	}
	return held
}

// NameOfClaim is the instance type that a host's claim was launched as. Claims that recorded none were made when every host class
// was one type.
func NameOfClaim(h *v1beta1.SSHHost) string {
	if name := h.Status.ClaimRef.InstanceType; name != "" {
		return name
	}
	return h.HostClass()
}

// ZoneOf is a host's zone: its own label, else the class's, else `pool`.
func ZoneOf(class *v1beta1.SSHNodeClass, h *v1beta1.SSHHost) string {
	return cmp.Or(h.Labels[corev1.LabelTopologyZone], class.Spec.Zone, v1beta1.DefaultZone)
}

func sortedZones(free map[string][]*v1beta1.SSHHost) []Zone {
	zones := make([]Zone, 0, len(free))
	for name, hosts := range free {
		zones = append(zones, Zone{Name: name, Free: hosts})
	}
	slices.SortFunc(zones, func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
	return zones
}

func (in Inputs) build(name string, shape Shape, zones []Zone, backsClaims bool) Type {
	cost := price(in.Class, shape)
	offerings := make(cloudprovider.Offerings, 0, len(zones)+1)
	zoneNames := make([]string, 0, len(zones))
	for _, zone := range zones {
		zoneNames = append(zoneNames, zone.Name)
		offerings = append(offerings, offering(cost, len(zone.Free) > 0, scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone.Name)))
	}
	if backsClaims {
		// Karpenter rolls a node whose zone its type no longer lists. Zones are labels that people edit, so a type with nodes lists, beside
		// what can be had, one offering that is never to be had and that every zone matches.
		offerings = append(offerings, offering(cost, false, scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpExists)))
	}
	return Type{Shape: shape, Zones: zones, InstanceType: &cloudprovider.InstanceType{
		Name:         name,
		Requirements: in.requirements(name, shape, zoneNames),
		Offerings:    offerings,
		Capacity:     Capacity(in.Class, shape),
		Overhead:     overhead(in.Class, shape),
	}}
}

// requirements are the labels that a node of the type will carry, and those that it will not.
func (in Inputs) requirements(name string, shape Shape, zones []string) scheduling.Requirements {
	requirements := Everywhere(in.Instance, in.Region)
	requirements.Add(
		scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name),
		scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, shape.Arch),
		scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
		scheduling.NewRequirement(v1beta1.HostClassLabel, corev1.NodeSelectorOpIn, shape.HostClass),
	)
	return requirements
}

// Everywhere is what all types of an instance have in common, whatever its hosts are. Region is that of Inputs.
func Everywhere(instance, region string) scheduling.Requirements {
	// A label that a type does not mention counts as satisfied, and the pod that asked for it would get node after node in vain.
	in := scheduling.NewRequirement(corev1.LabelTopologyRegion, corev1.NodeSelectorOpDoesNotExist)
	if region != "" {
		in = scheduling.NewRequirement(corev1.LabelTopologyRegion, corev1.NodeSelectorOpIn, region)
	}
	return scheduling.NewRequirements(
		scheduling.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, string(corev1.Linux)),
		scheduling.NewRequirement(corev1.LabelWindowsBuild, corev1.NodeSelectorOpDoesNotExist),
		scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand),
		scheduling.NewRequirement(v1beta1.InstanceLabel, corev1.NodeSelectorOpIn, instance),
		in,
	)
}

func offering(cost float64, available bool, zone *scheduling.Requirement) *cloudprovider.Offering {
	return &cloudprovider.Offering{
		Price: cost, Available: available,
		Requirements: scheduling.NewRequirements(zone, scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand)),
	}
}
