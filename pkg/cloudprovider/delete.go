package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// Delete implements karpenter's CloudProvider. It makes the NodeClaim's host leave and returns nil until it has left, then
// NodeClaimNotFound, upon which karpenter lets go of the NodeClaim. Only the claim's own host is touched: a provider ID names a
// machine, which may serve another claim by now.
func (c *CloudProvider) Delete(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	if _, err := c.ownClaim(nodeClaim); err != nil {
		return err
	}
	if !c.hosts.Synced() {
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, errNotSynced)
	}
	h, err := c.hostOf(ctx, nodeClaim)
	if err != nil {
		return err
	}
	if h == nil {
		return gone(nodeClaim)
	}
	err = c.hosts.BeginLeave(ctx, h.Name, nodeClaim.UID, nodeClaim.Name)
	switch {
	case errors.Is(err, host.ErrFenced), apierrors.IsNotFound(err):
		// What was known of the host is out of date. The next call, with what is known now, decides.
		if h, err := c.hostOf(ctx, nodeClaim); err != nil || h != nil {
			return fmt.Errorf("deleting NodeClaim %s: its SSHHost is changing hands: %w", nodeClaim.Name, errors.Join(host.ErrFenced, err))
		}
		return gone(nodeClaim)
	case err != nil:
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err)
	}
	return nil
}

func gone(nodeClaim *karpv1.NodeClaim) error {
	return karpcloud.NewNodeClaimNotFoundError(fmt.Errorf("no SSHHost is held by NodeClaim %s", nodeClaim.Name))
}

// hostOf is the host that a NodeClaim holds, or nil if it certainly holds none. A NodeClaim without a UID, as List makes
// them of old claims, is told by provider ID and name; one without either holds nothing.
func (c *CloudProvider) hostOf(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1beta1.SSHHost, error) {
	if h := c.knownHostOf(nodeClaim); h != nil {
		return h, nil
	}
	if nodeClaim.UID != "" {
		return c.hosts.HeldBy(ctx, nodeClaim.UID)
	}
	h, err := c.readHost(ctx, nodeClaim.Status.ProviderID)
	if err != nil || h == nil || !h.ClaimedBy(nodeClaim.Name, nodeClaim.UID) {
		return nil, err
	}
	return h, nil
}

// knownHostOf is hostOf as far as the inventory knows.
func (c *CloudProvider) knownHostOf(nodeClaim *karpv1.NodeClaim) *v1beta1.SSHHost {
	if nodeClaim.UID != "" {
		if h := c.hosts.ByClaim(nodeClaim.UID); h != nil && h.ClaimedBy(nodeClaim.Name, nodeClaim.UID) {
			return h
		}
	}
	if h := c.hosts.ByProviderID(nodeClaim.Status.ProviderID); h != nil && h.ClaimedBy(nodeClaim.Name, nodeClaim.UID) {
		return h
	}
	return nil
}

// readHost reads the host of a static provider ID from the API server; nil if there is none, or if the ID is not a static one.
func (c *CloudProvider) readHost(ctx context.Context, providerID string) (*v1beta1.SSHHost, error) {
	name, static := strings.CutPrefix(providerID, v1beta1.ProviderIDScheme+c.hosts.Namespace()+"/")
	if !static || name == "" {
		return nil, nil
	}
	h := &v1beta1.SSHHost{}
	err := c.live.Get(ctx, types.NamespacedName{Namespace: c.hosts.Namespace(), Name: name}, h)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading SSHHost %s: %w", name, err)
	}
	return h, nil
}
