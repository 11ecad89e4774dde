// Package nodeclass reconciles the SSHNodeClasses that this instance owns. It decides whether NodePools may launch nodes with a class,
// and says why not in words a person can act on; it counts the class's hosts; and it keeps a class from vanishing while NodeClaims
// name it.
//
// It writes the status and the finalizer of own classes, and nothing else. Classes of other instances it does not touch.
package nodeclass

import (
	"cmp"
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

const (
	// recheck is how soon what no watch tells of is looked at again: ConfigMap cluster-info, and NodeClaims that are hidden from
	// this instance's caches.
	recheck = 30 * time.Second
	// youth is how long a class that is not known to be ours is expected to turn out to be: the watch that fills the set of own classes is
	// not the one that brought the class here. It may be late by more; then the class is looked at less often.
	youth = time.Minute
	// glance is how soon such a class is looked at again.
	glance = time.Second
)

// Options are what a Controller works with. All are required.
type Options struct {
	Inventory *host.Inventory
	// Client reads from the caches and writes; Live reads from the API server.
	Client client.Client
	Live   client.Reader
	// Instance is this instance's name; Mine tells whether the set of own classes has a class.
	Instance  string
	Mine      func(class string) bool
	Discovery *bootstrap.Discovery
	Recorder  events.EventRecorder
	Clock     clock.Clock
}

// Controller reconciles SSHNodeClasses.
type Controller struct {
	Options
	index index
	// validated remembers which versions of profiles are sound, so that none is parsed twice.
	validated verdicts
}

// NewController makes a Controller.
func NewController(o Options) *Controller {
	return &Controller{Options: o, index: newIndex(), validated: newVerdicts()}
}

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "sshnodeclass" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, mgr manager.Manager) error {
	b := controllerruntime.NewControllerManagedBy(mgr).
		Named(c.Name()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 4,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, recheck),
		})
	return c.watch(b).Complete(c)
}

// Reconcile looks at one class.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	class := &v1beta1.SSHNodeClass{}
	if err := c.Client.Get(ctx, request.NamespacedName, class); err != nil {
		c.index.forget(request.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !c.Mine(class.Name) {
		c.index.forget(class.Name)
		switch {
		case cmp.Or(class.Spec.Instance, v1beta1.DefaultInstance) != c.Instance:
			return reconcile.Result{}, nil // another instance's
		case c.Clock.Since(class.CreationTimestamp.Time) < youth:
			return reconcile.Result{RequeueAfter: glance}, nil
		}
		return reconcile.Result{RequeueAfter: recheck}, nil // no event will tell when it is known
	}
	c.index.note(class)
	if !c.Inventory.Synced() {
		return reconcile.Result{RequeueAfter: glance}, nil // counts would be wrong, and NoHosts a lie
	}
	step := c.ready
	if !class.DeletionTimestamp.IsZero() {
		step = c.terminate
	}
	result, err := step(ctx, class)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: glance}, nil // the newer object is on its way here
	}
	return result, err
}

// ready reports whether nodes can be launched with the class.
func (c *Controller) ready(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(class, v1beta1.TerminationFinalizer) {
		held := class.DeepCopy()
		controllerutil.AddFinalizer(held, v1beta1.TerminationFinalizer)
		if err := c.Client.Patch(ctx, held, client.MergeFromWithOptions(class, client.MergeFromWithOptimisticLock{})); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		class = held
	}
	finding, err := c.examine(ctx, class)
	if err != nil {
		return reconcile.Result{}, err // nothing is known to be wrong with the class
	}
	if err := c.write(ctx, class, finding); err != nil {
		return reconcile.Result{}, err
	}
	if finding.reason == v1beta1.ReasonClusterUnknown || finding.passing || finding.rollout.passing() {
		return reconcile.Result{RequeueAfter: recheck}, nil
	}
	return reconcile.Result{}, nil
}

// write puts a finding into the class's status, if it says anything new.
func (c *Controller) write(ctx context.Context, class *v1beta1.SSHNodeClass, f finding) error {
	told := class.DeepCopy()
	told.Status.Hosts, told.Status.Free = f.hosts, f.free
	changed := f.tell(told, c.Clock)
	if rollout := f.rollout.condition(); rollout != nil {
		changed = told.TellCondition(*rollout, c.Clock.Now()) || changed
	}
	if !changed && told.Status.Hosts == class.Status.Hosts && told.Status.Free == class.Status.Free {
		return nil
	}
	log.FromContext(ctx).V(1).Info("status of the class changed", "ready", f.reason == "", "reason", f.reason, "hosts", f.hosts, "free", f.free)
	if err := c.Client.Status().Patch(ctx, told, client.MergeFromWithOptions(class, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	f.checked.announce(c.Recorder, class, told)
	return nil
}
