package cloudprovider

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Get implements karpenter's CloudProvider. Karpenter strips the finalizer of a NotReady Node when this answers NodeClaimNotFound, so
// it does so only when no claim holds the machine, never because the machine does not answer.
func (c *CloudProvider) Get(ctx context.Context, providerID string) (*karpv1.NodeClaim, error) {
	if c.elsewhere(providerID) {
		return nil, fmt.Errorf("provider ID %s: %w", providerID, errNotOurs)
	}
	if !c.hosts.Synced() {
		return nil, fmt.Errorf("provider ID %s: %w", providerID, errNotSynced)
	}
	h := c.hosts.ByProviderID(providerID)
	if h == nil || h.Status.ClaimRef == nil {
		var err error
		if h, err = c.readHost(ctx, providerID); err != nil {
			return nil, err
		}
	}
	if h == nil || h.Status.ClaimRef == nil {
		return nil, karpcloud.NewNodeClaimNotFoundError(fmt.Errorf("no claim holds the SSHHost of provider ID %q", providerID))
	}
	class, err := c.classOf(ctx, h)
	if err != nil {
		return nil, err
	}
	return c.nodeClaimOf(h, class), nil
}

// List implements karpenter's CloudProvider: every claimed host of the pool namespace, one whose identity was adopted by both its IDs, or an error. Karpenter deletes the NodeClaims
// of NotReady nodes that are not in it.
func (c *CloudProvider) List(ctx context.Context) ([]*karpv1.NodeClaim, error) {
	if !c.hosts.Synced() {
		return nil, fmt.Errorf("listing machines: %w", errNotSynced)
	}
	nodeClaims, classes := []*karpv1.NodeClaim{}, map[string]*v1beta1.SSHNodeClass{}
	for _, h := range c.hosts.All() {
		if h.Status.ClaimRef == nil {
			continue
		}
		class, known := classes[h.Status.ClaimRef.NodeClass]
		if !known {
			var err error
			if class, err = c.classOf(ctx, h); err != nil {
				return nil, err
			}
			classes[h.Status.ClaimRef.NodeClass] = class
		}
		nodeClaim := c.nodeClaimOf(h, class)
		if static := h.StaticProviderID(); nodeClaim.Status.ProviderID != static {
			// Its NodeClaim may have the provisional ID still: to karpenter, a registered one whose ID is not listed has no machine.
			provisional := nodeClaim.DeepCopy()
			provisional.Status.ProviderID = static
			nodeClaims = append(nodeClaims, provisional)
		}
		nodeClaims = append(nodeClaims, nodeClaim)
	}
	return nodeClaims, nil
}

// classOf is the class of a host's claim; one with defaults if the class is gone or not recorded, for the machine is there all the same.
func (c *CloudProvider) classOf(ctx context.Context, h *v1beta1.SSHHost) (*v1beta1.SSHNodeClass, error) {
	name := h.Status.ClaimRef.NodeClass
	if name == "" {
		return &v1beta1.SSHNodeClass{}, nil
	}
	class, err := c.class(ctx, name)
	if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
		return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	return class, err
}
