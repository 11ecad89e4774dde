package chaos

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpevents "sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// process is one process of an instance: everything it has in memory dies with it. It may be paused, as by a hypervisor: then nothing
// that it sends leaves it, and nothing that it was sent arrives.
type process struct {
	w      *world
	id     ownership.Identity
	name   string // instance#n
	ctx    context.Context
	cancel context.CancelFunc
	dead   chan struct{}
	gone   sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	paused  chan struct{} // closed when it goes on; nil while it runs
	since   time.Time     // paused since
	fuse    int           // dies with this many more writes; 0: does not
	cut     chan struct{} // closed when its watches are cut
	classes *ownership.Classes

	stores map[string]toolscache.Store
	kube   client.Client
	inv    *host.Inventory
	core   *core
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// die ends the process between two instructions.
func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	close(p.dead)
	p.cancel()
}

// pass lets time pass, and more while the process is paused.
func (p *process) pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.dead:
		return errDead
	}
	return p.gate()
}

func (p *process) gate() error {
	for {
		p.mu.Lock()
		paused, ended := p.paused, p.ended
		p.mu.Unlock()
		switch {
		case ended:
			return errDead
		case paused == nil:
			return nil
		}
		select {
		case <-paused:
		case <-p.dead:
		}
	}
}

// awaitAPI waits until the process can reach the API server.
func (p *process) awaitAPI(ctx context.Context) error {
	for p.w.weatherOf(p.id.Instance).down {
		if err := p.pass(ctx, time.Second); err != nil {
			return err
		}
	}
	return p.gate()
}

// wrote counts a write and tells whether the process died of it.
func (p *process) wrote() bool {
	p.mu.Lock()
	burnt := p.fuse == 1
	if p.fuse > 0 {
		p.fuse--
	}
	p.mu.Unlock()
	if burnt {
		p.w.rules.kills.Add(1)
		p.die()
	}
	return burnt
}

func (p *process) cutting() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// believes tells, at this moment, whether the process takes a class for its own. A NodePool's class can change: one that it sends a write about
// is what it was when the process read it, a moment ago.
func (p *process) believes(sent client.Object) func(string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.classes == nil {
		return nobody
	}
	own, was := p.classes.Snapshot(), ""
	if pool, is := sent.(*karpv1.NodePool); is {
		was = pool.Spec.Template.Spec.NodeClassRef.Name
	}
	return func(class string) bool { return own.Has(class) || own.Has(was) }
}

type silent struct{}

func (silent) Publish(...karpevents.Event) {}

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// run is main().
func (p *process) run() {
	defer p.gone.Done()
	ours := func(o client.Object) bool { return o.(*v1beta1.SSHNodeClass).Spec.Instance == p.id.Instance }
	classes, err := ownership.Watch(p.ctx, &source{p: p, what: "set", kind: kindClass, selected: ours}, p.id.Instance)
	if err != nil {
		return
	}
	seam := ownership.NewSeam(p.id, classes, clock.RealClock{})
	live := &direct{w: p.w, by: &caller{name: p.id.Instance, proc: p}}
	p.stores = map[string]toolscache.Store{}
	behind := &cached{direct: live, stores: p.stores}
	p.kube = seam.NewClient(behind, live)
	if p.w.sabotage == unguarded {
		p.kube = behind
	}
	p.inv = host.NewInventory(p.id.PoolNamespace, p.kube, live, clock.RealClock{})
	provider := cloudprovider.New(p.id.Instance, p.kube, live, p.inv, classes.Mine, silent{}, clock.RealClock{})
	p.core = newCore(p, provider)

	resolver := credentials.NewResolver(p.kube)
	joins := join.NewController(join.Options{
		Inventory: p.inv, Client: p.kube, Live: live, Credentials: resolver, Dialer: p,
		Revisions: profile.NewRevisions(p.kube, live, p.id.PoolNamespace), Tokens: bootstrap.NewTokens(p.kube, p.id.Instance, clock.RealClock{}),
		Holds:     profile.NewHolds(p.kube, live, p.id.PoolNamespace, p.id.Instance, clock.RealClock{}),
		Discovery: bootstrap.NewDiscovery(live), Recorder: silent{}, Clock: clock.RealClock{},
		ClusterUID: clusterUID, Instance: p.id.Instance, Concurrency: 64,
	})
	joinQueue := newQueue(p, "join", func(ctx context.Context, name string) (time.Duration, error) {
		r, err := joins.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: p.id.PoolNamespace, Name: name}})
		return r.RequeueAfter, err
	})
	nodeClasses := nodeclass.NewController(nodeclass.Options{
		Recorder:  silent{},
		Inventory: p.inv, Client: p.kube, Live: live, Instance: p.id.Instance, Mine: classes.Mine, Discovery: bootstrap.NewDiscovery(live), Clock: clock.RealClock{},
	})
	classQueue := newQueue(p, "class", func(ctx context.Context, name string) (time.Duration, error) {
		r, err := nodeClasses.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		return r.RequeueAfter, err
	})
	allClasses := func(wait time.Duration) {
		for _, o := range contents(behind.stores[kindClass]) {
			classQueue.after(o.GetName(), wait)
		}
	}

	inPool := func(o client.Object) bool { return o.GetNamespace() == p.id.PoolNamespace }
	watches := []struct {
		kind     string
		selected func(client.Object) bool
		changed  func(o client.Object, gone bool)
	}{
		{kindClass, ours, func(o client.Object, _ bool) { classQueue.add(o.GetName()) }},
		{kindHost, inPool, func(o client.Object, gone bool) {
			if gone {
				p.inv.Forget(o.(*v1beta1.SSHHost))
			} else {
				p.inv.Observe(o.(*v1beta1.SSHHost))
			}
		}},
		{kindPool, nil, func(client.Object, bool) {}},
		{kindClaim, nil, func(o client.Object, gone bool) {
			p.core.claims.add(o.GetName())
			if h := p.inv.ByClaim(o.GetUID()); h != nil {
				joinQueue.add(h.Name)
			}
			if gone {
				allClasses(0)
			}
		}},
		{kindNode, nil, func(o client.Object, _ bool) {
			p.core.nodeChanged(o.(*corev1.Node))
			if h := p.inv.ByProviderID(o.(*corev1.Node).Spec.ProviderID); h != nil {
				joinQueue.add(h.Name)
			}
		}},
	}
	var synced []toolscache.InformerSynced
	var informers []toolscache.SharedIndexInformer
	for _, watched := range watches {
		from := &source{p: p, what: watched.kind, kind: watched.kind, selected: watched.selected}
		informer := seam.NewInformer(from, newOf(watched.kind), toolscache.Indexers{})
		behind.stores[watched.kind] = informer.GetStore()
		handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { watched.changed(o.(client.Object), false) },
			UpdateFunc: func(_, o any) { watched.changed(o.(client.Object), false) },
			DeleteFunc: func(o any) {
				if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
					o = tombstone.Obj
				}
				watched.changed(o.(client.Object), true)
			},
		})
		if err != nil {
			panic(err)
		}
		synced, informers = append(synced, handle.HasSynced), append(informers, informer)
	}
	p.inv.Subscribe(func(was, is *v1beta1.SSHHost) {
		if is == nil {
			is = was
		}
		joinQueue.add(is.Name)
		if was == nil || is == was || claimable(was) != claimable(is) {
			allClasses(500 * time.Millisecond)
		}
	})
	p.mu.Lock()
	p.classes = classes
	p.mu.Unlock()
	for _, informer := range informers {
		p.gone.Go(func() { informer.RunWithContext(p.ctx) })
	}
	p.gone.Go(func() { seam.Follow(p.ctx) })
	if !toolscache.WaitForCacheSync(p.ctx.Done(), synced...) {
		return
	}
	probes := probe.NewController(probe.Options{
		Inventory: p.inv, Nodes: p.kube, Live: live, Credentials: resolver, Dialer: p, Recorder: silent{}, Clock: clock.RealClock{},
		ClusterUID: clusterUID, Instance: p.id.Instance, Random: p.w.dice.roll(p.name + "probe").unit,
	})
	p.gone.Go(func() { joins.Drive(p.ctx, joinQueue.add) })
	p.gone.Go(func() { _ = probes.Start(p.ctx) })
	for _, q := range []*queue{joinQueue, classQueue, p.core.claims, p.core.nodes} {
		q.start()
	}
	p.core.run(p.ctx)
}

func claimable(h *v1beta1.SSHHost) bool {
	ok, _ := host.Claimable(h)
	return ok
}

func (p *process) isPaused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused != nil
}

func (p *process) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil && !p.ended {
		p.paused, p.since = make(chan struct{}), time.Now()
	}
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

func (p *process) cutWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.cut)
	p.cut = make(chan struct{})
}
