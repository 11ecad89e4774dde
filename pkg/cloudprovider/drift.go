package cloudprovider

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Drift reasons; part of the API.
const (
	// ProfileDrift: the machine joined with another profile, or version of it, than the class names now.
	ProfileDrift karpcloud.DriftReason = "ProfileDrift"
	// NodeClassDrift: what the class passes to machines at join has changed since.
	NodeClassDrift karpcloud.DriftReason = "NodeClassDrift"
)

// IsDrifted implements karpenter's CloudProvider. Where something is missing that the verdict needs, it abstains: a node that is
// rolled by mistake costs more than one that is rolled late.
func (c *CloudProvider) IsDrifted(ctx context.Context, nodeClaim *karpv1.NodeClaim) (karpcloud.DriftReason, error) {
	name, err := c.ownClaim(nodeClaim)
	if err != nil || nodeClaim.Status.ProviderID == "" {
		return "", nil
	}
	h := c.knownHostOf(nodeClaim)
	if h == nil || h.Status.State == v1beta1.HostLeaving {
		return "", nil
	}
	class, err := c.class(ctx, name)
	if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	switch drifted, err := c.profileDrifted(ctx, class, h); {
	case err != nil:
		return "", err
	case drifted:
		return ProfileDrift, nil
	}
	stamped, version := nodeClaim.Annotations[v1beta1.NodeClassHashAnnotation], nodeClaim.Annotations[v1beta1.NodeClassHashVersionAnnotation]
	if stamped != "" && version == v1beta1.NodeClassHashVersion && stamped != class.JoinHash() {
		return NodeClassDrift, nil
	}
	return "", nil
}

func (c *CloudProvider) profileDrifted(ctx context.Context, class *v1beta1.SSHNodeClass, h *v1beta1.SSHHost) (bool, error) {
	// Until the join script has run, the marker tells what an earlier claim had installed.
	if h.Status.State != v1beta1.HostInUse || h.Status.InstalledProfile == "" {
		return false, nil
	}
	profile := &v1beta1.SSHJoinProfile{}
	err := c.kube.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, profile)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading SSHJoinProfile %s: %w", class.Spec.JoinProfileRef.Name, err)
	}
	return h.Status.InstalledProfile != profile.Marker() && !heldBack(class, profile.Marker()), nil
}

// heldBack tells whether drift to a version waits until it has gone through the free hosts, or has been stopped there: a replacement that
// joins a prewarmed host takes seconds, and a version that cannot be installed replaces no node.
func heldBack(class *v1beta1.SSHNodeClass, marker string) bool {
	if class.Spec.Prewarm == nil {
		return false
	}
	for _, condition := range class.Status.Conditions {
		if condition.Type == v1beta1.ConditionPrewarmed && class.Status.PrewarmProfile == marker {
			return condition.Reason == v1beta1.ReasonPrewarming || condition.Reason == v1beta1.ReasonPrewarmStopped
		}
	}
	return true
}
