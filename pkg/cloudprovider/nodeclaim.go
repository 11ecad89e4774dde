package cloudprovider

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
)

// nodeClaimOf is karpenter's view of a claimed host. Karpenter schedules on it before the Node exists, so it carries every label
// and resource that the Node will have; a gap makes karpenter launch a second node for the same pod.
func (c *CloudProvider) nodeClaimOf(h *v1beta1.SSHHost, class *v1beta1.SSHNodeClass) *karpv1.NodeClaim {
	ref := h.Status.ClaimRef
	shape, _ := instancetype.ShapeOf(h) // a host that is claimed is counted, whatever became of its spec
	nodeClaim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: ref.Name, UID: ref.UID, CreationTimestamp: h.CreationTimestamp,
			Labels: map[string]string{
				corev1.LabelInstanceTypeStable: instancetype.NameOfClaim(h),
				corev1.LabelArchStable:         shape.Arch,
				corev1.LabelOSStable:           string(corev1.Linux),
				corev1.LabelTopologyZone:       instancetype.ZoneOf(class, h),
				karpv1.CapacityTypeLabelKey:    karpv1.CapacityTypeOnDemand,
				v1beta1.InstanceLabel:          c.instance,
				v1beta1.HostClassLabel:         shape.HostClass,
			},
		},
		Status: karpv1.NodeClaimStatus{
			ProviderID:  h.EffectiveProviderID(),
			Capacity:    instancetype.Capacity(class, shape),
			Allocatable: instancetype.Allocatable(class, shape),
		},
	}
	if ref.ClaimedAt != nil {
		nodeClaim.CreationTimestamp = *ref.ClaimedAt
	}
	if ref.NodeClass != "" {
		nodeClaim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: ref.NodeClass}
	}
	if h.Status.State == v1beta1.HostLeaving {
		// To karpenter the machine is terminating, and does not stand for a NodeClaim that is to live.
		nodeClaim.DeletionTimestamp = &metav1.Time{Time: c.clock.Now()}
	}
	return nodeClaim
}
