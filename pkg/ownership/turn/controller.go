package turn

import (
	"context"
	"errors"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// poll is how soon an instance that waits looks again.
const poll = 2 * time.Second

// Loop is core's disruption controller.
type Loop interface {
	Name() string
	Reconcile(context.Context) (reconciler.Result, error)
}

// Controller runs core's disruption loop in turns.
type Controller struct {
	turn *Turn
	loop Loop
}

// NewController makes a Controller that takes the place of loop. cluster is the state on which the loop decides.
func NewController(t *Turn, loop Loop, cluster *state.Cluster) *Controller {
	t.tainted = func() map[string]struct{} {
		names := map[string]struct{}{}
		for node := range cluster.Nodes() {
			if node.Node != nil && Tainted(node.Node) {
				names[node.Node.Name] = struct{}{}
			}
		}
		return names
	}
	return &Controller{turn: t, loop: loop}
}

// Name is the name of the loop, so that logs and metrics stay what they were.
func (c *Controller) Name() string { return c.loop.Name() }

// Register adds the controller to a manager, as core would.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).Named(c.Name()).
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
}

// Reconcile runs the loop once, if it may.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	run, err := c.turn.Begin(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !run {
		return reconciler.Result{RequeueAfter: poll}, nil
	}
	result, err := c.run(ctx)
	if ended := c.turn.End(ctx); ended != nil {
		log.FromContext(ctx).Error(ended, "the turn of disruption could not be given away; trying again after the next loop")
	}
	if errors.Is(err, ErrNotMyTurn) {
		log.FromContext(ctx).V(1).Info("waiting for the turn to disrupt", "cause", err.Error())
		return reconciler.Result{RequeueAfter: poll}, nil
	}
	return result, err
}

// run runs the loop, which may take long, and shows meanwhile that the holder is alive.
func (c *Controller) run(ctx context.Context) (reconciler.Result, error) {
	renewing, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-renewing.Done():
				return
			case <-c.turn.clock.After(renewal):
				if err := c.turn.Renew(renewing); err != nil && renewing.Err() == nil {
					log.FromContext(ctx).Error(err, "the turn of disruption could not be renewed")
				}
			}
		}
	}()
	defer func() { stop(); <-done }()
	return c.loop.Reconcile(ctx)
}
