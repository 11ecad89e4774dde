package joinprofile

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

const pool = "kp-a"

type world struct {
	*Controller
	t        *testing.T
	api      client.WithWatch
	clock    *clocktesting.FakeClock
	recorder *events.FakeRecorder
}

// newWorld has the hosts in the API and in the inventory.
func newWorld(t *testing.T, p *v1beta1.SSHJoinProfile, hosts ...*v1beta1.SSHHost) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p)
	for _, h := range hosts {
		builder = builder.WithObjects(h)
	}
	w := &world{t: t, api: builder.Build(), clock: clocktesting.NewFakeClock(time.Now()), recorder: events.NewFakeRecorder(10)}
	inventory := host.NewInventory(pool, w.api, w.api, w.clock)
	for _, h := range hosts {
		read := &v1beta1.SSHHost{}
		if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(h), read); err != nil {
			t.Fatal(err)
		}
		inventory.Observe(read)
	}
	w.Controller = NewController(Options{
		Inventory: inventory, Client: w.api, Holds: profile.NewHolds(w.api, w.api, pool, "seg-a", w.clock), Recorder: w.recorder, Clock: w.clock,
	})
	return w
}

func (w *world) look() reconcile.Result {
	w.t.Helper()
	result, err := w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "p"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

// held tells whether the finalizer is on; false too if the profile is gone.
func (w *world) held() bool {
	p := &v1beta1.SSHJoinProfile{}
	return w.api.Get(w.t.Context(), client.ObjectKey{Name: "p"}, p) == nil && w.Holds.Holding(p)
}

func joinProfile(finalizers ...string) *v1beta1.SSHJoinProfile {
	return &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p", Finalizers: finalizers}}
}

func machine(name, installed string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: name, UID: types.UID("uid-" + name)},
		Status:     v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, InstalledProfile: installed},
	}
}

// Section 3 #15: an installation from before there was the finalizer gets it when the instance starts.
func TestInstalledProfileGetsTheFinalizer(t *testing.T) {
	w := newWorld(t, joinProfile(), machine("h", "p@1"))
	if w.look(); !w.held() {
		t.Error("a profile that a host has installed may vanish")
	}
	w = newWorld(t, joinProfile(), machine("h", "q@1"))
	if w.look(); w.held() {
		t.Error("a profile that no host has installed is held")
	}
}

// Section 3 #15: a deletion waits while a host has the profile installed, says for which, once, and ends when the last host is gone.
func TestDeletionWaitsAndSaysSo(t *testing.T) {
	w := newWorld(t, joinProfile(v1beta1.InstalledFinalizer("seg-a")), machine("h1", "p@1"), machine("h2", "p@2"))
	if err := w.api.Delete(t.Context(), joinProfile()); err != nil {
		t.Fatal(err)
	}
	w.look()
	w.look()
	if got := len(w.recorder.Events); got != 1 || !w.held() {
		t.Fatalf("%d events, held %v", got, w.held())
	}
	if text := <-w.recorder.Events; !strings.Contains(text, "ProfileInUse") || !strings.Contains(text, "2 SSHHosts") || !strings.Contains(text, "h1, h2") {
		t.Error(text)
	}
	w.forgetHost("h1")
	if wait := w.look().RequeueAfter; wait <= 0 || len(w.recorder.Events) != 0 {
		t.Errorf("told again after no time: %d events, again in %s", len(w.recorder.Events), wait)
	}
	w.clock.Step(telling)
	if w.look(); len(w.recorder.Events) != 1 {
		t.Error("not told that one host less has it")
	}
	w.forgetHost("h2")
	if w.look(); w.held() {
		t.Error("held for no host")
	}
}

// What the inventory does not show yet counts all the same: the API server is asked.
func TestReleaseAsksTheAPIServer(t *testing.T) {
	w := newWorld(t, joinProfile(v1beta1.InstalledFinalizer("seg-a")))
	if err := w.api.Create(t.Context(), machine("new", "p@1")); err != nil {
		t.Fatal(err)
	}
	if result := w.look(); !w.held() || result.RequeueAfter != again {
		t.Errorf("held %v, again in %s", w.held(), result.RequeueAfter)
	}
}

func (w *world) forgetHost(name string) {
	w.t.Helper()
	h := w.Inventory.Get(name)
	if err := w.api.Delete(w.t.Context(), h.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	w.Inventory.Forget(h)
}

// A host's heartbeat wakes no profile; what may begin or end its need of one does.
func TestHostsWakeTheProfilesTheyMayNeed(t *testing.T) {
	w := newWorld(t, joinProfile(v1beta1.InstalledFinalizer("seg-a")), machine("h", "p@1"))
	w.look()
	q := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](),
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Clock: w.clock})
	defer q.ShutDown()
	probed := machine("h", "p@1")
	probed.Status.LastProbeError = "x"
	w.hostChanged(q, machine("h", "p@1"), probed)
	w.clock.Step(gather)
	if w.clock.HasWaiters() && q.Len() != 0 {
		t.Error("a probe wakes profiles")
	}
	w.hostChanged(q, machine("h", "p@1"), nil)
	deadline := time.After(10 * time.Second)
	for q.Len() == 0 {
		select {
		case <-deadline:
			t.Fatal("the end of a host wakes no profile")
		case <-time.After(10 * time.Millisecond):
			w.clock.Step(gather)
		}
	}
}
