package cloudprovider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// errNotOurs is what is said about objects of other instances and other providers. Karpenter retries it, which harms nobody.
var errNotOurs = errors.New("not an object of this instance")

// errNotSynced means that the inventory is not complete yet, so that nothing may be called absent.
var errNotSynced = errors.New("the SSHHosts have not all been read yet")

// own is the name of the SSHNodeClass that a reference names, if it is one of this instance's.
func (c *CloudProvider) own(ref *karpv1.NodeClassReference) (string, bool) {
	if ref == nil || ref.Group != v1beta1.Group || ref.Kind != "SSHNodeClass" || !c.mine(ref.Name) {
		return "", false
	}
	return ref.Name, true
}

// ownClaim is own for a NodeClaim, which must not name a machine of another instance either: such a claim is nobody's.
func (c *CloudProvider) ownClaim(nodeClaim *karpv1.NodeClaim) (string, error) {
	if nodeClaim == nil {
		return "", errNotOurs
	}
	name, ours := c.own(nodeClaim.Spec.NodeClassRef)
	if !ours || c.elsewhere(nodeClaim.Status.ProviderID) {
		return "", fmt.Errorf("NodeClaim %s: %w", nodeClaim.Name, errNotOurs)
	}
	return name, nil
}

// elsewhere tells whether a provider ID names a host of another pool namespace.
func (c *CloudProvider) elsewhere(providerID string) bool {
	rest, static := strings.CutPrefix(providerID, v1beta1.ProviderIDScheme)
	return static && !strings.HasPrefix(rest, c.hosts.Namespace()+"/")
}

// class reads a class from the cache. Errors: NotFound, errNotOurs when the object names another instance, else retryable ones.
func (c *CloudProvider) class(ctx context.Context, name string) (*v1beta1.SSHNodeClass, error) {
	class := &v1beta1.SSHNodeClass{}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return nil, fmt.Errorf("reading SSHNodeClass %s: %w", name, err)
	}
	return class, c.check(class)
}

// classForSure is class, but believes that the class is gone only if the API server says so.
func (c *CloudProvider) classForSure(ctx context.Context, name string) (*v1beta1.SSHNodeClass, error) {
	class, err := c.class(ctx, name)
	if !apierrors.IsNotFound(err) {
		return class, err
	}
	class = &v1beta1.SSHNodeClass{}
	if err := c.live.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
		return nil, fmt.Errorf("reading SSHNodeClass %s: %w", name, err)
	}
	return class, c.check(class)
}

// check refuses a class that was deleted and made again for another instance, before mine has heard of it.
func (c *CloudProvider) check(class *v1beta1.SSHNodeClass) error {
	if cmp.Or(class.Spec.Instance, v1beta1.DefaultInstance) != c.instance {
		return fmt.Errorf("SSHNodeClass %s: %w", class.Name, errNotOurs)
	}
	return nil
}
