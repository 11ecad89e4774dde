package arbitration

import (
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

const (
	// lateAfter is how long the pods of verdict Late stay hidden: longer than a join takes, the first one on a machine excepted.
	lateAfter = 5 * time.Minute
	// offersAge is how old the answers of Offers may be. They depend on hosts and classes, which are watched by others.
	offersAge = 5 * time.Second
)

// Filter hides pending pods from one instance's core: the PodFilter of pkg/ownership. Safe for concurrent use.
type Filter struct {
	me       string
	overview *Overview
	offers   Offers
	clock    clock.PassiveClock

	mu         sync.Mutex
	compiled   []compiled
	generation uint64
	current    bool // compiled is of this generation
	asked      time.Time
	pools      []Pool // in core's order, own ones narrowed to what is offered
	contested  bool   // some pools are not ours
	verdicts   map[types.UID]verdict
}

// compiled is a NodePool as it was when the overview last changed.
type compiled struct {
	owned
	pool    Pool
	offered scheduling.Requirements
}

// verdict on one version of a pod.
type verdict struct {
	resourceVersion string
	Verdict
}

// NewFilter makes the filter of an instance.
func NewFilter(instance string, overview *Overview, offers Offers, clk clock.PassiveClock) *Filter {
	return &Filter{me: instance, overview: overview, offers: offers, clock: clk, verdicts: map[types.UID]verdict{}}
}

// Shown is the pods, of all pending ones, that core is to see, in a slice of its own. It changes no pod.
func (f *Filter) Shown(pending []corev1.Pod) []corev1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.refresh() {
		return slices.Clone(pending)
	}
	f.prune(pending)
	own := make([]int, 0, len(pending)) // a Pod is more than a kilobyte: room for those that are shown, and no more
	for i := range pending {
		if !f.hidden(&pending[i]) {
			own = append(own, i)
		}
	}
	return lo.Map(own, func(i, _ int) corev1.Pod { return pending[i] })
}

// Hidden tells whether core is to see nothing of a pending pod.
func (f *Filter) Hidden(pod *corev1.Pod) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refresh() && f.hidden(pod)
}

func (f *Filter) hidden(pod *corev1.Pod) bool {
	known, ok := f.verdicts[pod.UID]
	if !ok || known.resourceVersion != pod.ResourceVersion || pod.UID == "" {
		known = verdict{pod.ResourceVersion, Decide(f.me, f.pools, pod)}
		f.verdicts[pod.UID] = known
	}
	return known.Verdict == Hidden || known.Verdict == Late && f.clock.Since(pendingSince(pod)) < lateAfter
}

// refresh brings the pools up to date and forgets the verdicts if that changed anything. It is false when nothing is to be hidden:
// because not everything has been seen yet, or because all pools are ours.
func (f *Filter) refresh() bool {
	if !f.overview.Synced() {
		return false
	}
	now := f.clock.Now()
	changed := !f.current || f.generation != f.overview.Generation()
	if changed {
		f.compile()
	}
	if changed || now.Sub(f.asked) >= offersAge || now.Before(f.asked) {
		f.asked = now
		if f.ask() || changed {
			f.assemble()
		}
	}
	return f.contested
}

// compile reads the NodePools anew.
func (f *Filter) compile() {
	all, generation := f.overview.snapshot()
	f.compiled = f.compiled[:0]
	f.contested = false
	for _, np := range all {
		if pool, ok := NewPool(np.NodePool, np.owner); ok {
			f.compiled = append(f.compiled, compiled{owned: np, pool: pool})
			f.contested = f.contested || np.owner != f.me
		}
	}
	f.generation, f.current = generation, true
}

// ask learns what the own pools offer, and tells whether that is something else than before.
func (f *Filter) ask() bool {
	changed := false
	for i := range f.compiled {
		if c := &f.compiled[i]; f.contested && c.owner == f.me {
			offered := f.offers.Offered(c.NodePool)
			changed = changed || !reflect.DeepEqual(offered, c.offered)
			c.offered = offered
		}
	}
	return changed
}

func (f *Filter) assemble() {
	f.pools = lo.Map(f.compiled, func(c compiled, _ int) Pool { return c.pool.offering(c.offered) })
	inOrder(f.pools)
	clear(f.verdicts)
}

// prune forgets pods that are gone, once they are the greater part.
func (f *Filter) prune(pending []corev1.Pod) {
	if len(f.verdicts) <= 2*len(pending)+64 {
		return
	}
	kept := make(map[types.UID]verdict, len(pending))
	for i := range pending {
		if known, ok := f.verdicts[pending[i].UID]; ok {
			kept[pending[i].UID] = known
		}
	}
	f.verdicts = kept
}

// pendingSince is when the scheduler first found no node.
func pendingSince(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && !condition.LastTransitionTime.IsZero() {
			return condition.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}
