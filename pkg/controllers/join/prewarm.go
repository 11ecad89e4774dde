package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

const (
	// failuresThatStop is how many machines a version may fail on before it is installed on no more.
	failuresThatStop = 3
	// prewarmRecheck is how soon a class is looked at again of whose progress no event tells: a Secret that is missing, for one.
	prewarmRecheck = 30 * time.Second
	// prewarmGather is how long changes of hosts are collected.
	prewarmGather = 500 * time.Millisecond
)

// Prewarmer installs the profile of classes that ask for it on free hosts, so that no join has to. It shares the Controller's runner, so at most
// one operation runs on a host, and a claim that takes a host while it is prewarmed cancels that and installs itself.
type Prewarmer struct {
	*Controller

	mu    sync.Mutex
	rolls map[string]*roll // by class
}

// roll is what is remembered of how one version of a profile goes through the free hosts of a class.
type roll struct {
	// of names the version, and what the class passes to it.
	of string
	// pace is how many hosts may be installed at once; it doubles with each that succeeds.
	pace int32
	// failed are the machines that the version failed on.
	failed map[string]struct{}
	// stopped is why it is installed on no more; empty if it is.
	stopped string
}

// NewPrewarmer makes a Prewarmer beside a Controller.
func NewPrewarmer(c *Controller) *Prewarmer {
	return &Prewarmer{Controller: c, rolls: map[string]*roll{}}
}

// Name of the controller, as logs and metrics show it.
func (p *Prewarmer) Name() string { return "sshnodeclass.prewarm" }

// Register adds the controller to a manager.
func (p *Prewarmer) Register(_ context.Context, m manager.Manager) error {
	every := func(ctx context.Context) []reconcile.Request { return p.classes(ctx) }
	return controllerruntime.NewControllerManagedBy(m).
		Named(p.Name()).
		For(&v1beta1.SSHNodeClass{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1beta1.SSHJoinProfile{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request { return every(ctx) }),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			p.Inventory.Subscribe(func(was, is *v1beta1.SSHHost) {
				if !prewarmConcerns(was, is) {
					return
				}
				for _, r := range every(ctx) {
					q.AddAfter(r, prewarmGather)
				}
			})
			return nil
		})).
		WatchesRawSource(source.Channel(p.ended, handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, _ string) []reconcile.Request { return every(ctx) }))).
		Complete(p)
}

// prewarmConcerns tells whether a host's change may change what is to be installed where.
func prewarmConcerns(was, is *v1beta1.SSHHost) bool {
	if was == nil || is == nil {
		return true
	}
	wasFree, _ := host.Claimable(was)
	isFree, _ := host.Claimable(is)
	return wasFree != isFree || was.Status.InstalledProfile != is.Status.InstalledProfile || host.Prewarming(was) != host.Prewarming(is)
}

// classes are the own classes that are, or were, prewarmed.
func (p *Prewarmer) classes(ctx context.Context) []reconcile.Request {
	var found []reconcile.Request
	for _, class := range p.prewarmed(ctx) {
		found = append(found, reconcile.Request{NamespacedName: types.NamespacedName{Name: class.Name}})
	}
	return found
}

// prewarmed are the own classes that ask for it.
func (p *Prewarmer) prewarmed(ctx context.Context) []v1beta1.SSHNodeClass {
	list := &v1beta1.SSHNodeClassList{} // the cache has own classes only
	if err := p.Client.List(ctx, list); err != nil {
		log.FromContext(ctx).Info("classes cannot be listed; prewarming waits", "error", err.Error())
		return nil
	}
	return slices.DeleteFunc(list.Items, func(c v1beta1.SSHNodeClass) bool { return c.Spec.Prewarm == nil || !c.DeletionTimestamp.IsZero() })
}

// Reconcile looks at one class.
func (p *Prewarmer) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	class := &v1beta1.SSHNodeClass{}
	if err := p.Client.Get(ctx, r.NamespacedName, class); err != nil {
		p.forget(r.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if class.Spec.Prewarm == nil || !class.DeletionTimestamp.IsZero() {
		p.forget(class.Name)
		return reconcile.Result{}, p.tell(ctx, class, "", nil)
	}
	if !p.Inventory.Synced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	c, err := p.context(ctx, class)
	if f := fault.Of(err); f != nil {
		if f.Blame != fault.Configuration {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: prewarmRecheck}, p.tell(ctx, class, "", prewarmCondition(metav1.ConditionFalse, v1beta1.ReasonPrewarmStopped, f.Error()))
	}
	found, err := p.survey(ctx, class, c.revision.Marker())
	if err != nil {
		return reconcile.Result{RequeueAfter: prewarmRecheck}, p.tell(ctx, class, "", prewarmCondition(metav1.ConditionFalse, v1beta1.ReasonPrewarmStopped, err.Error()))
	}
	now := p.rollOf(class, c)
	again := p.start(class, c, found, now)
	return reconcile.Result{RequeueAfter: again}, p.tell(ctx, class, c.revision.Marker(), found.condition(c.revision.Marker(), now.stopped))
}

// context gathers what an install needs, but for a machine.
func (p *Prewarmer) context(ctx context.Context, class *v1beta1.SSHNodeClass) (*classContext, error) {
	c, err := p.contextOf(ctx, class)
	if err != nil {
		return nil, err
	}
	if !c.profile.DeletionTimestamp.IsZero() {
		return nil, fault.New(fault.Configuration, v1beta1.ReasonProfileDeleting, nil, "SSHJoinProfile %s is being deleted", c.profile.Name)
	}
	_, err = profile.Render(c.revision, profile.Install, c.inputs(&v1beta1.SSHHost{}))
	return c, err
}

// survey is which hosts of a class have its profile installed, and which may get it.
type survey struct {
	// hosts that no claim holds, and how many of them are ready.
	hosts, ready int
	// cold are free and not installed; running are being installed.
	cold    []*v1beta1.SSHHost
	running int
	// contested are free and not installed, and another class would install another profile on them.
	contested []string
}

func (p *Prewarmer) survey(ctx context.Context, class *v1beta1.SSHNodeClass, marker string) (survey, error) {
	hosts, err := p.Inventory.Selected(class)
	if err != nil {
		return survey{}, err
	}
	others := map[string]struct{}{}
	for _, other := range p.prewarmed(ctx) {
		if other.Name == class.Name {
			continue
		}
		theirs, err := p.Inventory.Selected(&other)
		if err != nil {
			continue // it installs nothing, and says why
		}
		for _, h := range theirs {
			others[h.Name] = struct{}{}
		}
	}
	s := survey{}
	for _, h := range hosts {
		if h.Status.ClaimRef != nil {
			continue
		}
		s.hosts++
		_, contested := others[h.Name]
		task, busy := p.runner.current(h.Name)
		switch free, _ := host.Claimable(h); {
		case h.Status.InstalledProfile == marker:
			s.ready++
		case contested && free:
			s.contested = append(s.contested, h.Name)
		case busy && task == prewarming:
			s.running++
		case free && !busy:
			s.cold = append(s.cold, h)
		}
	}
	host.Order(s.cold, marker) // those that failed come last here, too
	slices.Sort(s.contested)
	return s, nil
}

// condition says how far a class's profile has come.
func (s survey) condition(marker, stopped string) *status.Condition {
	progress := fmt.Sprintf("%d of %d hosts that no claim holds have %s installed", s.ready, s.hosts, marker)
	switch {
	case stopped != "":
		return prewarmCondition(metav1.ConditionFalse, v1beta1.ReasonPrewarmStopped, progress+": "+stopped)
	case len(s.cold) > 0 || s.running > 0:
		return prewarmCondition(metav1.ConditionFalse, v1beta1.ReasonPrewarming, progress)
	case len(s.contested) > 0:
		return prewarmCondition(metav1.ConditionFalse, v1beta1.ReasonPrewarmContested,
			progress+": other classes with prewarm select "+profile.Few(s.contested)+" too: narrow hostSelector, so that one class prewarms a host")
	}
	return prewarmCondition(metav1.ConditionTrue, v1beta1.ReasonPrewarmed, progress)
}

func prewarmCondition(is metav1.ConditionStatus, reason, message string) *status.Condition {
	return &status.Condition{Type: v1beta1.ConditionPrewarmed, Status: is, Reason: reason, Message: message}
}

// prewarming is the task of installing on a host that nobody claims.
var prewarming = task{kind: v1beta1.OperationInstall}

// start begins as many installs as the pace allows, and returns when to look again.
func (p *Prewarmer) start(class *v1beta1.SSHNodeClass, c *classContext, found survey, now roll) (again time.Duration) {
	if now.stopped != "" {
		return 0
	}
	limit := min(int(now.pace), max(1, p.Concurrency/2)) // joins must not wait for installs of nobody
	running := found.running
	for _, h := range found.cold {
		if running >= limit {
			break
		}
		wait := p.runner.start(h.Name, prewarming, func(ctx context.Context, attempt int32) error {
			ctx = log.IntoContext(ctx, log.Log.WithName(p.Name()).WithValues("SSHHost", h.Name, "SSHNodeClass", class.Name))
			return p.prewarm(ctx, class.Name, c, h.Name, attempt)
		})
		if wait == 0 {
			running++
		} else if again == 0 || wait < again {
			again = wait
		}
	}
	if running > 0 && again == 0 {
		again = prewarmRecheck // or sooner, when one of them ends
	}
	return again
}

// prewarm is one attempt to install on a free host, and what follows if it fails.
func (p *Prewarmer) prewarm(ctx context.Context, class string, c *classContext, name string, attempt int32) error {
	began := &v1beta1.SSHHost{}
	err := p.installFree(ctx, c, name, attempt, began)
	var stale *ssh.StaleEpoch
	switch {
	case err == nil:
		p.runner.forget(name)
		p.progress(class, c, func(r *roll) { r.pace *= 2 })
		return nil
	case errors.Is(err, host.ErrFenced):
		return nil // claimed, or not free any more
	case ctx.Err() != nil:
		return nil // a claim took the host and does it itself, or this process ends; the next clears what is recorded
	case errors.As(err, &stale):
		return p.prewarmEnded(began, func(h *v1beta1.SSHHost) { h.Status.ClaimEpoch = max(h.Status.ClaimEpoch, stale.Stored) })
	}
	f := fault.Of(err)
	countFailure("prewarm", f)
	attempts, first := p.runner.failed(name, prewarming, pause)
	v := judgeJoin(f, errors.As(err, &hostOnly{}), attempts, p.Clock.Since(first))
	log.FromContext(ctx).Info("prewarming failed", "blame", f.Blame, "reason", f.Reason, "error", f.Error(), "attempt", attempts, "again", v.again)
	p.progress(class, c, func(r *roll) { r.note(f, name, v) })
	if began.Name == "" {
		return nil // nothing was recorded
	}
	p.event(began, corev1.EventTypeWarning, v1beta1.ReasonPrewarmFailed, "attempt %d to install %s: %s: %s", attempts, c.revision.Marker(), f.Reason, clip(f.Error()))
	return p.prewarmEnded(began, func(h *v1beta1.SSHHost) {
		if !v.again && v.release.State != v1beta1.HostAvailable || v.release.Blocked {
			host.MarkReleased(h, v.release, p.Clock.Now())
		}
	})
}

// note takes in that a host failed. A version that fails on machine after machine, and one that can be installed on none, stops.
func (r *roll) note(f *fault.Error, name string, v verdict) {
	switch {
	case f.Blame == fault.Configuration && v.release.State == v1beta1.HostAvailable && !v.release.Blocked:
		r.stopped = f.Error()
	case f.Blame == fault.Host && !v.again:
		r.failed[name] = struct{}{}
		r.pace = 1
		if len(r.failed) >= failuresThatStop {
			r.stopped = fmt.Sprintf("it failed on %d machines, last on %s (%s): mend the profile and raise its version, or change the class", len(r.failed), name, f.Reason)
		}
	}
}

// installFree installs on a host that is free, and keeps it claimable. began is the host as the install was recorded on it.
func (p *Prewarmer) installFree(ctx context.Context, c *classContext, name string, attempt int32, began *v1beta1.SSHHost) error {
	done, err := p.Holds.Take(ctx, c.profile)
	if err != nil {
		return err
	}
	defer done()
	if err := p.Revisions.Ensure(ctx, c.revision); err != nil {
		return err
	}
	h := p.Inventory.Get(name)
	if h == nil {
		return host.ErrFenced
	}
	if _, err := p.verified(h, c.revision, profile.Install); err != nil {
		return err
	}
	in := c.inputs(h)
	rendered, err := profile.Render(c.revision, profile.Install, in)
	if err != nil {
		return err
	}
	updated, err := p.Inventory.Update(ctx, name, func(h *v1beta1.SSHHost) error {
		if free, _ := host.Claimable(h); !free || host.Prewarming(h) {
			return host.ErrFenced
		}
		now := p.Clock.Now()
		host.MarkPrewarming(h, attempt, now.Add(rendered.Timeout), now)
		return nil
	})
	if err != nil {
		return err
	}
	*began = *updated
	conn, err := p.dial(ctx, began, "prewarm")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	p.event(began, corev1.EventTypeNormal, "Prewarming", "running install of %s", c.revision.Marker())
	if err := p.run(ctx, conn, began, c.revision, profile.Install, rendered, in.Redactor()); err != nil {
		return err
	}
	return p.prewarmEnded(began, func(h *v1beta1.SSHHost) {
		host.MarkPrewarmed(h, c.revision.Marker(), c.revision.Name, conn.HostKeyFingerprint())
	})
}

// prewarmEnded writes what came of an install, unless the host has been claimed, parked or replaced meanwhile.
func (p *Prewarmer) prewarmEnded(began *v1beta1.SSHHost, change func(*v1beta1.SSHHost)) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	_, err := p.Inventory.Update(ctx, began.Name, func(h *v1beta1.SSHHost) error {
		if h.UID != began.UID || h.Status.ClaimEpoch != began.Status.ClaimEpoch || !host.Prewarming(h) {
			return host.ErrFenced
		}
		change(h)
		h.Status.Operation = nil
		return nil
	})
	return err
}

// clearPrewarm takes off a host what a process before this one was doing on it.
func (c *Controller) clearPrewarm(ctx context.Context, h *v1beta1.SSHHost) error {
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if _, busy := c.runner.current(h.Name); busy || !host.Prewarming(h) {
			return host.ErrFenced
		}
		h.Status.Operation = nil
		return nil
	})
	return err
}

func (p *Prewarmer) forget(class string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.rolls, class)
}

// rollOf is a copy of how far the version has come, from its beginning if it is a new one.
func (p *Prewarmer) rollOf(class *v1beta1.SSHNodeClass, c *classContext) roll {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rolls[class.Name]
	if r == nil || r.of != c.of() {
		r = &roll{of: c.of(), pace: 1, failed: map[string]struct{}{}}
		p.rolls[class.Name] = r
	}
	r.pace = min(r.pace, max(1, class.Spec.Prewarm.MaxConcurrent))
	return *r
}

func (p *Prewarmer) progress(class string, c *classContext, change func(*roll)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.rolls[class]; r != nil && r.of == c.of() {
		change(r)
	}
}

// tell puts the condition into a class, or takes it out if want is nil.
func (p *Prewarmer) tell(ctx context.Context, class *v1beta1.SSHNodeClass, marker string, want *status.Condition) error {
	told := class.DeepCopy()
	told.Status.PrewarmProfile = marker
	changed := class.Status.PrewarmProfile != marker
	if want == nil {
		changed = told.DropCondition(v1beta1.ConditionPrewarmed) || changed
	} else {
		changed = told.TellCondition(*want, p.Clock.Now()) || changed
	}
	if !changed {
		return nil
	}
	return client.IgnoreNotFound(p.Client.Status().Patch(ctx, told, client.MergeFromWithOptions(class, client.MergeFromWithOptimisticLock{})))
}
