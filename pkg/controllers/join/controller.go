package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// Options are what a Controller works with. All are required.
type Options struct {
	Inventory *host.Inventory
	// Client reads from the caches and writes; Live reads from the API server.
	Client client.Client
	Live   client.Reader

	Credentials *credentials.Resolver
	Dialer      Dialer
	Revisions   *profile.Revisions
	Holds       *profile.Holds
	Tokens      *bootstrap.Tokens
	Discovery   *bootstrap.Discovery
	Recorder    events.EventRecorder
	Clock       clock.Clock

	// ClusterUID and Instance are what owner files on machines name.
	ClusterUID, Instance string
	// Concurrency is how many machines are worked on at once.
	Concurrency int
}

// Dialer opens connections: an *ssh.Dialer, but for simulations.
type Dialer interface {
	Connect(ctx context.Context, t ssh.Target) (ssh.Session, error)
}

// Controller reconciles SSHHosts that are claimed or leaving.
type Controller struct {
	Options
	runner    *runner
	names     names
	readiness readiness
	// awaiting are the hosts that wait for a Node whose identity an agent chooses: any new Node may be theirs.
	awaiting sync.Map
	// adopting lets one host at a time take over an identity, so that no two take the same.
	adopting sync.Mutex
	// lookup resolves a DNS name to IP addresses.
	lookup func(ctx context.Context, name string) ([]string, error)
	woken  chan event.TypedGenericEvent[string]
	// ended tells the Prewarmer, if there is one, that an operation has.
	ended chan event.TypedGenericEvent[string]
}

// NewController makes a Controller.
func NewController(o Options) *Controller {
	c := &Controller{Options: o, lookup: net.DefaultResolver.LookupHost, woken: make(chan event.TypedGenericEvent[string], 1024), ended: make(chan event.TypedGenericEvent[string], 1)}
	c.runner = newRunner(o.Clock, o.Concurrency, func(name string) {
		c.woken <- event.TypedGenericEvent[string]{Object: name}
		select {
		case c.ended <- event.TypedGenericEvent[string]{Object: name}:
		default: // one that waits to be seen tells of all
		}
	})
	return c
}

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "sshhost.join" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	if err := m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		c.runner.shutdown()
		return nil
	})); err != nil {
		return err
	}
	if err := m.Add(manager.RunnableFunc(c.pruneRevisions)); err != nil {
		return err
	}
	byName := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, name string) []reconcile.Request { return c.request(name) })
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(c.Inventory.Source(concerns)).
		WatchesRawSource(source.Channel(c.woken, byName)).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.hostOfClaim)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.hostOfNode)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 16, // reconciles decide and write; they never wait for a machine
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, 30*time.Second),
		}).
		Complete(c)
}

// Drive is Register for a caller that has no manager and calls Reconcile itself: wake is called for each host whose operation has ended.
// It returns once ctx has ended and nothing of this controller touches a machine any more.
func (c *Controller) Drive(ctx context.Context, wake func(host string)) {
	for {
		select {
		case e := <-c.woken:
			wake(e.Object)
		case <-ctx.Done():
			c.runner.shutdown()
			return
		}
	}
}

// concerns lets a host's change pass if the decision may depend on it; probes of free hosts do not come here.
func concerns(was, is *v1beta1.SSHHost) bool {
	return is.Status.ClaimRef != nil || host.State(is) == v1beta1.HostLeaving || len(is.Finalizers) > 0 || (was != nil && was.Status.ClaimRef != nil) ||
		host.Prewarming(is) || was != nil && host.Prewarming(was) || host.State(is) == v1beta1.HostClaimed || host.State(is) == v1beta1.HostInUse
}

func (c *Controller) request(name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: c.Inventory.Namespace(), Name: name}}}
}

func (c *Controller) hostOfClaim(_ context.Context, o client.Object) []reconcile.Request {
	if h := c.Inventory.ByClaim(o.GetUID()); h != nil {
		return c.request(h.Name)
	}
	return nil
}

func (c *Controller) hostOfNode(_ context.Context, o client.Object) []reconcile.Request {
	node := o.(*corev1.Node)
	id := node.Spec.ProviderID
	if id == "" {
		return nil
	}
	if h := c.Inventory.ByProviderID(id); h != nil {
		return c.request(h.Name)
	}
	if strings.HasPrefix(id, v1beta1.ProviderIDScheme) || c.Clock.Since(node.CreationTimestamp.Time) > newNode {
		return nil // an older one was looked at when the host began to wait
	}
	var requests []reconcile.Request
	c.awaiting.Range(func(name, _ any) bool {
		requests = append(requests, c.request(name.(string))...)
		return true
	})
	return requests
}

// Reconcile looks at one host and starts what has to happen next.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("SSHHost", r.Name))
	h := c.Inventory.Get(r.Name)
	if h == nil {
		c.awaiting.Delete(r.Name)
		c.runner.stop(r.Name, "the SSHHost is gone")
		c.runner.forget(r.Name)
		c.readiness.forget(r.Name)
		return reconcile.Result{}, nil
	}
	facts, err := c.facts(ctx, h)
	if err != nil {
		return reconcile.Result{}, err
	}
	step := decide(facts)
	if step != StepNothing {
		log.FromContext(ctx).V(1).Info("next step", "step", step, "state", h.Status.State)
	}
	result, err := c.act(ctx, facts, step)
	switch {
	case errors.Is(err, host.ErrFenced), apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: time.Second}, nil // decided on something older; look again
	case err != nil:
		return reconcile.Result{}, err
	}
	return result, nil
}

// facts gathers what the decision rests on.
func (c *Controller) facts(ctx context.Context, h *v1beta1.SSHHost) (Facts, error) {
	f := Facts{Host: h}
	if op, found := c.runner.current(h.Name); found {
		f.Running, f.RunningFor = op.kind, op.claim
	}
	ref := h.Status.ClaimRef
	if ref == nil || h.Status.State != v1beta1.HostInUse {
		c.awaiting.Delete(h.Name)
	}
	if ref == nil {
		return f, nil
	}
	var err error
	if f.Claim, err = c.life(ctx, ref); err != nil {
		return f, err
	}
	if h.Status.State == v1beta1.HostInUse {
		if f.Registered, f.NameTaken, err = c.registered(ctx, h); err != nil {
			return f, err
		}
		if f.Claim == Alive {
			if f.Adoption, err = c.adoption(ctx, h, f.Registered); err != nil {
				return f, err
			}
		}
		if since := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionJoined); since != nil {
			f.Waited = c.Clock.Since(since.LastTransitionTime.Time)
		}
	}
	return f, nil
}

// life tells what became of a NodeClaim. "Not in the cache" is never taken for "deleted": the API server is asked.
func (c *Controller) life(ctx context.Context, ref *v1beta1.ClaimReference) (Life, error) {
	for _, reader := range []client.Reader{c.Client, c.Live} {
		claim := &karpv1.NodeClaim{}
		err := reader.Get(ctx, types.NamespacedName{Name: ref.Name}, claim)
		switch {
		case apierrors.IsNotFound(err), err == nil && ref.UID != "" && claim.UID != ref.UID:
			continue
		case err != nil:
			return Alive, fmt.Errorf("reading NodeClaim %s: %w", ref.Name, err)
		case !claim.DeletionTimestamp.IsZero():
			return Deleting, nil
		}
		return Alive, nil
	}
	return Gone, nil
}

// registered tells whether the claim's Node exists, and whether its name is that of a Node of another instance instead. Such a Node is never
// touched; the machine leaves.
func (c *Controller) registered(ctx context.Context, h *v1beta1.SSHHost) (registered, taken bool, err error) {
	if id := h.EffectiveProviderID(); id != h.StaticProviderID() { // an agent chose it, and the Node's name perhaps
		nodes := &corev1.NodeList{}
		if err := c.Client.List(ctx, nodes, client.MatchingFields{"spec.providerID": id}); err != nil {
			return false, false, fmt.Errorf("listing the Nodes with provider ID %s: %w", id, err)
		}
		if len(nodes.Items) > 0 && !ownership.Masked(&nodes.Items[0]) {
			c.readiness.observe(h.Name, h.Status.ClaimRef, &nodes.Items[0])
			return true, false, nil
		}
	}
	node := &corev1.Node{}
	err = c.Client.Get(ctx, types.NamespacedName{Name: h.Status.ClaimRef.Name}, node)
	if apierrors.IsNotFound(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("reading Node %s: %w", h.Status.ClaimRef.Name, err)
	}
	id := node.Spec.ProviderID
	if registered = id == h.EffectiveProviderID(); registered {
		c.readiness.observe(h.Name, h.Status.ClaimRef, node)
	}
	return registered, !registered && strings.HasPrefix(id, v1beta1.ProviderIDScheme) && id != h.StaticProviderID(), nil
}

func joined(h *v1beta1.SSHHost) bool {
	return apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionJoined)
}

// act carries a step out, or starts it.
func (c *Controller) act(ctx context.Context, f Facts, step Step) (reconcile.Result, error) {
	h := f.Host
	switch step {
	case StepHold, StepUnhold:
		if step == StepUnhold {
			c.runner.forget(h.Name)
		}
		return reconcile.Result{}, c.Inventory.SetFinalizer(ctx, h.Name, step == StepHold)
	case StepHeal:
		return reconcile.Result{}, c.heal(ctx, h)
	case StepBringUp:
		return c.begin(h, v1beta1.OperationJoin, c.bringUp)
	case StepAdopt:
		return reconcile.Result{}, c.adopt(ctx, h, f.Adoption)
	case StepAwaitNode:
		return c.awaitNode(ctx, f)
	case StepGiveUp:
		return reconcile.Result{}, c.giveUp(ctx, f)
	case StepEndClaim:
		c.runner.stop(h.Name, "the claim has ended")
		return reconcile.Result{}, c.Inventory.BeginLeave(ctx, h.Name, h.Status.ClaimRef.UID, h.Status.ClaimRef.Name)
	case StepDrain:
		c.event(h, corev1.EventTypeNormal, "WaitingForDrain", "the SSHHost is being deleted: NodeClaim %s is deleted first, so that its node is drained and leaves", h.Status.ClaimRef.Name)
		return reconcile.Result{RequeueAfter: 30 * time.Second}, c.deleteNodeClaim(ctx, h.Status.ClaimRef)
	case StepRelease:
		return c.release(ctx, f)
	case StepStop:
		c.runner.stop(h.Name, "the host is not free any more")
		return reconcile.Result{}, nil
	case StepClear:
		return reconcile.Result{}, c.clearPrewarm(ctx, h)
	case StepLeave:
		return c.begin(h, v1beta1.OperationLeave, c.leave)
	}
	return reconcile.Result{}, nil
}

// begin starts an operation on a host unless it runs or rests. The operation works on the newest form of the host, and only if that still
// asks for it: an operation may have ended, and changed the host, between this reconcile's look and now.
func (c *Controller) begin(h *v1beta1.SSHHost, kind v1beta1.OperationType, run func(context.Context, *v1beta1.SSHHost, int32) error) (reconcile.Result, error) {
	t := task{kind: kind, claim: claimUID(h)}
	wait := c.runner.start(h.Name, t, func(ctx context.Context, attempt int32) error {
		newest := c.Inventory.Get(h.Name)
		if newest == nil || newest.UID != h.UID || newest.Status.State != h.Status.State || claimUID(newest) != t.claim {
			return host.ErrFenced
		}
		return run(log.IntoContext(ctx, log.Log.WithName(c.Name()).WithValues("SSHHost", h.Name, "operation", kind)), newest, attempt)
	})
	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return reconcile.Result{}, nil
}

func claimUID(h *v1beta1.SSHHost) types.UID {
	if h.Status.ClaimRef == nil {
		return ""
	}
	return h.Status.ClaimRef.UID
}

// heal gives a host in an impossible state back to the probe, which finds out what the machine is.
func (c *Controller) heal(ctx context.Context, h *v1beta1.SSHHost) error {
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if step := decide(Facts{Host: h}); step != StepHeal {
			return host.ErrFenced
		}
		host.MarkReleased(h, host.Release{State: v1beta1.HostPending}, c.Clock.Now())
		return nil
	})
	return err
}

// release frees a host whose machine never began to join. An install that still runs is stopped first, and awaited.
func (c *Controller) release(ctx context.Context, f Facts) (reconcile.Result, error) {
	if f.Running != "" {
		c.runner.stop(f.Host.Name, "the claim has ended")
		return reconcile.Result{}, nil // its end wakes this host
	}
	uid := claimUID(f.Host)
	_, err := c.Inventory.Update(ctx, f.Host.Name, func(h *v1beta1.SSHHost) error {
		if !host.Leaves(h, uid) || host.Touched(h) {
			return host.ErrFenced
		}
		host.MarkReleased(h, restState(h, c.Clock.Now()), c.Clock.Now())
		return nil
	})
	if err == nil {
		c.runner.forget(f.Host.Name)
		c.event(f.Host, corev1.EventTypeNormal, "Released", "the claim ended before the machine joined")
	}
	return reconcile.Result{}, err
}

// restState is where a host goes that is done with a claim: Available, or Unhealthy until the pause after a failed join is over.
func restState(h *v1beta1.SSHHost, now time.Time) host.Release { // MarkReleased says so if it is in quarantine
	if f := h.Status.Failures; f != nil && f.NotBefore != nil && now.Before(f.NotBefore.Time) {
		return host.Release{State: v1beta1.HostUnhealthy, Reason: f.LastReason, Message: h.Status.LastProbeError}
	}
	return host.Release{State: v1beta1.HostAvailable}
}

// deleteNodeClaim deletes exactly the NodeClaim that a host is held for, never a successor of the same name.
func (c *Controller) deleteNodeClaim(ctx context.Context, ref *v1beta1.ClaimReference) error {
	claim := &karpv1.NodeClaim{}
	claim.Name = ref.Name
	if err := c.Client.Get(ctx, types.NamespacedName{Name: ref.Name}, claim); err != nil {
		return client.IgnoreNotFound(err)
	}
	if claim.UID != ref.UID || !claim.DeletionTimestamp.IsZero() {
		return nil
	}
	err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (c *Controller) event(h *v1beta1.SSHHost, kind, reason, format string, args ...any) {
	c.Recorder.Eventf(h, nil, kind, reason, reason, format, args...)
}
