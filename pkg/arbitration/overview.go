package arbitration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// Overview knows every NodePool of the cluster and whose it is. The manager's cache cannot tell: other instances' objects are kept out
// of it. Safe for concurrent use.
type Overview struct {
	mu         sync.RWMutex
	pools      map[string]*karpv1.NodePool // shared: read only
	classes    map[string]string           // name of an SSHNodeClass to its instance
	generation uint64
	synced     []func() bool
	cache      cache.Cache
}

// NewOverview is empty and complete: what it is to know it must be told.
func NewOverview() *Overview {
	return &Overview{pools: map[string]*karpv1.NodePool{}, classes: map[string]string{}}
}

// Watch makes an overview of a cluster. It knows something once Start runs.
func Watch(ctx context.Context, cfg *rest.Config) (*Overview, error) {
	o := NewOverview()
	c, err := cache.New(cfg, cache.Options{Scheme: scheme.Scheme, ByObject: map[client.Object]cache.ByObject{
		&karpv1.NodePool{}:      {Transform: essentials},
		&v1beta1.SSHNodeClass{}: {Transform: essentials},
	}})
	if err != nil {
		return nil, fmt.Errorf("watching all NodePools: %w", err)
	}
	o.cache = c
	for _, kind := range []client.Object{&karpv1.NodePool{}, &v1beta1.SSHNodeClass{}} {
		informer, err := c.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching all %Ts: %w", kind, err)
		}
		handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: o.Observe, UpdateFunc: func(_, is any) { o.Observe(is) }, DeleteFunc: o.Forget,
		})
		if err != nil {
			return nil, fmt.Errorf("watching all %Ts: %w", kind, err)
		}
		o.synced = append(o.synced, handle.HasSynced)
	}
	return o, nil
}

// Start follows the cluster until ctx ends. Every replica needs it, leader or not.
func (o *Overview) Start(ctx context.Context) { _ = o.cache.Start(ctx) } // it waits for ctx and has no error to return

// Synced tells whether all NodePools and classes that existed at the start have been seen.
func (o *Overview) Synced() bool {
	return !slices.ContainsFunc(o.synced, func(synced func() bool) bool { return !synced() })
}

// essentials drops what the overview never reads. There may be many NodePools, and each changes its status all the time.
func essentials(o any) (any, error) {
	switch o := o.(type) {
	case *karpv1.NodePool:
		return &karpv1.NodePool{ObjectMeta: bare(&o.ObjectMeta), Spec: o.Spec}, nil
	case *v1beta1.SSHNodeClass:
		return &v1beta1.SSHNodeClass{ObjectMeta: bare(&o.ObjectMeta), Spec: v1beta1.SSHNodeClassSpec{Instance: o.Spec.Instance}}, nil
	}
	return o, nil
}

func bare(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation, DeletionTimestamp: o.DeletionTimestamp,
	}
}

// Observe learns of a NodePool or an SSHNodeClass. The object is kept.
func (o *Overview) Observe(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch is := object.(type) {
	case *karpv1.NodePool:
		// Generation counts edits of the spec, and the beginning of a deletion.
		if was := o.pools[is.Name]; was != nil && was.UID == is.UID && was.Generation == is.Generation && is.Generation != 0 {
			return
		}
		o.pools[is.Name] = is
	case *v1beta1.SSHNodeClass:
		if was, known := o.classes[is.Name]; known && was == is.Spec.Instance {
			return
		}
		o.classes[is.Name] = is.Spec.Instance
	default:
		return
	}
	o.generation++
}

// Forget learns that a NodePool or an SSHNodeClass is gone.
func (o *Overview) Forget(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch gone := object.(type) {
	case *karpv1.NodePool:
		delete(o.pools, gone.Name)
	case *v1beta1.SSHNodeClass:
		delete(o.classes, gone.Name)
	default:
		return
	}
	o.generation++
}

// Generation changes whenever NodePools or owners do.
func (o *Overview) Generation() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.generation
}

// owned is a NodePool and whose it is.
type owned struct {
	*karpv1.NodePool
	owner string
}

// snapshot is every NodePool that somebody owns, and the generation it is of. One that names a class nobody has made is nobody's.
func (o *Overview) snapshot() ([]owned, uint64) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := make([]owned, 0, len(o.pools))
	for pool := range maps.Values(o.pools) {
		if owner, known := o.ownerOf(pool.Spec.Template.Spec.NodeClassRef); known {
			all = append(all, owned{pool, owner})
		}
	}
	return all, o.generation
}

func (o *Overview) ownerOf(ref *karpv1.NodeClassReference) (string, bool) {
	switch {
	case ref == nil:
		return "", false
	case ref.Group != v1beta1.Group || ref.Kind != ownership.ClassKind:
		return OtherProvider, true
	}
	instance, known := o.classes[ref.Name]
	return instance, known
}
