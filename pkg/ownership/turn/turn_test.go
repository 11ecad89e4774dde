package turn

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// cluster is an API server and a clock that several instances share.
type cluster struct {
	t     *testing.T
	api   client.WithWatch
	clock *clocktesting.FakeClock
	// fail makes requests for the Lease fail, by verb.
	fail map[string]error
	// requests for the Lease and the list of Nodes, by verb.
	requests map[string]int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{t: t, clock: clocktesting.NewFakeClock(noon), fail: map[string]error{}, requests: map[string]int{}}
	on := func(verb string) error { c.requests[verb]++; return c.fail[verb] }
	c.api = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := on("get"); err != nil {
				return err
			}
			return api.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := on("create"); err != nil {
				return err
			}
			return api.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := on("update"); err != nil {
				return err
			}
			return api.Update(ctx, o, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := on("list"); err != nil {
				return err
			}
			return api.List(ctx, l, opts...)
		},
	}).Build()
	return c
}

// member is one instance.
type member struct {
	*Turn
	c *cluster
	// sees is what core's state shows as tainted.
	sees map[string]struct{}
}

func (c *cluster) instance(name string) *member {
	m := &member{Turn: New(Options{Instance: name, Namespace: "leases", Live: c.api, Writer: c.api, Clock: c.clock}), c: c, sees: map[string]struct{}{}}
	m.tainted = func() map[string]struct{} { return m.sees }
	return m
}

// loop is one run of core's loop that wants to disrupt or not. It returns what became of it.
func (m *member) loop(wants bool) string {
	m.c.t.Helper()
	run, err := m.Begin(m.c.t.Context())
	if err != nil {
		return "error"
	}
	if !run {
		return "waits"
	}
	result := "idle"
	if wants {
		result = "disrupts"
		if err := m.Admit(m.c.t.Context()); errors.Is(err, ErrNotMyTurn) {
			result = "refused"
		} else if err != nil {
			m.c.t.Fatal(err)
		}
	}
	if err := m.End(m.c.t.Context()); err != nil {
		m.c.t.Fatal(err)
	}
	return result
}

func (m *member) expect(wants bool, want string) {
	m.c.t.Helper()
	if got := m.loop(wants); got != want {
		m.c.t.Fatalf("%s: %s, want %s; lease %+v", m.instance, got, want, m.c.lease())
	}
}

func (c *cluster) lease() *coordinationv1.Lease {
	c.t.Helper()
	l := &coordinationv1.Lease{}
	if err := c.api.Get(c.t.Context(), types.NamespacedName{Namespace: "leases", Name: LeaseName}, l); err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	return l
}

func taintedNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{karpv1.DisruptedNoScheduleTaint}}}
}

// One instance alone is never made to wait, not for its first disruption either, and asks for next to nothing while idle.
func TestAloneNobodyWaits(t *testing.T) {
	c := newCluster(t)
	a := c.instance("a")
	for range 3 {
		a.expect(true, "disrupts")
	}
	c.requests = map[string]int{}
	for range 10 {
		a.expect(false, "idle")
	}
	if c.requests["update"] > 0 || c.requests["list"] > 0 || c.requests["get"] > 10 {
		t.Errorf("10 idle loops made these requests: %v", c.requests)
	}
	if n := a.held.transitions; n != 1 {
		t.Errorf("it took %d turns", n)
	}
}

// A process that starts anew does not take its predecessor's turn for its own: that one may live on in a process that was only paused.
func TestAPausedPredecessorHasLostItsTurn(t *testing.T) {
	c := newCluster(t)
	before := c.instance("a")
	if run, err := before.Begin(t.Context()); !run || err != nil {
		t.Fatal(run, err)
	}
	after := c.instance("a")
	after.expect(true, "disrupts")
	if err := before.Admit(t.Context()); !errors.Is(err, ErrNotMyTurn) {
		t.Errorf("the predecessor was admitted: %v", err)
	}
}

// What was decided before the turn was taken is refused, and decided again within it.
func TestADecisionFromBeforeTheTurnIsRefused(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	a.expect(true, "disrupts")
	b.expect(true, "refused")
	b.expect(true, "waits")
	a.expect(true, "disrupts") // and gives it away
	b.expect(true, "disrupts")
}

// A turn does not begin before core's state shows every disruption that the API server knows of: a cache may be late.
func TestATurnBeginsWithTheMarksOfTheOneBefore(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	a.expect(true, "disrupts")
	b.expect(true, "refused")
	if err := c.api.Create(t.Context(), taintedNode("n1")); err != nil {
		t.Fatal(err)
	}
	b.expect(true, "waits") // in the queue, so that the holder gives it away
	a.expect(false, "idle")
	b.expect(true, "waits")
	b.sees["n1"] = struct{}{}
	b.expect(true, "disrupts")
	c.requests = map[string]int{}
	a.expect(false, "idle")
	b.expect(true, "disrupts")
	if c.requests["list"] > 0 {
		t.Error("Nodes were listed again within the same turn")
	}
}

// Whoever loses the turn in mid-decision is refused before anything is deleted, also if it wrote its taint before it knew.
func TestALostTurnRefusesTheSecondWrite(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	if run, err := a.Begin(t.Context()); !run || err != nil {
		t.Fatal(run, err)
	}
	if err := a.Admit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.expect(true, "refused")
	b.expect(true, "waits")
	c.clock.Step(expiry)
	b.expect(true, "disrupts")
	if err := a.Admit(t.Context()); !errors.Is(err, ErrNotMyTurn) {
		t.Errorf("a write after the turn passed on was admitted: %v", err)
	}
}

// A holder that is gone keeps others waiting for a while by their own clock, whatever the Lease says about time.
func TestAHolderThatIsGone(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	a.expect(true, "disrupts")
	l := c.lease()
	l.Spec.RenewTime = &metav1.MicroTime{Time: noon.Add(-24 * time.Hour)} // another machine's clock is a day late
	if err := c.api.Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	b.expect(true, "refused")
	b.expect(true, "waits")
	c.clock.Step(expiry - time.Second)
	b.expect(true, "waits")
	c.clock.Step(time.Second)
	b.expect(true, "disrupts")
}

// A holder whose loop takes long renews, and is not taken for gone.
func TestALongLoopKeepsTheTurn(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	if run, err := a.Begin(t.Context()); !run || err != nil {
		t.Fatal(run, err)
	}
	b.expect(true, "refused")
	for range 20 {
		b.expect(true, "waits")
		c.clock.Step(renewal)
		if err := a.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Admit(t.Context()); err != nil {
		t.Errorf("after %s: %v", 20*renewal, err)
	}
}

// Turns are fair: three instances that always want to disrupt get nearly the same number; and one that died in the queue
// holds nobody up for longer than expiry.
func TestTurnsAreFair(t *testing.T) {
	c := newCluster(t)
	members := []*member{c.instance("a"), c.instance("b"), c.instance("c")}
	got := map[string]int{}
	var order []string
	for range 300 {
		for _, m := range members {
			if m.loop(true) == "disrupts" {
				got[m.instance]++
				order = append(order, m.instance)
			}
			c.clock.Step(100 * time.Millisecond)
		}
	}
	counts := []int{got["a"], got["b"], got["c"]}
	if slices.Max(counts)-slices.Min(counts) > 5 || slices.Min(counts) < 30 {
		t.Errorf("turns: %v (%v)", got, order)
	}
	members, got = members[:2], map[string]int{} // c has died, somewhere in the queue
	for range 600 {
		for _, m := range members {
			if m.loop(true) == "disrupts" {
				got[m.instance]++
			}
			c.clock.Step(100 * time.Millisecond)
		}
	}
	if got["a"] < 50 || got["b"] < 50 {
		t.Errorf("with a dead one in the queue: %v", got)
	}
}

// Two that take a free turn at the same moment: the API server decides.
func TestOneOfTwoTakesAFreeTurn(t *testing.T) {
	c := newCluster(t)
	a, b := c.instance("a"), c.instance("b")
	a.expect(true, "disrupts")
	l := c.lease()
	l.Spec.HolderIdentity = nil
	if err := c.api.Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	read := c.lease()
	b.expect(true, "disrupts") // b's first loop takes it
	if ok, err := a.write(t.Context(), a.take(read)); ok || err != nil {
		t.Errorf("an old look at the lease was enough to take it: %v, %v", ok, err)
	}
}

// What cannot be found out is no permission, and says whose fault it is.
func TestWithoutAnAnswerNothingIsDisrupted(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), LeaseName, errors.New("no"))
	for _, row := range []struct {
		name  string
		verb  string
		err   error
		blame fault.Blame
	}{
		{name: "may not read", verb: "get", err: forbidden, blame: fault.Configuration},
		{name: "may not write", verb: "create", err: forbidden, blame: fault.Configuration},
		{name: "no answer", verb: "get", err: errors.New("timeout"), blame: fault.Cluster},
		{name: "Nodes cannot be listed", verb: "list", err: errors.New("timeout"), blame: fault.Cluster},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCluster(t)
			a := c.instance("a")
			c.fail[row.verb] = row.err
			run, err := a.Begin(t.Context())
			if run || !fault.Is(err, row.blame) {
				t.Errorf("run %v, error %v", run, err)
			}
			if err := a.Admit(t.Context()); !errors.Is(err, ErrNotMyTurn) {
				t.Errorf("admitted: %v", err)
			}
		})
	}
	t.Run("in mid-loop", func(t *testing.T) {
		c := newCluster(t)
		a := c.instance("a")
		if run, err := a.Begin(t.Context()); !run || err != nil {
			t.Fatal(run, err)
		}
		c.fail["get"] = errors.New("timeout")
		if err := a.Admit(t.Context()); !errors.Is(err, ErrNotMyTurn) {
			t.Errorf("admitted: %v", err)
		}
	})
}

// stubLoop is core's disruption controller as the Controller sees it.
type stubLoop struct {
	turn *Turn
	runs int
}

func (*stubLoop) Name() string { return "disruption" }

func (l *stubLoop) Reconcile(ctx context.Context) (reconciler.Result, error) {
	l.runs++
	if err := l.turn.Admit(ctx); err != nil {
		return reconciler.Result{}, errors.Join(errors.New("disrupting"), err)
	}
	return reconciler.Result{RequeueAfter: time.Hour}, nil
}

// The Controller turns a refusal into a wait, not into an error that core would log and back off from, and does not run the loop while
// it waits.
func TestTheLoopWaitsForItsTurn(t *testing.T) {
	c := newCluster(t)
	holder, b := c.instance("a"), c.instance("b")
	holder.expect(true, "disrupts")
	loop := &stubLoop{turn: b.Turn}
	controller := &Controller{turn: b.Turn, loop: loop}
	for i, want := range []struct {
		after time.Duration
		runs  int
	}{{poll, 1}, {poll, 1}, {poll, 1}} {
		result, err := controller.Reconcile(t.Context())
		if err != nil || result.RequeueAfter != want.after || loop.runs != want.runs {
			t.Errorf("step %d: %+v, %v, %d runs", i, result, err, loop.runs)
		}
	}
	holder.expect(false, "idle")
	if result, err := controller.Reconcile(t.Context()); err != nil || result.RequeueAfter != time.Hour || loop.runs != 2 {
		t.Errorf("in its turn: %+v, %v, %d runs", result, err, loop.runs)
	}
}
