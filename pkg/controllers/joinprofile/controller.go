// Package joinprofile keeps SSHJoinProfiles that hosts of this instance have installed from vanishing. It decides when this instance's finalizer
// goes onto a profile that lacks it, such as one of an installation from before there was one, and when it comes off; the join controller puts
// it on before a machine is touched. While a deletion waits, it says for which hosts, in an Event.
//
// It writes finalizers of SSHJoinProfiles, through pkg/profile, and Events, and nothing else. Other instances' finalizers it does not touch.
package joinprofile

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

const (
	// gather is how long changes of hosts are collected: joins and leaves come in bursts.
	gather = 200 * time.Millisecond
	// again is how soon a profile is looked at again that something needs of which no event tells when it ends.
	again = 5 * time.Second
	// telling is how often at most an Event says what a deletion waits for.
	telling = 30 * time.Second
)

// Options are what a Controller works with. All are required.
type Options struct {
	Inventory *host.Inventory
	// Client reads from the caches.
	Client   client.Client
	Holds    *profile.Holds
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// Controller reconciles SSHJoinProfiles.
type Controller struct {
	Options

	mu sync.Mutex
	// held are the profiles that had this instance's finalizer when they were last looked at.
	held map[string]told
}

// told is what was last said about a deletion.
type told struct {
	uid  types.UID
	text string
	at   time.Time
}

// NewController makes a Controller.
func NewController(o Options) *Controller { return &Controller{Options: o, held: map[string]told{}} }

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "sshjoinprofile" }

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, mgr manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(mgr).
		Named(c.Name()).
		For(&v1beta1.SSHJoinProfile{}).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			c.Inventory.Subscribe(func(was, is *v1beta1.SSHHost) { c.hostChanged(q, was, is) })
			return nil
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1, // writes take turns anyway
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](200*time.Millisecond, 30*time.Second),
		}).
		Complete(c)
}

// hostChanged wakes the profiles that a host may have begun or ceased to need.
func (c *Controller) hostChanged(q queue, was, is *v1beta1.SSHHost) {
	if was != nil && is != nil && needOf(was) == needOf(is) {
		return
	}
	names := c.holding()
	for _, h := range []*v1beta1.SSHHost{was, is} {
		if h != nil {
			if name, _, found := strings.Cut(h.Status.InstalledProfile, "@"); found {
				names[name] = struct{}{}
			}
		}
	}
	for name := range names {
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}, gather)
	}
}

// need is all of a host that profile.UsersOf looks at.
type need struct {
	uid, claim          types.UID
	state               v1beta1.HostState
	installed, revision string
	pending             bool
}

func needOf(h *v1beta1.SSHHost) need {
	n := need{uid: h.UID, state: h.Status.State, installed: h.Status.InstalledProfile, revision: h.Status.InstalledRevision, pending: host.LeavePending(h)}
	if ref := h.Status.ClaimRef; ref != nil {
		n.claim = ref.UID
	}
	return n
}

// Reconcile looks at one profile.
func (c *Controller) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	p := &v1beta1.SSHJoinProfile{}
	if err := c.Client.Get(ctx, r.NamespacedName, p); err != nil {
		c.forget(r.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !c.Inventory.Synced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil // that a host is not known yet does not mean that there is none
	}
	users := profile.UsersOf(p.Name, c.Inventory.All(), nil)
	holding := c.Holds.Holding(p)
	c.note(p, holding)
	switch {
	case !holding && len(users) > 0 && p.DeletionTimestamp.IsZero():
		return reconcile.Result{}, c.Holds.Keep(ctx, p)
	case holding && len(users) == 0:
		needed, err := c.Holds.Release(ctx, p)
		if err != nil || len(needed) == 0 {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: again}, nil
	case holding && !p.DeletionTimestamp.IsZero():
		return reconcile.Result{RequeueAfter: c.tell(p, users)}, nil
	}
	return reconcile.Result{}, nil
}

// tell says what a deletion waits for, if that is news. It returns when to look again; zero: when something changes.
func (c *Controller) tell(p *v1beta1.SSHJoinProfile, users []string) time.Duration {
	text := profile.Few(users)
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.held[p.Name]
	if last.text == text {
		return 0
	}
	if wait := telling - c.Clock.Since(last.at); !last.at.IsZero() && wait > 0 {
		return wait
	}
	c.held[p.Name] = told{uid: p.UID, text: text, at: c.Clock.Now()}
	c.Recorder.Eventf(p, nil, corev1.EventTypeNormal, v1beta1.ReasonProfileInUse, v1beta1.ReasonProfileInUse,
		"the deletion waits for %d SSHHosts of pool namespace %s that have it installed: %s. Let them install another profile, or delete them", len(users), c.Inventory.Namespace(), text)
	return 0
}

func (c *Controller) note(p *v1beta1.SSHJoinProfile, holding bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch last, found := c.held[p.Name]; {
	case !holding:
		delete(c.held, p.Name)
	case !found || last.uid != p.UID:
		c.held[p.Name] = told{uid: p.UID}
	}
}

func (c *Controller) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, name)
}

func (c *Controller) holding() map[string]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make(map[string]struct{}, len(c.held))
	for name := range c.held {
		names[name] = struct{}{}
	}
	return names
}
