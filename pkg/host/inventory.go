package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// ErrFenced is what a change returns when the host is no longer in the state or held by the claim that the change was for.
var ErrFenced = errors.New("the host is not held by this claim any more")

// Inventory is the in-memory view of the pool namespace: always the newest object that this process has read or written.
// All methods are safe for concurrent use.
type Inventory struct {
	namespace string
	writer    client.Client
	live      client.Reader
	clock     clock.Clock

	mu    sync.RWMutex
	hosts map[string]*v1beta1.SSHHost
	// deleted are the hosts that are no more: the answer to a write may come after the news that its host was deleted.
	deleted     map[types.UID]struct{}
	byClaim     map[types.UID]string
	byProvider  map[string]string
	since       map[string]time.Time // when this process saw each host enter its state
	generation  uint64
	subscribers []func(was, is *v1beta1.SSHHost)
	synced      func() bool

	writes   keyed // one writer per host
	claims   keyed // one Claim per NodeClaim UID
	reserved map[string]struct{}
}

// NewInventory makes an empty inventory of a namespace. live must read from the API server, not from a cache.
func NewInventory(namespace string, writer client.Client, live client.Reader, clk clock.Clock) *Inventory {
	return &Inventory{
		namespace: namespace, writer: writer, live: live, clock: clk,
		hosts: map[string]*v1beta1.SSHHost{}, deleted: map[types.UID]struct{}{}, byClaim: map[types.UID]string{}, byProvider: map[string]string{},
		since: map[string]time.Time{}, reserved: map[string]struct{}{},
		synced: func() bool { return true },
	}
}

// Register feeds the inventory from the manager's cache. Call it before the manager starts.
func (i *Inventory) Register(ctx context.Context, mgr manager.Manager) error {
	informer, err := mgr.GetCache().GetInformer(ctx, &v1beta1.SSHHost{})
	if err != nil {
		return fmt.Errorf("watching SSHHosts: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { i.Observe(o.(*v1beta1.SSHHost)) },
		UpdateFunc: func(_, o any) { i.Observe(o.(*v1beta1.SSHHost)) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			if gone, ok := o.(*v1beta1.SSHHost); ok {
				i.Forget(gone)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching SSHHosts: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.synced = registration.HasSynced
	return nil
}

// Synced tells whether the inventory has seen every host that existed when the process started.
func (i *Inventory) Synced() bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.synced()
}

// Namespace is the pool namespace.
func (i *Inventory) Namespace() string { return i.namespace }

// Subscribe calls f after every change, own writes included; is is nil when the host is gone, was when it is new. f must not block.
func (i *Inventory) Subscribe(f func(was, is *v1beta1.SSHHost)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.subscribers = append(i.subscribers, f)
}

// Source is a controller's source of host names: one request for each host there is, and one for each change that wanted lets pass.
func (i *Inventory) Source(wanted func(was, is *v1beta1.SSHHost) bool) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		add := func(name string) {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: i.namespace, Name: name}})
		}
		i.Subscribe(func(was, is *v1beta1.SSHHost) {
			switch {
			case is == nil:
				add(was.Name)
			case wanted == nil || wanted(was, is):
				add(is.Name)
			}
		})
		for _, h := range i.All() {
			add(h.Name)
		}
		return nil
	})
}

// Observe takes in an object that was read or written, unless a newer one is known or it is deleted.
func (i *Inventory) Observe(h *v1beta1.SSHHost) {
	if h.Namespace != i.namespace {
		return
	}
	i.mu.Lock()
	was := i.hosts[h.Name]
	_, gone := i.deleted[h.UID]
	if gone || was != nil && !newer(h.ResourceVersion, was.ResourceVersion) {
		i.mu.Unlock()
		return
	}
	i.unindex(was)
	i.hosts[h.Name] = h
	if was == nil || was.UID != h.UID || State(was) != State(h) {
		i.since[h.Name] = i.clock.Now()
	}
	if ref := h.Status.ClaimRef; ref != nil && ref.UID != "" {
		i.byClaim[ref.UID] = h.Name
	}
	i.byProvider[h.EffectiveProviderID()] = h.Name
	if was == nil || offerChanged(was, h) {
		i.generation++
	}
	subscribers := i.subscribers
	i.mu.Unlock()
	for _, notify := range subscribers {
		notify(was, h)
	}
}

// Forget takes in the deletion of a host, unless a newer object of that name is known.
func (i *Inventory) Forget(gone *v1beta1.SSHHost) {
	i.mu.Lock()
	if gone.UID != "" {
		i.deleted[gone.UID] = struct{}{} // for good: machines are not deleted by the thousand
	}
	was := i.hosts[gone.Name]
	if was == nil || (was.UID != gone.UID && newer(was.ResourceVersion, gone.ResourceVersion)) {
		i.mu.Unlock()
		return
	}
	i.unindex(was)
	delete(i.hosts, gone.Name)
	delete(i.since, gone.Name)
	i.generation++
	subscribers := i.subscribers
	i.mu.Unlock()
	for _, notify := range subscribers {
		notify(was, nil)
	}
}

func (i *Inventory) unindex(h *v1beta1.SSHHost) {
	if h == nil {
		return
	}
	if ref := h.Status.ClaimRef; ref != nil && i.byClaim[ref.UID] == h.Name {
		delete(i.byClaim, ref.UID)
	}
	if id := h.EffectiveProviderID(); i.byProvider[id] == h.Name {
		delete(i.byProvider, id)
	}
}

// newer tells whether resourceVersion a is newer than b. Versions that cannot be compared count as newer, so that nothing is lost.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// offerChanged tells whether what the host can offer to karpenter may have changed.
func offerChanged(was, is *v1beta1.SSHHost) bool {
	wasFree, _ := Claimable(was)
	isFree, _ := Claimable(is)
	return wasFree != isFree || was.UID != is.UID || was.Status.ObservedArch != is.Status.ObservedArch ||
		instanceType(was) != instanceType(is) ||
		!equality.Semantic.DeepEqual(was.Spec.Capacity, is.Spec.Capacity) || !equality.Semantic.DeepEqual(was.Labels, is.Labels)
}

func instanceType(h *v1beta1.SSHHost) string {
	if h.Status.ClaimRef == nil {
		return ""
	}
	return h.Status.ClaimRef.InstanceType
}

// Generation changes whenever what the hosts can offer changes. Probes that find nothing new do not change it.
func (i *Inventory) Generation() uint64 {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.generation
}

// All is every host, unordered. The objects are shared: read only.
func (i *Inventory) All() []*v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	all := make([]*v1beta1.SSHHost, 0, len(i.hosts))
	for _, h := range i.hosts {
		all = append(all, h)
	}
	return all
}

// Get is one host, or nil. The object is shared: read only.
func (i *Inventory) Get(name string) *v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.hosts[name]
}

// ByClaim is the host held by a NodeClaim UID, or nil. The object is shared: read only.
func (i *Inventory) ByClaim(uid types.UID) *v1beta1.SSHHost {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.hosts[i.byClaim[uid]]
}

// ByProviderID is the host of a static or adopted provider ID, or nil. The object is shared: read only.
func (i *Inventory) ByProviderID(id string) *v1beta1.SSHHost {
	if id == "" {
		return nil
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	if name, found := i.byProvider[id]; found {
		return i.hosts[name]
	}
	if !strings.HasPrefix(id, v1beta1.ProviderIDScheme) {
		return nil
	}
	for _, h := range i.hosts { // an adopted host still answers to its static ID
		if h.StaticProviderID() == id {
			return h
		}
	}
	return nil
}

// Selected is the hosts that a class selects, unordered. No selector, or an empty one, selects all. The objects are shared: read only.
func (i *Inventory) Selected(class *v1beta1.SSHNodeClass) ([]*v1beta1.SSHHost, error) {
	if class.Spec.HostSelector == nil {
		return i.All(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(class.Spec.HostSelector)
	if err != nil {
		return nil, fmt.Errorf("hostSelector of SSHNodeClass %s: %w", class.Name, err)
	}
	selected := []*v1beta1.SSHHost{}
	for _, h := range i.All() {
		if selector.Matches(labels.Set(h.Labels)) {
			selected = append(selected, h)
		}
	}
	return selected, nil
}

// Update changes a host's status: mutate gets a copy of the newest object and either changes it or returns an error, which ends the
// update and is returned as it is. The write is refused by the API server if somebody else wrote since; then mutate decides
// anew on what is there now. Nothing is written when nothing changed.
func (i *Inventory) Update(ctx context.Context, name string, mutate func(*v1beta1.SSHHost) error) (*v1beta1.SSHHost, error) {
	return i.write(ctx, name, "status", func(base, changed *v1beta1.SSHHost) (bool, error) {
		if err := mutate(changed); err != nil {
			return false, err
		}
		setReady(changed, i.clock.Now())
		return !equality.Semantic.DeepEqual(base.Status, changed.Status), nil
	}, func(changed *v1beta1.SSHHost, patch client.Patch) error {
		return i.writer.Status().Patch(ctx, changed, patch)
	})
}

// write is the one way in which hosts are written: one writer a host, on the newest object, refused if somebody else wrote since, and then
// decided anew. change says whether there is anything to write; its error ends the write and is returned as it is.
func (i *Inventory) write(ctx context.Context, name, what string, change func(base, changed *v1beta1.SSHHost) (bool, error), patch func(*v1beta1.SSHHost, client.Patch) error) (*v1beta1.SSHHost, error) {
	defer i.writes.lock(name)()
	base := i.Get(name)
	for attempt := 0; ; attempt++ {
		if base == nil {
			var err error
			if base, err = i.read(ctx, name); err != nil {
				return nil, err
			}
		}
		changed := base.DeepCopy()
		if wanted, err := change(base, changed); err != nil || !wanted {
			return base, err
		}
		err := patch(changed, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
		switch {
		case err == nil:
			i.Observe(changed)
			return changed, nil
		case apierrors.IsConflict(err) && attempt < 4:
			metrics.HostWriteConflicts.Inc()
			base = nil
		default:
			return nil, fmt.Errorf("writing %s of SSHHost %s/%s: %w", what, i.namespace, name, err)
		}
	}
}

// read gets a host from the API server and takes it in.
func (i *Inventory) read(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	h := &v1beta1.SSHHost{}
	if err := i.live.Get(ctx, types.NamespacedName{Namespace: i.namespace, Name: name}, h); err != nil {
		return nil, fmt.Errorf("reading SSHHost %s/%s: %w", i.namespace, name, err)
	}
	i.Observe(h)
	return h, nil
}

// SetFinalizer adds or removes HostFinalizer, which holds the SSHHost while its machine may be a member of the cluster. It is
// idempotent; a host that is gone is fine when removing.
func (i *Inventory) SetFinalizer(ctx context.Context, name string, present bool) error {
	edit := controllerutil.RemoveFinalizer
	if present {
		edit = controllerutil.AddFinalizer
	}
	_, err := i.write(ctx, name, "finalizers", func(_, changed *v1beta1.SSHHost) (bool, error) {
		return edit(changed, v1beta1.HostFinalizer), nil
	}, func(changed *v1beta1.SSHHost, patch client.Patch) error { return i.writer.Patch(ctx, changed, patch) })
	if !present && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
