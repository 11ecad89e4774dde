package ownership

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// orderRules are what core relies on while a class comes or goes.
type orderRules struct {
	mu     sync.Mutex
	broken []string
	// gaining is true while the class comes.
	gaining bool
}

func (r *orderRules) check(ok bool, format string, args ...any) {
	if ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, fmt.Sprintf(format, args...))
}

// watchOver looks, at each event, at what the other kinds' stores show in that moment.
func (r *orderRules) watchOver(o *observer, claims int) {
	has := func(kind, name string) (client.Object, bool) {
		x, ok, _ := o.stores[kind].GetByKey(name)
		if !ok {
			return nil, false
		}
		return x.(client.Object), true
	}
	o.shadows[kindNode].on = func(_, after client.Object) {
		if after == nil || !r.gains() || after.GetLabels()[ClassLabel] == "" {
			return
		}
		_, ok := has(kindClaim, after.GetName())
		r.check(ok, "own Node %s is seen before its NodeClaim: core would drain it", after.GetName())
	}
	o.shadows[kindPool].on = func(before, _ client.Object) {
		seen := len(o.stores[kindClaim].ListKeys())
		if before == nil {
			r.check(seen == claims, "the NodePool is seen with %d of its %d NodeClaims: core would provision again", seen, claims)
		} else if !r.gains() {
			r.check(seen == 0, "the NodePool is gone before %d of its NodeClaims: core books their cost on it", seen)
		}
	}
	o.shadows[kindClaim].on = func(_, after client.Object) {
		if after != nil || r.gains() {
			return
		}
		for _, x := range o.stores[kindNode].List() {
			r.check(x.(client.Object).GetLabels()[ClassLabel] == "", "a NodeClaim is gone while Node %s is still own: core would drain it", x.(client.Object).GetName())
		}
	}
}

func (r *orderRules) gains() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaining
}

func (r *orderRules) set(gaining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaining = gaining
}

// F2: nodes that users deleted while their class was not there are in the state that is most dangerous to show in the wrong order.
func TestKindsMoveInOrder(t *testing.T) {
	const count = 12
	cfg := apiServer(t)
	live := api(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	f := newFaults(modeStream, 1)
	rules := &orderRules{gaining: true}
	o := observe(t, cfg, f, func(o *observer) { rules.watchOver(o, count) })

	p := pool("pool", ref("class"))
	p.UID, p.Spec.Template.Spec.Requirements = "", []karpv1.NodeSelectorRequirementWithMinValues{}
	p.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	must(t, live.Create(ctx, p))
	for i := range count {
		name := fmt.Sprintf("n-%d", i)
		c := claim(name, ref("class"), "")
		c.UID, c.Spec.Requirements = "", []karpv1.NodeSelectorRequirementWithMinValues{}
		must(t, live.Create(ctx, c))
		n := node(name, "class", ownHost, func(n *corev1.Node) { n.UID, n.Finalizers = "", []string{karpv1.TerminationFinalizer} })
		must(t, live.Create(ctx, n))
		must(t, live.Delete(ctx, n))
	}
	must(t, o.settle(ctx, live, own()))

	// Claims cannot be read: nothing may overtake them, however long it takes.
	f.breakLists(1, 0)
	must(t, live.Create(ctx, class("class", me.Instance)))
	for range 2 {
		select {
		case <-f.listFailed:
		case <-ctx.Done():
			t.Fatal("no hand-over was tried")
		}
	}
	if err := o.settle(ctx, live, own()); err != nil {
		t.Errorf("something moved although the claims could not be read: %v", err)
	}
	if lag := o.seam.Stats()[kindNode].Lag; lag <= 0 {
		t.Errorf("the lag of Nodes is %v while they wait", lag)
	}
	f.breakLists(0, 0)
	must(t, o.settle(ctx, live, own("class")))

	for range 3 {
		rules.set(false)
		must(t, live.Delete(ctx, class("class", me.Instance)))
		must(t, o.settle(ctx, live, own()))
		rules.set(true)
		must(t, live.Create(ctx, class("class", me.Instance)))
		must(t, o.settle(ctx, live, own("class")))
	}
	for _, b := range rules.broken {
		t.Error(b)
	}
	if s := o.seam.Stats()[kindNode]; s.Injected < count || s.Lag != 0 {
		t.Errorf("Nodes: %+v: want at least %d injected and no lag", s, count)
	}
}
