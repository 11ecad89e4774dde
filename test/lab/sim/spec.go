package sim

import (
	"context"
	"fmt"
	"maps"
	"net"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Spec says what a simulated machine is. The zero value of every field but Name has a default.
type Spec struct {
	// Name of the machine, and of its SSHHost: a DNS label.
	Name string
	// CPU is the number of cores. Default: 4
	CPU int
	// Memory in total. Default: 8Gi
	Memory resource.Quantity
	// Arch as Kubernetes spells it: amd64 or arm64. Default: amd64
	Arch string
	// Resources that the Node reports besides cpu and memory. Default: 110 pods, 100Gi of ephemeral storage
	Resources corev1.ResourceList
	// NodeIP is the InternalIP of the machine's Node; nobody dials it. Default: one of 10.77.0.0/16 that is the machine's alone.
	NodeIP string
	// ClockSkew in seconds.
	ClockSkew int
}

func (s *Spec) setDefaults(index int) error {
	if s.Name == "" {
		return fmt.Errorf("a simulated machine needs a name")
	}
	if s.CPU == 0 {
		s.CPU = 4
	}
	if s.Memory.IsZero() {
		s.Memory = resource.MustParse("8Gi")
	}
	if s.Arch == "" {
		s.Arch = "amd64"
	}
	if s.NodeIP == "" {
		s.NodeIP = net.IPv4(10, 77, byte(index>>8), byte(index)).String()
	}
	if net.ParseIP(s.NodeIP) == nil {
		return fmt.Errorf("machine %s: NodeIP %q is no IP address", s.Name, s.NodeIP)
	}
	return nil
}

// capacity is what the machine's Node reports.
func (s *Spec) capacity() corev1.ResourceList {
	capacity := corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("110")}
	maps.Copy(capacity, s.Resources)
	capacity[corev1.ResourceCPU] = *resource.NewQuantity(int64(s.CPU), resource.DecimalSI)
	capacity[corev1.ResourceMemory] = s.Memory
	return capacity
}

// uname is what `uname -m` prints on such a machine.
func (s *Spec) uname() string {
	switch s.Arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return s.Arch
}

// background is the context of everything that ends by being told to, not with the call that started it.
func background() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
