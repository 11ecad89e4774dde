package ownership

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// observer is what core would be: a cache made with the seam's options, and handlers on its informers.
type observer struct {
	name    string
	classes *Classes
	seam    *Seam
	faults  *faults
	stores  map[string]toolscache.Store
	shadows map[string]*shadow
}

var viewedKindNames = []string{kindPool, kindClaim, kindNode, kindBuffer}

// observe starts an observer as instance me and returns when its cache is synced. Each of prepare sees it before that.
func observe(t *testing.T, cfg *rest.Config, f *faults, prepare ...func(*observer)) *observer {
	t.Helper()
	ctx := t.Context()
	o := &observer{name: f.mode, faults: f, stores: map[string]toolscache.Store{}, shadows: map[string]*shadow{}}
	cfg = f.config(cfg)
	o.classes = startClasses(t, cfg, me)
	o.seam = newSeam(me, o.classes, clock.RealClock{})
	for _, name := range viewedKindNames {
		o.shadows[name] = newShadow(name)
	}
	for _, p := range prepare {
		p(o)
	}
	options := ctrl.Options{Scheme: scheme.Scheme}
	must(t, o.seam.fill(&options))
	options.Cache.Scheme = scheme.Scheme
	options.Cache.NewInformer = func(lw toolscache.ListerWatcher, obj runtime.Object, resync time.Duration, ix toolscache.Indexers) toolscache.SharedIndexInformer {
		name, _ := viewedName(obj)
		informer := o.seam.newInformer(f.wrap(name, lw), obj, resync, ix)
		o.stores[name] = informer.GetStore()
		return informer
	}
	c, err := cache.New(cfg, options.Cache)
	must(t, err)
	for name, k := range o.seam.kinds {
		informer, err := c.GetInformer(ctx, k.empty(), cache.BlockUntilSynced(false))
		must(t, err)
		_, err = informer.AddEventHandler(o.shadows[name].handler())
		must(t, err)
	}
	finished := make(chan struct{}, 2)
	go func() { _ = c.Start(ctx); finished <- struct{}{} }()
	go func() { o.seam.Follow(ctx); finished <- struct{}{} }()
	t.Cleanup(func() { <-finished; <-finished })
	if !c.WaitForCacheSync(ctx) {
		t.Fatal("the cache did not sync")
	}
	return o
}

// settle waits until the informer stores and the stores built from handler events equal the views of what is on the server.
func (o *observer) settle(ctx context.Context, live client.Client, classes *Set) error {
	for _, name := range viewedKindNames {
		want, err := o.expected(ctx, live, name, classes)
		if err != nil {
			return err
		}
		for {
			seen, faults, changed := o.shadows[name].look()
			if len(faults) > 0 {
				return fmt.Errorf("%s: %d faults, the first: %s", o.name, len(faults), faults[0])
			}
			difference := differ(want, seen)
			if difference == "" {
				// The handlers are told after the store has changed, so the store is not behind. It may be ahead, on its way through a
				// set of classes that is out of date already.
				if difference = differ(want, contents(o.stores[name])); difference == "" {
					break
				}
				difference = "the handlers are right, but in the store " + difference
			}
			select {
			case <-changed:
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("%s: %s differs for good: %s", o.name, name, difference)
			}
		}
	}
	return nil
}

// expected lists a kind and applies the view to it.
func (o *observer) expected(ctx context.Context, live client.Client, name string, classes *Set) (map[types.NamespacedName]client.Object, error) {
	list, err := listOf(ctx, live, name)
	if err != nil {
		return nil, err
	}
	want := map[types.NamespacedName]client.Object{}
	for _, item := range list {
		if o.seam.kinds[name].see(classes, item).visible() {
			item.SetManagedFields(nil)
			want[client.ObjectKeyFromObject(item)] = item
		}
	}
	return want, nil
}

func contents(store toolscache.Store) map[types.NamespacedName]client.Object {
	out := map[types.NamespacedName]client.Object{}
	for _, x := range store.List() {
		o := x.(client.Object)
		out[client.ObjectKeyFromObject(o)] = o
	}
	return out
}

// differ names one difference, or is empty.
func differ(want, got map[types.NamespacedName]client.Object) string {
	for key, w := range want {
		g, ok := got[key]
		switch {
		case !ok:
			return fmt.Sprintf("%s is missing", key)
		case w.GetUID() != g.GetUID() || w.GetResourceVersion() != g.GetResourceVersion():
			return fmt.Sprintf("%s is at %s of %s, not %s of %s", key, g.GetResourceVersion(), g.GetUID(), w.GetResourceVersion(), w.GetUID())
		case !equality.Semantic.DeepEqual(bare(w), bare(g)):
			return fmt.Sprintf("%s at %s has another mask or content: %+v, not %+v", key, w.GetResourceVersion(), g, w)
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			return fmt.Sprintf("%s should not be seen", key)
		}
	}
	return ""
}

// bare is an object without apiVersion and kind, which a decoder fills in or not.
func bare(o client.Object) runtime.Object {
	c := o.DeepCopyObject()
	c.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return c
}
