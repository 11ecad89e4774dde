// Package owner writes this instance's name on the NodePools that are its own, as an annotation. People read it; and the API server's policy against moving
// a NodePool to another instance's class goes by it, because a policy cannot look up the class that the NodePool named before. Which instance owns a
// NodePool is decided elsewhere, by its class.
//
// It writes that annotation, on own NodePools, and nothing else.
package owner

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// glance is how soon a NodePool is looked at again that somebody else wrote meanwhile.
const glance = time.Second

// Controller annotates NodePools.
type Controller struct {
	// client shows own NodePools only, and refuses to write others.
	client   client.Client
	instance string
}

// NewController makes a Controller. Its client must be the guarded one.
func NewController(c client.Client, instance string) *Controller {
	return &Controller{client: c, instance: instance}
}

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "nodepool.owner" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, mgr manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(mgr).
		Named(c.Name()).
		For(&karpv1.NodePool{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.unnamed))).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(c)
}

// unnamed tells whether a NodePool lacks the name. One that names another instance came from there after its end.
func (c *Controller) unnamed(o client.Object) bool {
	return o.GetAnnotations()[v1beta1.OwnerAnnotation] != c.instance
}

// Reconcile looks at one NodePool.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	pool := &karpv1.NodePool{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: request.Name}, pool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	// A NodePool that has left us is still shown while NodeClaims of it are ours, as another provider's.
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref == nil || ref.Group != v1beta1.Group || !c.unnamed(pool) || !pool.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	named := pool.DeepCopy()
	if named.Annotations == nil {
		named.Annotations = map[string]string{}
	}
	named.Annotations[v1beta1.OwnerAnnotation] = c.instance
	err := c.client.Patch(ctx, named, client.MergeFromWithOptions(pool, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: glance}, nil // it may have left us; the newer object is on its way here
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
