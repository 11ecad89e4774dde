package instancetype

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	// defaultEphemeralStorage is assumed of hosts that declare none: without any, a pod that asks for some would never fit.
	defaultEphemeralStorage = 20 << 30
	// defaultPods is the kubelet's own default.
	defaultPods = 110
)

// Shape is what hosts of one instance type have in common. Shapes are equal when karpenter cannot tell their hosts apart. It
// depends on the host alone, so editing a class renames no type.
type Shape struct {
	HostClass, Arch string
	// CPU in thousandths of a core.
	CPU int64
	// Memory and EphemeralStorage in bytes.
	Memory, EphemeralStorage int64
	// Pods that fit if the class does not say.
	Pods int64
	// Extra is every further resource, `name=value` in order of name, comma-separated.
	Extra string
}

// Reasons for which a host is not offered.
const (
	// ReasonNotProbed: the architecture is not known yet.
	ReasonNotProbed = "NotProbed"
	// ReasonArchInvalid: the probe reported something that cannot be a kubernetes.io/arch label.
	ReasonArchInvalid = "ArchInvalid"
	// ReasonCapacityInvalid: spec.capacity gives nothing, or less.
	ReasonCapacityInvalid = "CapacityInvalid"
	// ReasonCapacityReserved: what the class reserves leaves nothing for pods.
	ReasonCapacityReserved = "CapacityReserved"
)

// Rejection says why a host is not offered, and what to do about it.
type Rejection struct {
	Host, Reason, Message string
}

// Rejected is every host among those that a class selects which is not offered, in order of name.
func Rejected(class *v1beta1.SSHNodeClass, selected []*v1beta1.SSHHost) []Rejection {
	var rejected []Rejection
	for _, h := range selected {
		shape, why := ShapeOf(h)
		if why != nil {
			rejected = append(rejected, *why)
		} else if name := exhausted(class, shape); name != "" {
			rejected = append(rejected, Rejection{h.Name, ReasonCapacityReserved, fmt.Sprintf(
				"SSHHost %s: capacity.%s is not more than what SSHNodeClass %s reserves; raise the capacity or lower kubeReserved", h.Name, name, class.Name)})
		}
	}
	slices.SortFunc(rejected, func(a, b Rejection) int { return cmp.Compare(a.Host, b.Host) })
	return rejected
}

// exhausted is the resource of which the class's reservation leaves pods of this shape's nodes nothing, or empty.
func exhausted(class *v1beta1.SSHNodeClass, shape Shape) corev1.ResourceName {
	left := Allocatable(class, shape)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity := left[name]; quantity.Sign() <= 0 {
			return name
		}
	}
	return ""
}

// ShapeOf is a host's shape. The rejection, if any, says why a host of this shape cannot be offered; the shape is then what can be
// said of it, never negative.
func ShapeOf(h *v1beta1.SSHHost) (Shape, *Rejection) {
	shape := Shape{HostClass: h.HostClass(), Arch: h.Status.ObservedArch, EphemeralStorage: defaultEphemeralStorage, Pods: defaultPods}
	var why *Rejection
	for name, quantity := range h.Spec.Capacity {
		value := max(0, quantity.Value())
		if quantity.Sign() < 0 || value == 0 && wants(name) {
			why = &Rejection{h.Name, ReasonCapacityInvalid, fmt.Sprintf("SSHHost %s: capacity.%s is %s; it must be positive", h.Name, name, quantity.String())}
		}
		switch name {
		case corev1.ResourceCPU:
			shape.CPU = max(0, quantity.MilliValue())
		case corev1.ResourceMemory:
			shape.Memory = value
		case corev1.ResourceEphemeralStorage:
			shape.EphemeralStorage = value
		case corev1.ResourcePods:
			shape.Pods = value
		}
	}
	shape.Extra = extra(h.Spec.Capacity)
	switch {
	case why != nil:
	case shape.CPU == 0 || shape.Memory == 0:
		why = &Rejection{h.Name, ReasonCapacityInvalid, fmt.Sprintf("SSHHost %s: capacity must give cpu and memory", h.Name)}
	case shape.Arch == "":
		why = &Rejection{h.Name, ReasonNotProbed, fmt.Sprintf("SSHHost %s has not been probed yet; its Ready condition says what it waits for", h.Name)}
	case len(validation.IsValidLabelValue(shape.Arch)) > 0:
		why = &Rejection{h.Name, ReasonArchInvalid, fmt.Sprintf("SSHHost %s reports the architecture %.40q; check that `uname -m` on the machine prints a machine name", h.Name, shape.Arch)}
	}
	return shape, why
}

// wants tells whether a node needs some of the resource. A host may well declare that it has no GPU.
func wants(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return true
	}
	return false
}

func extra(capacity corev1.ResourceList) string {
	if len(capacity) <= 2 {
		return ""
	}
	var parts []string
	for name, quantity := range capacity {
		if !wants(name) && quantity.Value() > 0 {
			parts = append(parts, string(name)+"="+strconv.FormatInt(quantity.Value(), 10))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// resources is the machine's capacity.
func (s Shape) resources() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(s.CPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(s.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(s.EphemeralStorage, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(s.Pods, resource.DecimalSI),
	}
	for part := range strings.SplitSeq(s.Extra, ",") {
		if name, value, found := strings.Cut(part, "="); found {
			list[corev1.ResourceName(name)] = resource.MustParse(value)
		}
	}
	return list
}

// compare orders shapes: smallest first, amd64 before others, plain machines before those with further resources. It is total.
func (s Shape) compare(o Shape) int {
	return cmp.Or(
		cmp.Compare(s.HostClass, o.HostClass),
		cmp.Compare(s.CPU, o.CPU),
		cmp.Compare(s.Memory, o.Memory),
		cmp.Compare(archRank(s.Arch), archRank(o.Arch)),
		cmp.Compare(s.Arch, o.Arch),
		cmp.Compare(s.EphemeralStorage, o.EphemeralStorage),
		cmp.Compare(s.Pods, o.Pods),
		cmp.Compare(s.Extra, o.Extra),
	)
}

func archRank(arch string) int {
	if arch == "amd64" {
		return 0
	}
	return 1
}
