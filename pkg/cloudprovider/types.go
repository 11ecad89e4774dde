package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
)

// listing is the instance types of one class, for as long as neither the class nor what the hosts can offer changes. It is shared:
// read only.
type listing struct {
	classUID        types.UID
	classGeneration int64
	hostGeneration  uint64
	types           []instancetype.Type
	offered         []*karpcloud.InstanceType
}

type listingKey struct{ class, region string }

// Owns tells whether a NodePool, which may be nil, is this instance's.
func (c *CloudProvider) Owns(nodePool *karpv1.NodePool) bool {
	if nodePool == nil {
		return false
	}
	_, ours := c.own(nodePool.Spec.Template.Spec.NodeClassRef)
	return ours
}

// GetInstanceTypes implements karpenter's CloudProvider: every type of an own NodePool's class, those that cannot be had now too.
// Empty for other providers' and other instances' NodePools.
func (c *CloudProvider) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloud.InstanceType, error) {
	if !c.Owns(nodePool) {
		return nil, nil
	}
	name := nodePool.Spec.Template.Spec.NodeClassRef.Name
	class, err := c.class(ctx, name)
	switch {
	case errors.Is(err, errNotOurs):
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, c.refuseEmpty(name, err)
	case err != nil:
		return nil, err
	}
	types, err := c.typesOf(class, nodePool.Spec.Template.Labels[corev1.LabelTopologyRegion])
	if err != nil {
		return nil, err
	}
	return slices.Clone(types.offered), nil // karpenter sorts what it gets in place
}

// refuseEmpty keeps an empty list from karpenter while nodes of the class exist: it would take them all for drifted.
func (c *CloudProvider) refuseEmpty(class string, cause error) error {
	if held := c.heldFor(class, nil); len(held) > 0 {
		return fmt.Errorf("%d SSHHosts hold claims of a class that cannot be read: %w", len(held), cause)
	}
	return nil
}

// typesOf is a class's instance types. Computing them takes time in proportion to the hosts; asking again takes none.
func (c *CloudProvider) typesOf(class *v1beta1.SSHNodeClass, region string) (*listing, error) {
	if !c.hosts.Synced() {
		return nil, fmt.Errorf("instance types of SSHNodeClass %s: %w", class.Name, errNotSynced)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Read before the hosts are: a change in between makes the next call compute again, instead of being missed.
	generation := c.hosts.Generation()
	key := listingKey{class.Name, region}
	if found := c.listings[key]; found != nil && found.hostGeneration == generation && found.classUID == class.UID && found.classGeneration == class.Generation {
		return found, nil
	}
	selected, err := c.hosts.Selected(class)
	if err != nil {
		return nil, err
	}
	made := &listing{classUID: class.UID, classGeneration: class.Generation, hostGeneration: generation}
	made.types = instancetype.ForClass(instancetype.Inputs{
		Class: class, Selected: selected, Held: c.heldFor(class.Name, selected), Instance: c.instance, Region: region,
	})
	made.offered = make([]*karpcloud.InstanceType, 0, len(made.types))
	for _, t := range made.types {
		made.offered = append(made.offered, t.InstanceType)
	}
	maps.DeleteFunc(c.listings, func(_ listingKey, old *listing) bool { return old.hostGeneration != generation })
	c.listings[key] = made
	return made, nil
}

// heldFor is the hosts that claims of a class hold. A claim that does not record its class was made before classes were recorded; it is
// counted where its host is selected.
func (c *CloudProvider) heldFor(class string, selected []*v1beta1.SSHHost) []*v1beta1.SSHHost {
	var held []*v1beta1.SSHHost
	for _, h := range c.hosts.All() {
		if h.Status.ClaimRef != nil && h.Status.ClaimRef.NodeClass == class {
			held = append(held, h)
		}
	}
	for _, h := range selected {
		if h.Status.ClaimRef != nil && h.Status.ClaimRef.NodeClass == "" {
			held = append(held, h)
		}
	}
	return held
}
