package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

func capacity(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func is(h *v1beta1.SSHHost, kind string, status metav1.ConditionStatus) bool {
	return apimeta.IsStatusConditionPresentAndEqual(h.Status.Conditions, kind, status)
}

// world is a controller over a fake API server.
type world struct {
	*Controller
	t        *testing.T
	api      client.WithWatch
	recorder *events.FakeRecorder
	// writes of statuses so far.
	writes atomic.Int32
	// onWrite may fail a status write.
	onWrite func(*v1beta1.SSHHost) error
}

func newWorld(t *testing.T, clk clock.Clock, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, recorder: events.NewFakeRecorder(10000)}
	w.api = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.SSHHost{}).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				w.writes.Add(1)
				if w.onWrite != nil {
					if err := w.onWrite(o.(*v1beta1.SSHHost)); err != nil {
						return err
					}
				}
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
		}).Build()
	w.Controller = NewController(Options{
		Inventory: host.NewInventory("pool", w.api, w.api, clk), Credentials: credentials.NewResolver(w.api), Dialer: &ssh.Dialer{}, Nodes: w.api, Live: w.api,
		Recorder: w.recorder, Clock: clk, ClusterUID: thisCluster, Instance: "default", Random: func() float64 { return 0 },
	})
	for _, o := range objects {
		if h, ok := o.(*v1beta1.SSHHost); ok {
			w.refresh(h.Name)
		}
	}
	return w
}

// get reads a host from the API server.
func (w *world) get(name string) *v1beta1.SSHHost {
	w.t.Helper()
	h := &v1beta1.SSHHost{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: "pool", Name: name}, h); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// refresh does what the informer does.
func (w *world) refresh(name string) { w.Inventory.Observe(w.get(name)) }

// edit changes a host as a person would.
func (w *world) edit(name string, change edit) {
	w.t.Helper()
	h := w.get(name)
	change(h)
	if err := w.api.Update(w.t.Context(), h); err != nil {
		w.t.Fatal(err)
	}
	w.refresh(name)
}

// follow feeds the schedule from the inventory, as Start does.
func (w *world) follow() {
	w.Inventory.Subscribe(w.observe)
	for _, h := range w.Inventory.All() {
		w.observe(nil, h)
	}
}

// step does everything that is due, and says how many hosts that concerned.
func (w *world) step() int {
	for n := 0; ; n++ {
		name, _ := w.take()
		if name == "" {
			return n
		}
		w.work(w.t.Context(), name)
	}
}

// events drains what was recorded.
func (w *world) events() []string {
	var all []string
	for {
		select {
		case e := <-w.recorder.Events:
			all = append(all, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return all
		}
	}
}

func answering(edits ...func(*observation)) func(context.Context, *v1beta1.SSHHost) observation {
	f, err := parseFacts(said(), []string{"kubelet"})
	if err != nil {
		panic(err)
	}
	return func(context.Context, *v1beta1.SSHHost) observation {
		o := observation{facts: f, fingerprint: "SHA256:one"}
		for _, e := range edits {
			e(&o)
		}
		return o
	}
}

func TestProbesAreNotRepeatedByTheirOwnWrites(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.contact = answering()
	w.follow()
	if n := w.step(); n != 1 {
		t.Fatalf("a new host was probed %d times", n)
	}
	if h := w.get("h1"); h.Status.State != v1beta1.HostAvailable || !is(h, v1beta1.ConditionReady, metav1.ConditionTrue) {
		t.Fatalf("status is %+v", h.Status)
	}
	for range 5 {
		w.refresh("h1") // the informer brings our own write
		if n := w.step(); n != 0 {
			t.Fatalf("probed %d times by its own heartbeat (section 2 #10)", n)
		}
	}
	clk.Step(w.Interval - time.Second)
	if n := w.step(); n != 0 {
		t.Fatal("probed before its time")
	}
	clk.Step(time.Second)
	if n := w.step(); n != 1 {
		t.Fatal("not probed in its time")
	}
	w.edit("h1", func(h *v1beta1.SSHHost) { h.Generation++; h.Spec.User = "admin" })
	if n := w.step(); n != 1 {
		t.Fatalf("an edit of the spec is probed at once; probed %d times (section 2 #10)", n)
	}
	if writes := w.writes.Load(); writes != 3 {
		t.Errorf("3 probes wrote %d times", writes)
	}
	if got := w.events(); fmt.Sprint(got) != "[Normal HostKeyRecorded Normal ProbeSucceeded]" {
		t.Errorf("events %v", got)
	}
}

func TestClaimedHostsAreNotProbed(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.contact = func(ctx context.Context, h *v1beta1.SSHHost) observation {
		w.claim("h1") // while the machine is being asked
		return answering(func(o *observation) { o.facts.units = units("active/enabled") })(ctx, h)
	}
	w.edit("h1", state(v1beta1.HostAvailable)) // spec only: the fake keeps status apart
	w.follow()
	w.step()
	h := w.get("h1")
	if h.Status.State != v1beta1.HostClaimed || h.Status.ClaimRef == nil || h.Status.LastProbeTime != nil {
		t.Fatalf("a probe overwrote a claim: %+v", h.Status)
	}
	if got := w.events(); len(got) > 0 {
		t.Errorf("events %v", got)
	}
	clk.Step(time.Hour)
	if n := w.step(); n != 0 {
		t.Error("a claimed host was probed")
	}

	// What was seen before a claim says nothing about the host after it.
	w.contact = func(ctx context.Context, h *v1beta1.SSHHost) observation {
		w.claim("h1")
		w.release("h1")
		return observation{err: fault.New(fault.Network, "DialTimeout", nil, "no answer")}
	}
	w.release("h1")
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostPending {
		t.Errorf("an observation from before a claim made the host %s", h.Status.State)
	}
}

func (w *world) claim(name string) {
	w.t.Helper()
	if _, err := w.Inventory.Update(w.t.Context(), name, func(h *v1beta1.SSHHost) error {
		host.MarkClaimed(h, v1beta1.ClaimReference{Name: "c", UID: "u"}, w.Clock.Now())
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) release(name string) {
	w.t.Helper()
	if _, err := w.Inventory.Update(w.t.Context(), name, func(h *v1beta1.SSHHost) error {
		host.MarkReleased(h, host.Release{State: v1beta1.HostPending}, w.Clock.Now())
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

func TestMaintenance(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.contact = answering()
	w.follow()
	w.step()
	w.edit("h1", inMaintenance)
	asked := 0
	w.contact = func(ctx context.Context, h *v1beta1.SSHHost) observation { asked++; return answering()(ctx, h) }
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostMaintenance || !is(h, v1beta1.ConditionReady, metav1.ConditionFalse) {
		t.Fatalf("status is %+v", h.Status)
	}
	clk.Step(24 * time.Hour)
	if n := w.step(); n != 0 || asked != 0 {
		t.Error("a host in maintenance was probed")
	}

	// Section 3 #26: the end of maintenance is written at once, though the last probe was a moment ago, and then probed.
	w.edit("h1", func(h *v1beta1.SSHHost) { delete(h.Annotations, v1beta1.MaintenanceAnnotation) })
	name, _ := w.take()
	w.work(t.Context(), name)
	if h := w.get("h1"); h.Status.State != v1beta1.HostPending || !is(h, v1beta1.ConditionReady, metav1.ConditionUnknown) {
		t.Fatalf("after maintenance: %+v", h.Status)
	}
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostAvailable || asked != 1 {
		t.Fatalf("after maintenance, probed %d times: %+v", asked, h.Status)
	}
}

// Issue 5 #7: a free host is parked when its window opens, to the second, and comes back by itself; one in use is parked when it becomes free.
func TestMaintenanceWindowsParkAndLetBack(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	inUse := aHost(state(v1beta1.HostInUse), claimed, windowAt("1 12"))
	inUse.Name, inUse.UID = "h2", "uid-h2"
	w := newWorld(t, clk, aHost(windowAt("1 12")), inUse)
	w.contact = answering()
	w.follow()
	w.step()
	if _, wait := w.take(); wait != time.Minute {
		t.Fatalf("the next look is in %s, the window opens in a minute", wait)
	}
	clk.Step(time.Minute)
	w.step()
	h := w.get("h1")
	ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady)
	if h.Status.State != v1beta1.HostMaintenance || ready.Reason != v1beta1.ReasonMaintenance || !strings.Contains(ready.Message, "1 12 * * *") {
		t.Fatalf("in its window: %s, %+v", h.Status.State, ready)
	}
	if got := w.get("h2"); got.Status.State != v1beta1.HostInUse {
		t.Fatalf("the host in use became %s", got.Status.State)
	}
	clk.Step(30 * time.Minute)
	if n := w.step(); n != 0 {
		t.Errorf("%d hosts were worked on in the window", n)
	}
	if _, err := w.Inventory.Update(t.Context(), "h2", func(h *v1beta1.SSHHost) error {
		host.MarkReleased(h, host.Release{State: v1beta1.HostAvailable}, clk.Now())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.step()
	if got := w.get("h2"); got.Status.State != v1beta1.HostMaintenance {
		t.Errorf("a host that became free in its window is %s", got.Status.State)
	}
	clk.Step(30*time.Minute - time.Second)
	if w.step(); w.get("h1").Status.State != v1beta1.HostMaintenance {
		t.Error("the window closed early")
	}
	clk.Step(time.Second)
	w.step()
	for _, name := range []string{"h1", "h2"} {
		if got := w.get(name); got.Status.State != v1beta1.HostAvailable {
			t.Errorf("%s after the window: %s", name, got.Status.State)
		}
	}
	if got := strings.Join(w.events(), ","); strings.Count(got, eventMaintenanceStarted) != 2 || strings.Count(got, eventMaintenanceEnded) != 2 {
		t.Errorf("events %s", got)
	}
}

func TestAWindowThatCannotBeReadIsToldOnce(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost(windowAt("0 25")))
	w.contact = answering()
	w.follow()
	for range 3 {
		w.step()
		clk.Step(time.Hour)
	}
	if h := w.get("h1"); h.Status.State != v1beta1.HostAvailable || !is(h, v1beta1.ConditionMaintenanceScheduled, metav1.ConditionFalse) {
		t.Errorf("status %+v", h.Status)
	}
	if got := strings.Join(w.events(), ","); strings.Count(got, v1beta1.ReasonMaintenanceWindowInvalid) != 1 {
		t.Errorf("events %s", got)
	}
	w.edit("h1", windowAt("0 3"))
	clk.Step(time.Hour)
	w.step()
	if h := w.get("h1"); apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionMaintenanceScheduled) != nil {
		t.Error("the condition outlives its cause")
	}
}

// Section 2 #11: the guard decides and writes on one object, so that a foreign write in between costs one more look and no more.
func TestZombieGuardSurvivesAConflict(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	if _, err := w.Inventory.Update(t.Context(), "h1", func(h *v1beta1.SSHHost) error { installed(h); return nil }); err != nil {
		t.Fatal(err)
	}
	w.contact = answering(func(o *observation) { o.facts.units, o.facts.owner = units("active/enabled"), ours })
	w.onWrite = func(*v1beta1.SSHHost) error {
		w.onWrite = nil
		other := w.get("h1") // which the inventory's snapshot does not show
		other.Labels = map[string]string{"by": "somebody"}
		return w.api.Update(t.Context(), other)
	}
	w.follow()
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostLeaving {
		t.Fatalf("status is %+v", h.Status)
	}
	if got := w.events(); fmt.Sprint(got) != "[Normal HostKeyRecorded Warning ZombieKubelet]" {
		t.Errorf("events %v", got)
	}
}

func TestMaintenanceThatCannotBeWrittenIsNotRetriedInALoop(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost(inMaintenance))
	w.onWrite = func(*v1beta1.SSHHost) error {
		return errors.New("the server is currently unable to handle the request")
	}
	w.follow()
	if n := w.step(); n != 1 {
		t.Fatalf("tried %d times", n)
	}
	w.onWrite = nil
	clk.Step(apiPause)
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostMaintenance {
		t.Fatalf("status is %+v", h.Status)
	}
}

func TestNewsInTheWrongOrderLosesNoHost(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.follow()
	w.claim("h1")
	held := w.Inventory.Get("h1")
	w.release("h1")
	w.observe(w.Inventory.Get("h1"), held) // the claim is told after the release
	if name, _ := w.take(); name != "h1" {
		t.Fatal("a free host fell out of the schedule")
	}
	w.observe(held, nil) // an older host of this name is told to be gone
	if !w.schedule.busy("h1") || w.schedule.entries["h1"].next == nil {
		t.Fatal("a host that exists fell out of the schedule")
	}
}

func TestStatusThatCannotBeWrittenIsNotRetriedInALoop(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	asked := 0
	w.contact = func(ctx context.Context, h *v1beta1.SSHHost) observation { asked++; return answering()(ctx, h) }
	w.onWrite = func(*v1beta1.SSHHost) error {
		return errors.New("the server is currently unable to handle the request")
	}
	w.follow()
	w.step()
	w.onWrite = nil
	clk.Step(w.Interval)
	w.step()
	if h := w.get("h1"); asked != 2 || h.Status.State != v1beta1.HostAvailable {
		t.Fatalf("asked %d times; %+v", asked, h.Status)
	}
}

// A failure that is not the machine's parks no host and is tried again soon.
func TestClusterFaultsBlameNoHost(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.contact = func(context.Context, *v1beta1.SSHHost) observation {
		return observation{err: fault.New(fault.Cluster, "SSHKeySecretUnreadable", nil, "")}
	}
	w.follow()
	w.step()
	if w.writes.Load() != 0 {
		t.Fatalf("it was written: %+v", w.get("h1").Status)
	}
	w.contact = answering()
	clk.Step(apiPause)
	w.step()
	if h := w.get("h1"); h.Status.State != v1beta1.HostAvailable {
		t.Fatalf("status is %+v", h.Status)
	}
}

// A leave that fails each time is tried less and less often, not every interval for ever.
func TestHopelessLeavesAreResumedLessAndLessOften(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost())
	w.contact = answering()
	resumed := 0
	w.Inventory.Subscribe(func(_, h *v1beta1.SSHHost) {
		if h.Status.State == v1beta1.HostLeaving {
			resumed++
		}
	})
	w.follow()
	fail := func() {
		_, err := w.Inventory.Update(t.Context(), "h1", func(h *v1beta1.SSHHost) error {
			host.MarkReleased(h, host.Release{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeaveFailed, Message: "exit 1", LeavePending: true}, clk.Now())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fail()
	for end := noon.Add(time.Hour); clk.Now().Before(end); clk.Step(10 * time.Second) {
		w.step()
		if w.get("h1").Status.State == v1beta1.HostLeaving {
			fail()
		}
	}
	if resumed < 6 || resumed > 9 {
		t.Errorf("resumed %d times in an hour", resumed)
	}
}

// busyHosts counts the hosts whose status shows a probe that takes long.
func (w *world) busyHosts() int {
	busy := 0
	for _, h := range w.Inventory.All() {
		if op := h.Status.Operation; op != nil && op.Type == v1beta1.OperationProbe {
			busy++
		}
	}
	return busy
}

// Section 2 #12 with the real loop: eight workers, a hundred machines that take 15 s not to answer, one that answers.
func TestLoopKeepsProbingTheLiveHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.RealClock{} // the bubble's
		objects := []client.Object{aHost(func(h *v1beta1.SSHHost) { h.Name = "live" })}
		for i := range 100 {
			objects = append(objects, aHost(func(h *v1beta1.SSHHost) { h.Name = fmt.Sprintf("dead-%d", i) }))
		}
		w := newWorld(t, clk, objects...)
		w.Concurrency = 8
		w.schedule = newSchedule(8, w.Interval)
		var running, most atomic.Int32
		var probes []time.Time
		w.contact = func(ctx context.Context, h *v1beta1.SSHHost) observation {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if h.Name == "live" {
				probes = append(probes, clk.Now())
				return answering()(ctx, h)
			}
			select {
			case <-ctx.Done():
			case <-clk.After(15 * time.Second):
			}
			return observation{err: fault.New(fault.Network, "DialTimeout", nil, "no answer")}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		began := clk.Now()
		go func() { done <- w.Start(ctx) }()
		<-clk.After(10 * time.Second)
		if busy := w.busyHosts(); busy != 6 { // two workers are kept for hosts that answer
			t.Errorf("%d hosts show that they are being probed", busy)
		}
		<-clk.After(10 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if first := probes[0].Sub(began); first > 4*time.Minute {
			t.Errorf("the live host was first probed after %s", first)
		}
		for i := 1; i < len(probes); i++ {
			if gap := probes[i].Sub(probes[i-1]); gap != w.Interval {
				t.Errorf("the live host was probed after %s", gap)
			}
		}
		if most.Load() > 8 {
			t.Errorf("%d probes at a time", most.Load())
		}
		if h := w.get("dead-7"); h.Status.State != v1beta1.HostUnhealthy || h.Status.LastProbeError != "no answer" {
			t.Errorf("a dead host: %+v", h.Status)
		}
		if h := w.get("live"); h.Status.State != v1beta1.HostAvailable {
			t.Errorf("the live host: %+v", h.Status)
		}
	})
}

// Section 3 #12: failures that a person cleared are not held against a host that answers.
func TestClearedFailuresLetAHostBack(t *testing.T) {
	clk := clocktesting.NewFakeClock(noon)
	w := newWorld(t, clk, aHost(unhealthy(v1beta1.ReasonQuarantined), probed(0), failed("ScriptFailed", 0, time.Hour), quarantined(time.Hour)))
	w.contact = answering()
	w.follow()
	if w.step() != 0 {
		t.Error("a host in quarantine was probed")
	}
	w.edit("h1", annotated(v1beta1.ClearFailuresAnnotation, "today"))
	w.step()
	if h := w.Inventory.Get("h1"); h.Status.State != v1beta1.HostAvailable || h.Status.Failures != nil || h.Status.FailuresCleared != "today" {
		t.Errorf("%+v", h.Status)
	}
}

// What a person does about a failure is looked at now, not after the backoff.
func TestRemediesAreTriedAtOnce(t *testing.T) {
	login := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: "login"}}
	for _, tc := range []struct {
		name   string
		remedy func(*world)
		want   int
	}{
		{"fingerprint quoted", func(w *world) { w.edit("h1", annotated(v1beta1.TrustHostKeyAnnotation, "SHA256:x")) }, 1},
		{"owner quoted", func(w *world) { w.edit("h1", annotated(v1beta1.TakeOverAnnotation, quoted)) }, 1},
		{"failures cleared", func(w *world) { w.edit("h1", annotated(v1beta1.ClearFailuresAnnotation, "today")) }, 1},
		{"Secret changed", func(w *world) { w.secretChanged(login) }, 1},
		{"Secret of a jump host changed", func(w *world) {
			w.edit("h1", func(h *v1beta1.SSHHost) {
				h.Spec.JumpHosts = []v1beta1.JumpHost{{Address: "j", SSHKeySecretRef: v1beta1.SecretReference{Name: "jump"}}}
			})
			w.secretChanged(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: "jump"}})
		}, 1},
		{"another Secret changed", func(w *world) {
			w.secretChanged(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: "other"}})
		}, 0},
		{"a Secret of that name elsewhere", func(w *world) {
			w.secretChanged(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "login"}})
		}, 0},
		{"something else annotated", func(w *world) { w.edit("h1", annotated("note", "x")) }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(noon)
			w := newWorld(t, clk, aHost())
			w.contact = func(context.Context, *v1beta1.SSHHost) observation {
				return observation{err: fault.New(fault.Host, reasonAuthenticationFailed, nil, "refused")}
			}
			w.follow()
			for range 5 {
				w.step()
				clk.Step(maxPause)
			}
			w.step()
			tc.remedy(w)
			if n := w.step(); n != tc.want {
				t.Fatalf("probed %d times", n)
			}
			if n := w.step(); n != 0 {
				t.Fatalf("probed %d more times", n)
			}
		})
	}
}
