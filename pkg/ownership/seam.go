package ownership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Seam stands between core's manager and the API server.
type Seam struct {
	id      Identity
	classes *Classes
	clock   clock.Clock
	kinds   map[string]*kind
	guard   *guard
	// turn is asked before a voluntary disruption begins; see TakeTurns.
	turn Gate
	// pending is what core sees of the pending pods; nil for all.
	pending PodFilter

	managers  atomic.Int32 // how often core asked for a manager
	following sync.Mutex
}

// Install makes ctrl.NewManager, which core's operator.NewOperator calls, return a manager that sees and writes only what is ours.
// Call it after Start and before NewOperator, then Assert. Each of extra may change the manager's options first, say to confine the
// caches of SSHHosts and Secrets to the pool namespace; it must leave NodePool, NodeClaim, Node and CapacityBuffer alone.
//
// The manager itself is not wrapped: core's controllers take its client, and its indexers start informers, before anybody else
// gets hold of it.
func Install(id Identity, classes *Classes, extra ...func(*ctrl.Options)) *Seam {
	s := newSeam(id, classes, clock.RealClock{})
	original := ctrl.NewManager
	ctrl.NewManager = func(cfg *rest.Config, options ctrl.Options) (manager.Manager, error) {
		s.managers.Add(1)
		for _, change := range extra {
			change(&options)
		}
		if err := s.fill(&options); err != nil {
			return nil, err
		}
		return original(cfg, options)
	}
	return s
}

func newSeam(id Identity, classes *Classes, clk clock.Clock) *Seam {
	return &Seam{
		id: id, classes: classes, clock: clk,
		kinds: viewedKinds(id, classes.Snapshot()),
		guard: newGuard(id, classes, clk), turn: closed{},
	}
}

// Assert returns a *fault.Error when core was built past the seam, or when it does not see one of the kinds at all. Call it with
// the manager's client once NewOperator has returned; do not start the manager if it fails.
func (s *Seam) Assert(c client.Client) error {
	var problems []error
	if n := s.managers.Load(); n != 1 {
		problems = append(problems, fmt.Errorf("ctrl.NewManager was called %d times through the seam, not once", n))
	}
	if own, ok := c.(*guardedClient); !ok || own.seam != s {
		problems = append(problems, fmt.Errorf("the manager's client is a %T, not this seam's guarded client", c))
	}
	for _, name := range []string{kindPool, kindClaim, kindNode} {
		if s.kinds[name].stream.Load() == nil {
			problems = append(problems, fmt.Errorf("core has no informer for %s: is its CRD installed?", name))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fault.New(fault.Cluster, "SeamMissing", errors.Join(problems...),
		"instance %q would touch objects of other instances and does not start", s.id.Instance)
}

// fill puts the seam into manager options.
func (s *Seam) fill(options *ctrl.Options) error {
	if err := s.refuseScoping(options.Cache); err != nil {
		return err
	}
	if transform := options.Cache.DefaultTransform; transform != nil {
		options.Cache.DefaultTransform = exceptViewed(transform)
	}
	options.Cache.NewInformer = s.newInformer
	makeClient := options.NewClient
	if makeClient == nil {
		makeClient = client.New
	}
	options.NewClient = func(cfg *rest.Config, o client.Options) (client.Client, error) {
		return s.newClient(makeClient, cfg, o)
	}
	return nil
}

// exceptViewed keeps a default transform away from the viewed kinds: sessions and barriers know objects by their pointer and read
// them without a lock. The stream strips managedFields itself.
func exceptViewed(transform toolscache.TransformFunc) toolscache.TransformFunc {
	return func(x any) (any, error) {
		if o, ok := x.(runtime.Object); ok {
			if _, viewed := viewedName(o); viewed {
				return x, nil
			}
		}
		return transform(x)
	}
}

// refuseScoping: a selector below the view would make objects come and go in ways the view does not know.
func (s *Seam) refuseScoping(options cache.Options) error {
	var problems []string
	for o := range options.ByObject {
		if name, ok := viewedName(o); ok {
			problems = append(problems, "ByObject["+name+"]")
		}
	}
	if options.DefaultNamespaces != nil || options.DefaultLabelSelector != nil || options.DefaultFieldSelector != nil {
		problems = append(problems, "default selectors or namespaces")
	}
	if options.NewInformer != nil {
		problems = append(problems, "NewInformer")
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return fault.New(fault.Cluster, "SeamMissing", nil, "the manager's cache options set %s, which pkg/ownership sets", strings.Join(problems, ", "))
}

// newClient makes the guarded client and, beside it, one that reads the API server itself.
func (s *Seam) newClient(makeClient client.NewClientFunc, cfg *rest.Config, options client.Options) (client.Client, error) {
	c, err := makeClient(cfg, options)
	if err != nil {
		return nil, err
	}
	uncached := options
	uncached.Cache = nil
	live, err := client.New(cfg, uncached)
	if err != nil {
		return nil, err
	}
	return &guardedClient{Client: c, live: live, seam: s}, nil
}

// newInformer is cache.Options.NewInformer: the cache makes each of its informers with it.
func (s *Seam) newInformer(source toolscache.ListerWatcher, o runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	name, viewed := viewedName(o)
	if !viewed {
		s.refuseUntyped(o)
		return toolscache.NewSharedIndexInformer(source, o, resync, indexers)
	}
	stream := s.kinds[name].newStream(toolscache.ToListerWatcherWithContext(source), s.clock)
	informer := toolscache.NewSharedIndexInformer(stream, o, resync, indexers)
	if _, err := informer.AddEventHandler(stream.barrier.handler()); err != nil {
		panic(fmt.Sprintf("a new informer of %s takes no handler: %v", name, err)) // it only refuses when it was stopped
	}
	return informer
}

// refuseUntyped panics when somebody asks the cache for a viewed kind without its type: the view could not read it, and all
// instances' objects would come through. It is a mistake in a program, not in a cluster.
func (s *Seam) refuseUntyped(o runtime.Object) {
	switch o.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
	default:
		return
	}
	gk := o.GetObjectKind().GroupVersionKind().GroupKind()
	for viewed, empty := range guardedKinds {
		if _, isViewed := viewedName(empty()); isViewed && viewed == gk {
			panic(fmt.Sprintf("an informer for %s as %T would see the objects of all instances: ask for the typed object, or use the API reader", gk, o))
		}
	}
}
