package instancetype

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// defaultPricePerCPUHour is the API's default, for objects that never passed through it.
const defaultPricePerCPUHour = 0.02

// nodefsEviction is the kubelet's default eviction threshold for nodefs.available. The kubelet keeps it as a float32, so a
// tenth of the disk comes out some bytes larger than a tenth; promising those bytes would promise too much.
var nodefsEviction = float64(float32(0.1))

// Capacity of a node of this shape, as the class counts it.
func Capacity(class *v1beta1.SSHNodeClass, shape Shape) corev1.ResourceList {
	capacity := shape.resources()
	if class.Spec.MaxPods != nil {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(*class.Spec.MaxPods), resource.DecimalSI)
	}
	return capacity
}

// Allocatable is what of Capacity pods can use. It may be negative when the class reserves more than there is.
func Allocatable(class *v1beta1.SSHNodeClass, shape Shape) corev1.ResourceList {
	// The one rule for it is karpenter's, hugepages included.
	return (&cloudprovider.InstanceType{Capacity: Capacity(class, shape), Overhead: overhead(class, shape)}).Allocatable()
}

// overhead is what the kubelet keeps back: the class's reservation, which replaces the default whole, and the kubelet's default
// hard eviction thresholds.
func overhead(class *v1beta1.SSHNodeClass, shape Shape) *cloudprovider.InstanceTypeOverhead {
	reserved := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("80m"), corev1.ResourceMemory: resource.MustParse("300Mi")}
	if len(class.Spec.KubeReserved) > 0 {
		reserved = class.Spec.KubeReserved.DeepCopy()
	}
	return &cloudprovider.InstanceTypeOverhead{
		KubeReserved: reserved,
		EvictionThreshold: corev1.ResourceList{
			corev1.ResourceMemory:           *resource.NewQuantity(100<<20, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(float64(shape.EphemeralStorage)*nodefsEviction), resource.BinarySI),
		},
	}
}

// price per hour: cores times the class's price of one.
func price(class *v1beta1.SSHNodeClass, shape Shape) float64 {
	perCPU, err := strconv.ParseFloat(class.Spec.PricePerCPUHour, 64)
	if err != nil {
		perCPU = defaultPricePerCPUHour
	}
	return float64(shape.CPU) / 1000 * perCPU
}
