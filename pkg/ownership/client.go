package ownership

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// foreignGroupPrefix turns a nodeClassRef's group into one that no provider has.
const foreignGroupPrefix = "foreign."

// guardedClient is the manager's client: it reads through the filtered cache and writes only what is ours.
//
// Every write passes admit: it must be ours, and one that begins a voluntary disruption must come in this instance's turn.
type guardedClient struct {
	client.Client
	live client.Reader // reads the API server itself
	seam *Seam
}

func (c *guardedClient) admit(ctx context.Context, v verb, o client.Object) error {
	if err := c.seam.guard.check(ctx, c.live, v, o); err != nil {
		return err
	}
	if beginsDisruption(ctx, o) {
		return c.seam.turn.Admit(ctx)
	}
	return nil
}

// Get reads the cache. A NodePool that was pointed at another instance's class has left it, but core's state fails on each of the
// pool's remaining own NodeClaims until it can read the pool; for as long as there are any, it is read live and shown as another
// provider's.
func (c *guardedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	if err == nil {
		err = c.reportable(ctx, o)
	}
	pool, ok := o.(*karpv1.NodePool)
	if !ok || !apierrors.IsNotFound(err) || !c.hasClaims(ctx, key.Name) {
		return err
	}
	if err := c.live.Get(ctx, key, pool); err != nil {
		return err
	}
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref == nil {
		pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: foreignGroupPrefix}
	} else if !ownRef(c.seam.classes.Snapshot(), ref) {
		ref.Group = foreignGroupPrefix + ref.Group
	}
	return nil
}

// hasClaims asks the cache for own NodeClaims of a pool.
func (c *guardedClient) hasClaims(ctx context.Context, pool string) bool {
	claims := &karpv1.NodeClaimList{}
	err := c.List(ctx, claims, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}, client.Limit(1), client.UnsafeDisableDeepCopy)
	return err == nil && len(claims.Items) > 0
}

func (c *guardedClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := c.admit(ctx, verbCreate, o); err != nil {
		return err
	}
	return c.Client.Create(ctx, o, opts...)
}

func (c *guardedClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := c.admit(ctx, verbUpdate, o); err != nil {
		return err
	}
	return c.Client.Update(ctx, o, opts...)
}

func (c *guardedClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := c.admit(ctx, verbPatch, o); err != nil {
		return err
	}
	return c.Client.Patch(ctx, o, patch, opts...)
}

func (c *guardedClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := c.admit(ctx, verbDelete, o); err != nil {
		return err
	}
	return c.Client.Delete(ctx, o, opts...)
}

func (c *guardedClient) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if err := c.seam.guard.checkAll(ctx, o); err != nil {
		return err
	}
	return c.Client.DeleteAllOf(ctx, o, opts...)
}

func (c *guardedClient) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	if err := c.seam.guard.checkApply(ctx, c.live, config); err != nil {
		return err
	}
	return c.Client.Apply(ctx, config, opts...)
}

func (c *guardedClient) Status() client.SubResourceWriter { return c.SubResource("status") }

func (c *guardedClient) SubResource(name string) client.SubResourceClient {
	return &guardedSubResource{SubResourceClient: c.Client.SubResource(name), client: c}
}

// guardedSubResource guards the writes of one subresource by the object that has it.
type guardedSubResource struct {
	client.SubResourceClient
	client *guardedClient
}

func (s *guardedSubResource) Create(ctx context.Context, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
	if err := s.client.admit(ctx, verbUpdate, o); err != nil { // the object exists: what is created hangs on it
		return err
	}
	return s.SubResourceClient.Create(ctx, o, sub, opts...)
}

func (s *guardedSubResource) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if s.client.othersStatus(ctx, o) {
		return nil
	}
	if err := s.client.admit(ctx, verbUpdate, o); err != nil {
		return err
	}
	return s.SubResourceClient.Update(ctx, o, opts...)
}

func (s *guardedSubResource) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if s.client.othersStatus(ctx, o) {
		return nil
	}
	if err := s.client.admit(ctx, verbPatch, o); err != nil {
		return err
	}
	return s.SubResourceClient.Patch(ctx, o, patch, opts...)
}

func (s *guardedSubResource) Apply(ctx context.Context, config runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
	if err := s.client.seam.guard.checkApply(ctx, s.client.live, config); err != nil {
		return err
	}
	return s.SubResourceClient.Apply(ctx, config, opts...)
}
