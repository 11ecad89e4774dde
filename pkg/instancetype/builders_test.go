package instancetype

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// hostOption changes a host that is made for a test.
type hostOption func(*v1beta1.SSHHost)

// available makes a probed, claimable host of host class `class` (empty: no label) with cpu cores and memory.
func available(name, class, cpu, memory string, options ...hostOption) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "pool", UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(1000, 0)), Labels: map[string]string{}},
		Spec: v1beta1.SSHHostSpec{Address: "192.0.2.11", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
	}
	if class != "" {
		h.Labels[v1beta1.HostClassLabel] = class
	}
	for _, option := range options {
		option(h)
	}
	return h
}

func arch(a string) hostOption { return func(h *v1beta1.SSHHost) { h.Status.ObservedArch = a } }

func zone(z string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Labels[corev1.LabelTopologyZone] = z }
}

func state(s v1beta1.HostState) hostOption { return func(h *v1beta1.SSHHost) { h.Status.State = s } }

func capacity(name corev1.ResourceName, quantity string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Spec.Capacity[name] = resource.MustParse(quantity) }
}

func maintenance(h *v1beta1.SSHHost) {
	h.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""}
}

func leavePending(h *v1beta1.SSHHost) {
	h.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionLeavePending, Status: metav1.ConditionTrue}}
}

func claimedAs(instanceType string) hostOption {
	return func(h *v1beta1.SSHHost) {
		h.Status.State = v1beta1.HostInUse
		h.Status.ClaimRef = &v1beta1.ClaimReference{Name: "claim-" + h.Name, UID: "uid-" + h.UID, NodeClass: "web", InstanceType: instanceType}
	}
}

func webClass() *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1beta1.SSHNodeClassSpec{PricePerCPUHour: "0.02"}}
}

// listing is ForClass of these hosts, all of them selected.
func listing(hosts ...*v1beta1.SSHHost) []Type {
	return ForClass(Inputs{Class: webClass(), Selected: hosts, Held: hosts, Instance: "default"})
}

// summary is `name arch cpu zone:free,...` for every type; a zone without free hosts has 0, an offering for any zone is `*`.
func summary(types []Type) []string {
	lines := make([]string, 0, len(types))
	for _, t := range types {
		line := fmt.Sprintf("%s %s %s", t.Name, t.Requirements.Get(corev1.LabelArchStable).Any(), t.Capacity.Cpu())
		for index, z := range t.Zones {
			if t.Offerings[index].Available != (len(z.Free) > 0) {
				line += " INCONSISTENT"
			}
			line += fmt.Sprintf(" %s:%d", z.Name, len(z.Free))
		}
		if len(t.Offerings) > len(t.Zones) {
			line += " *"
		}
		lines = append(lines, line)
	}
	return lines
}
