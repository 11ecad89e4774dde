package cloudprovider

import (
	"context"
	"errors"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// Create implements karpenter's CloudProvider. It claims a host and returns its identity; the machine joins later. Called again for
// the same NodeClaim, it returns the same host.
//
// What karpenter does with the errors: InsufficientCapacity and NodeClassNotReady delete the NodeClaim, and its pods are scheduled
// anew; every other error is retried until the launch times out. So only facts about this instance's own hosts and classes become
// the former, and doubts become the latter.
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	name, err := c.ownClaim(nodeClaim)
	if err != nil {
		return nil, err
	}
	if !c.hosts.Synced() {
		return nil, fmt.Errorf("launching NodeClaim %s: %w", nodeClaim.Name, errNotSynced)
	}
	class, err := c.classForSure(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, karpcloud.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, err
	}
	// A NodeClaim that has its host keeps it, whatever has become of the class since.
	if c.hosts.ByClaim(nodeClaim.UID) == nil {
		if err := ready(class); err != nil {
			return nil, err
		}
	}
	types, err := c.typesOf(class, regionOf(nodeClaim))
	if err != nil {
		return nil, err
	}
	held := c.hosts.ByClaim(nodeClaim.UID) != nil
	candidates, why := pick(types.types, nodeClaim)
	// With no candidates too: the claim may hold a host that only the API server knows of yet.
	lingering := ""
	claimed, err := c.hosts.Claim(ctx, host.ClaimRequest{
		Name: nodeClaim.Name, UID: nodeClaim.UID, NodeClass: class.Name, Marker: c.marker(ctx, class), Candidates: candidates,
		Adopt: class.Spec.ProviderIDSource == v1beta1.ProviderIDAdopt,
		Refuse: func(h *v1beta1.SSHHost) (bool, error) {
			former, err := c.formerOf(ctx, h, nodeClaim)
			if former != "" {
				lingering = fmt.Sprintf("; SSHHost %s is free, but its former %s still exists", h.Name, former)
			}
			return former != "", err
		},
	})
	why += lingering
	if err != nil {
		return nil, c.claimFailed(nodeClaim, class, err, why)
	}
	if !held && !nodeClaim.CreationTimestamp.IsZero() {
		metrics.ClaimWait.Observe(max(0, c.clock.Since(nodeClaim.CreationTimestamp.Time).Seconds()))
	}
	created := c.nodeClaimOf(claimed, class)
	created.Annotations = map[string]string{
		v1beta1.NodeClassHashAnnotation:        class.JoinHash(),
		v1beta1.NodeClassHashVersionAnnotation: v1beta1.NodeClassHashVersion,
	}
	return created, nil
}

// formerOf is the NodeClaim that a free host served before, or its Node, while that still exists. Karpenter knows which belong together by
// provider ID, which is the host's: ending the former NodeClaim, it would delete the Node that the host registers for its next one; ending
// the former Node, the next NodeClaim; and with both Nodes there, it registers neither.
func (c *CloudProvider) formerOf(ctx context.Context, h *v1beta1.SSHHost, nodeClaim *karpv1.NodeClaim) (string, error) {
	for _, id := range h.ProviderIDs() {
		named := &karpv1.NodeClaimList{}
		if err := c.kube.List(ctx, named, client.MatchingFields{"status.providerID": id}); err != nil {
			return "", fmt.Errorf("listing the NodeClaims of SSHHost %s: %w", h.Name, err)
		}
		for index := range named.Items {
			if named.Items[index].UID != nodeClaim.UID {
				return "NodeClaim " + named.Items[index].Name, nil
			}
		}
		nodes := &corev1.NodeList{}
		if err := c.kube.List(ctx, nodes, client.MatchingFields{"spec.providerID": id}); err != nil {
			return "", fmt.Errorf("listing the Nodes of SSHHost %s: %w", h.Name, err)
		}
		for index := range nodes.Items {
			if nodes.Items[index].Name != nodeClaim.Name {
				return "Node " + nodes.Items[index].Name, nil
			}
		}
	}
	return "", nil
}

// ready refuses launches with a class that is not ready, or not known to be.
func ready(class *v1beta1.SSHNodeClass) error {
	if !class.DeletionTimestamp.IsZero() {
		return karpcloud.NewNodeClassNotReadyError(fmt.Errorf("SSHNodeClass %s is being deleted", class.Name))
	}
	condition := class.StatusConditions().Get(status.ConditionReady)
	switch {
	case condition.IsFalse():
		return karpcloud.NewNodeClassNotReadyError(fmt.Errorf("SSHNodeClass %s: %s: %s", class.Name, condition.Reason, condition.Message))
	case condition.IsUnknown():
		return karpcloud.NewCreateError(fmt.Errorf("SSHNodeClass %s has not been checked yet", class.Name),
			"NodeClassReadinessUnknown", "it is not known yet whether SSHNodeClass "+class.Name+" is ready")
	}
	return nil
}

// marker is what a host has installed if the class's profile needs no installing. It is a preference, so whatever keeps it from
// being read is left to the join to report.
func (c *CloudProvider) marker(ctx context.Context, class *v1beta1.SSHNodeClass) string {
	profile := &v1beta1.SSHJoinProfile{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, profile); err != nil {
		return ""
	}
	return profile.Marker()
}

// claimFailed turns the inventory's answer into karpenter's errors and tells people.
func (c *CloudProvider) claimFailed(nodeClaim *karpv1.NodeClaim, class *v1beta1.SSHNodeClass, err error, why string) error {
	failed, reason := fmt.Errorf("NodeClaim %s, SSHNodeClass %s: %w", nodeClaim.Name, class.Name, err), "error"
	switch {
	case errors.Is(err, host.ErrNoHost):
		reason = "no_host"
		failed = karpcloud.NewInsufficientCapacityError(fmt.Errorf("%w: %s", failed, why))
	case errors.Is(err, host.ErrEnding):
		reason = "ending"
		// Its join failed for good, or it was deleted: this NodeClaim is over, and another will be made for its pods.
		failed = karpcloud.NewInsufficientCapacityError(failed)
	}
	metrics.ClaimFailures.WithLabelValues(reason).Inc()
	c.recorder.Publish(events.Event{
		InvolvedObject: nodeClaim, Type: corev1.EventTypeWarning, Reason: "CreateFailed", Message: failed.Error(),
		DedupeValues: []string{string(nodeClaim.UID)},
	})
	return failed
}
