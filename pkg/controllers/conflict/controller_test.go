package conflict

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/lease"
)

// bench is the controller of instance seg-a over a fake API server.
type bench struct {
	t      *testing.T
	api    client.WithWatch
	ctl    *Controller
	clock  *clocktesting.FakeClock
	events *events.FakeRecorder
	// hostLists counts lists of SSHHosts, which forbid refuses.
	hostLists int
	forbid    bool
	// beforePatch runs once, before the next patch.
	beforePatch func()
	patches     int
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	b := &bench{t: t, clock: clocktesting.NewFakeClock(noon), events: events.NewFakeRecorder(100)}
	b.api = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.SSHNodeClass{}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, hosts := list.(*v1beta1.SSHHostList); hosts {
					b.hostLists++
					if b.forbid {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "sshhosts"}, "", nil)
					}
				}
				return c.List(ctx, list, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				b.patches++
				if do := b.beforePatch; do != nil {
					b.beforePatch = nil
					do()
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	b.ctl = NewController(Options{
		Self: Self{Instance: "seg-a", PoolNamespace: "kp-a", Release: "rel-a"}, LeaseNamespace: "kube-system", Live: b.api, Client: b.api,
		Hosts:    func() []*v1beta1.SSHHost { return nil },
		Refusals: func() []ownership.Refusal { return nil }, Splits: func() []ownership.Split { return nil }, NamesInUse: func() []NameInUse { return nil },
		Recorder: b.events, Clock: b.clock,
	})
	return b
}

// look makes one survey after some time, and gives the metric's types and the events.
func (b *bench) look(after time.Duration) (types, events []string) {
	b.t.Helper()
	b.clock.Step(after)
	if _, err := b.ctl.Reconcile(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	for _, c := range b.ctl.Conflicts() {
		types = append(types, c.Type+" "+c.Name)
	}
	for {
		select {
		case e := <-b.events.Events:
			events = append(events, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return types, events
		}
	}
}

func (b *bench) want(what string, got, want []string) {
	b.t.Helper()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (b *bench) class(name string) *v1beta1.SSHNodeClass {
	b.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	if err := b.api.Get(b.t.Context(), client.ObjectKey{Name: name}, class); err != nil {
		b.t.Fatal(err)
	}
	return class
}

func conditionsOf(class *v1beta1.SSHNodeClass) (all []string) {
	for _, c := range class.Status.Conditions {
		all = append(all, c.Type+"="+string(c.Status)+" "+c.Reason)
	}
	return all
}

func ready(c *v1beta1.SSHNodeClass) {
	c.Status.Conditions = []status.Condition{{Type: status.ConditionReady, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNoHosts, LastTransitionTime: metav1.NewTime(noon)}}
}

func aLease(instance, pool string, renewed int64) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kpssh-" + instance, Labels: map[string]string{
			v1beta1.InstanceLabel: instance, v1beta1.PoolNamespaceLabel: pool, v1beta1.ReleaseLabel: "rel-" + strings.TrimPrefix(instance, "seg-"),
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("x"), RenewTime: new(metav1.NewMicroTime(time.Unix(renewed, 0)))},
	}
}

// L2: a class whose instance is not there is told of after 40 seconds, once, and not by a write on it; when the instance comes, it clears.
func TestAnUnownedClassIsToldOfOnce(t *testing.T) {
	b := newBench(t, aClass("a", "seg-a"), aClass("b", "seg-b"), aLease("seg-b", "kp-b", 7))
	types, events := b.look(0)
	b.want("at first", append(types, events...), nil)
	types, events = b.look(39 * time.Second)
	b.want("before its time is over", append(types, events...), nil)
	types, events = b.look(time.Second)
	b.want("metric", types, []string{"UnownedNodeClass b"})
	b.want("event", events, []string{"Warning UnownedNodeClass"})
	types, events = b.look(15 * time.Second)
	b.want("metric", types, []string{"UnownedNodeClass b"})
	b.want("it is not told twice", events, nil)
	if alive := b.ctl.Alive(); !alive["seg-a"] || alive["seg-b"] || len(alive) != 2 {
		t.Errorf("alive: %v", alive)
	}
	if b.patches != 0 {
		t.Errorf("S6: %d writes about a foreign class", b.patches)
	}
	came := aLease("seg-b", "kp-b", 8)
	if err := b.api.Patch(t.Context(), came, client.Merge); err != nil {
		t.Fatal(err)
	}
	types, events = b.look(15 * time.Second)
	b.want("when it came", append(types, events...), nil)
}

// A10: another release that tries to be this instance says so on the Lease, and ends. Its holder tells of it while the tries go on, once, and
// not because of a note from before it watched.
func TestAContenderIsToldOf(t *testing.T) {
	note := func(at string) *coordinationv1.Lease {
		l := aLease("seg-a", "kp-a", 7)
		l.Annotations = map[string]string{lease.ContenderAnnotation: "release kp-x.two, pool namespace kp-x, at " + at}
		return l
	}
	b := newBench(t, aClass("a", "seg-a"), note("1"))
	types, events := b.look(0)
	b.want("a note from before", append(types, events...), nil)
	told := 0
	for _, at := range []string{"2", "3", "4"} {
		if err := b.api.Patch(t.Context(), note(at), client.Merge); err != nil {
			t.Fatal(err)
		}
		types, events = b.look(5 * time.Minute)
		b.want("metric", types, []string{"DuplicateInstance kpssh-seg-a"})
		told += len(events)
	}
	if told != 1 {
		t.Errorf("%d events", told)
	}
	b.want("condition", conditionsOf(b.class("a")), []string{"OwnershipConflict=True DuplicateInstance"})
	types, _ = b.look(lingers)
	b.want("when the other one was removed", append(types, conditionsOf(b.class("a"))...), nil)
}

// A class that is applied a moment after its pool is no conflict.
func TestADanglingPoolMustLast(t *testing.T) {
	b := newBench(t, aPool("p", "late"))
	types, events := b.look(0)
	b.want("at first", append(types, events...), nil)
	late := aClass("late", "seg-a")
	if err := b.api.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	types, _ = b.look(2 * time.Minute)
	b.want("the class came", types, nil)
	if err := b.api.Delete(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	types, _ = b.look(time.Second)
	b.want("it went: its time begins anew", types, nil)
	types, events = b.look(time.Minute)
	b.want("metric", types, []string{"DanglingNodePool p"})
	b.want("event", events, []string{"Warning DanglingNodePool"})
}

// Of two live instances, the owner reports; the other one has it in its metrics only.
func TestForeignFindingsAreTheOwnersToReport(t *testing.T) {
	b := newBench(t, aClass("a", "seg-a"), aClass("b", "seg-b"), aLease("seg-b", "kp-b", 7), aPool("q", "b", labelled(v1beta1.ManagedLabel, "no")))
	b.look(0)
	if err := b.api.Patch(t.Context(), aLease("seg-b", "kp-b", 8), client.Merge); err != nil {
		t.Fatal(err)
	}
	types, events := b.look(15 * time.Second)
	b.want("metric", types, []string{"MissingManagedLabel q"})
	b.want("event", events, nil)
}

// The condition is set on own classes only, leaves Ready as it is, and loses no condition that another writer set meanwhile.
func TestTheConditionLeavesReadyAlone(t *testing.T) {
	own := aClass("a", "seg-a", ready)
	b := newBench(t, own, aClass("b", "seg-b", ready), aPool("p", "a", labelled(v1beta1.ManagedLabel, "no")))
	b.beforePatch = func() { // as pkg/controllers/nodeclass does, in the moment between read and write
		class := b.class("a")
		class.Status.Conditions[0].Status, class.Status.Conditions[0].Reason, class.Status.Hosts = metav1.ConditionTrue, status.ConditionReady, 3
		if err := b.api.Status().Update(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}
	b.look(0)
	class := b.class("a")
	b.want("conditions", conditionsOf(class), []string{"OwnershipConflict=True MissingManagedLabel", "Ready=True Ready"})
	if class.Status.Hosts != 3 || b.patches != 2 {
		t.Errorf("hosts %d after %d patches", class.Status.Hosts, b.patches)
	}
	b.want("the foreign class", conditionsOf(b.class("b")), []string{"Ready=False NoHosts"})
	b.look(15 * time.Second)
	if b.patches != 2 {
		t.Error("what is said already was written again")
	}
	pool := aPool("p", "a")
	if err := b.api.Patch(t.Context(), pool, client.Merge); err != nil {
		t.Fatal(err)
	}
	types, _ := b.look(15 * time.Second)
	b.want("metric", types, nil)
	b.want("mended", conditionsOf(b.class("a")), []string{"Ready=True Ready"})
}

// Other instances' hosts may be thousands: they are listed at every fourth survey, and an instance that may not list them does without.
func TestForeignHostsAreListedSeldom(t *testing.T) {
	theirs := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-b", Name: "h"}, Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1"}}
	b := newBench(t, theirs)
	b.ctl.Hosts = func() []*v1beta1.SSHHost {
		return []*v1beta1.SSHHost{{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-a", Name: "mine"}, Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1"}}}
	}
	for range 9 {
		types, _ := b.look(15 * time.Second)
		b.want("metric", types, []string{"SharedMachine mine", "SharedMachine h"})
	}
	if b.hostLists != 3 {
		t.Errorf("9 surveys listed all hosts %d times", b.hostLists)
	}
	b.forbid = true
	for range 4 {
		b.look(15 * time.Second)
	}
	if types, _ := b.look(15 * time.Second); len(types) != 0 {
		t.Errorf("hosts that may not be listed any more are still there: %q", types)
	}
}

// A scrape fails as a whole if one series is there twice.
func TestMetricsAreDistinct(t *testing.T) {
	b := newBench(t)
	b.ctl.Refusals = func() []ownership.Refusal {
		return []ownership.Refusal{{Kind: "Node", Name: "x", Last: noon}, {Kind: "NodeClaim", Name: "x", Last: noon}}
	}
	b.look(0)
	if got := b.ctl.Conflicts(); len(got) != 1 || got[0] != (metrics.Conflict{Type: "ForeignWrite", Name: "x", Other: "seg-a"}) {
		t.Errorf("%+v", got)
	}
}

// An API server that does not answer clears nothing.
func TestAFailedSurveyKeepsWhatIsKnown(t *testing.T) {
	b := newBench(t, aClass("a", "seg-a"), aPool("p", "a", labelled(v1beta1.ManagedLabel, "no")))
	b.look(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.ctl.Live = interceptor.NewClient(b.api, interceptor.Funcs{List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
		return ctx.Err()
	}})
	if _, err := b.ctl.Reconcile(ctx); err == nil {
		t.Error("a failed survey is no error")
	}
	if got := b.ctl.Conflicts(); len(got) != 1 {
		t.Errorf("conflicts: %+v", got)
	}
	b.want("condition", conditionsOf(b.class("a")), []string{"OwnershipConflict=True MissingManagedLabel"})
}
