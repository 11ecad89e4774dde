package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

const pool = "kp-a"

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// machine builds a free host, as a probe leaves it.
func machine(name string, edits ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start.Add(-time.Hour))},
		Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
	}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

func claimedBy(name, uid string) func(*v1beta1.SSHHost) {
	return func(h *v1beta1.SSHHost) {
		host.MarkClaimed(h, v1beta1.ClaimReference{Name: name, UID: types.UID(uid)}, start)
	}
}

// world is an inventory over a fake API server.
type world struct {
	*host.Inventory
	api   client.WithWatch
	clock *clocktesting.FakeClock
}

// newWorld observes the given hosts as a cache would; funcs intercept the API.
func newWorld(t *testing.T, funcs interceptor.Funcs, hosts ...*v1beta1.SSHHost) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1beta1.SSHHost{}).
		WithIndex(&v1beta1.SSHHost{}, "status.claimRef.uid", func(o client.Object) []string {
			if ref := o.(*v1beta1.SSHHost).Status.ClaimRef; ref != nil {
				return []string{string(ref.UID)}
			}
			return nil
		}).WithInterceptorFuncs(funcs)
	for _, h := range hosts {
		builder = builder.WithObjects(h).WithStatusSubresource(h)
	}
	w := &world{api: builder.Build(), clock: clocktesting.NewFakeClock(start)}
	w.Inventory = host.NewInventory(pool, w.api, w.api, w.clock)
	list := &v1beta1.SSHHostList{}
	if err := w.api.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		w.Observe(&list.Items[i])
	}
	return w
}

func (w *world) get(t *testing.T, name string) *v1beta1.SSHHost {
	t.Helper()
	h := &v1beta1.SSHHost{}
	if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: pool, Name: name}, h); err != nil {
		t.Fatal(err)
	}
	return h
}

func (w *world) request(name string) host.ClaimRequest {
	return host.ClaimRequest{Name: name, UID: types.UID("uid-" + name), NodeClass: "nc-a", Candidates: []host.Candidate{{InstanceType: "default", Hosts: w.All()}}}
}

func TestClaimableOnlyWhenNothingHoldsTheHost(t *testing.T) {
	now := metav1.NewTime(start)
	for name, row := range map[string]struct {
		host *v1beta1.SSHHost
		want bool
	}{
		"free":                      {machine("h"), true},
		"never probed":              {machine("h", func(h *v1beta1.SSHHost) { h.Status.State = "" }), false},
		"claimed":                   {machine("h", claimedBy("n", "u")), false},
		"in use":                    {machine("h", func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostInUse }), false},
		"unhealthy":                 {machine("h", func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostUnhealthy }), false},
		"leaving":                   {machine("h", func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostLeaving }), false},
		"available but still named": {machine("h", claimedBy("n", "u"), func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostAvailable }), false},
		"annotated for maintenance": {machine("h", func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""} }), false},
		"being deleted":             {machine("h", func(h *v1beta1.SSHHost) { h.DeletionTimestamp = &now }), false},
		"has yet to leave": {machine("h", func(h *v1beta1.SSHHost) {
			host.SetCondition(h, start, v1beta1.ConditionLeavePending, metav1.ConditionTrue, v1beta1.ReasonLeaveFailed, "")
		}), false},
	} {
		if got, why := host.Claimable(row.host); got != row.want || got != (why == "") {
			t.Errorf("%s: claimable %v (%q), want %v", name, got, why, row.want)
		}
	}
}

func TestOrderTakesTheLeastRecentlyFailedThenTheWarmThenTheOldest(t *testing.T) {
	failed := func(ago time.Duration) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) {
			h.Status.Failures = &v1beta1.HostFailures{Count: 1, LastTime: new(metav1.NewTime(start.Add(-ago)))}
		}
	}
	warm := func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "p@1" }
	older := func(h *v1beta1.SSHHost) { h.CreationTimestamp = metav1.NewTime(start.Add(-9 * time.Hour)) }
	hosts := []*v1beta1.SSHHost{
		machine("b"), machine("failed-just-now", failed(0), warm), machine("a"), machine("old", older),
		machine("failed-long-ago", failed(time.Hour)), machine("warm", warm),
	}
	host.Order(hosts, "p@1")
	names := []string{}
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	if want := []string{"warm", "old", "a", "b", "failed-long-ago", "failed-just-now"}; !slices.Equal(names, want) {
		t.Errorf("order %v, want %v", names, want)
	}
}

// D16, the half about many claims: 200 claims on 200 hosts at once are a bijection, and none costs a conflict.
func TestSimultaneousClaimsAreABijectionWithoutConflicts(t *testing.T) {
	const n = 200
	conflicts := 0
	var mu sync.Mutex
	funcs := interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
		err := c.SubResource(sub).Patch(ctx, o, p, opts...)
		if apierrors.IsConflict(err) {
			mu.Lock()
			conflicts++
			mu.Unlock()
		}
		return err
	}}
	hosts := []*v1beta1.SSHHost{}
	for i := range n {
		hosts = append(hosts, machine(fmt.Sprintf("host-%03d", i)))
	}
	w := newWorld(t, funcs, hosts...)
	taken := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			h, err := w.Claim(t.Context(), w.request(fmt.Sprintf("claim-%03d", i)))
			if err != nil {
				t.Errorf("claim %d: %v", i, err)
				return
			}
			taken[i] = h.Name
		})
	}
	wg.Wait()
	slices.Sort(taken)
	if distinct := len(slices.Compact(taken)); distinct != n {
		t.Errorf("%d distinct hosts for %d claims", distinct, n)
	}
	if conflicts != 0 {
		t.Errorf("%d conflicts, want none", conflicts)
	}
}

// D16: a claim that is asked for again gets the host it has, though the cache shows nothing of it yet.
func TestOneHostPerClaimOnALaggingCache(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"), machine("b"))
	first, err := w.Claim(t.Context(), w.request("n"))
	if err != nil {
		t.Fatal(err)
	}
	// Another process, whose cache still shows both hosts free.
	other := host.NewInventory(pool, w.api, w.api, w.clock)
	other.Observe(machine("a"))
	other.Observe(machine("b"))
	request := w.request("n")
	request.Candidates[0].Hosts = other.All()
	second, err := other.Claim(t.Context(), request)
	if err != nil || second.Name != first.Name {
		t.Fatalf("second claim got %v, %v; want %s again", second, err, first.Name)
	}
	claimed := 0
	for _, name := range []string{"a", "b"} {
		if w.get(t, name).Status.ClaimRef != nil {
			claimed++
		}
	}
	if claimed != 1 {
		t.Errorf("%d hosts claimed, want 1", claimed)
	}
}

// Two processes that both believe to lead, interleaved at the worst point: both have looked, neither has written.
func TestRacingProcessesNeverKeepTwoHostsForOneClaim(t *testing.T) {
	var w, other *world
	interfered := false
	funcs := interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
		if !interfered {
			interfered = true
			h := &v1beta1.SSHHost{}
			if err := other.api.Get(ctx, client.ObjectKey{Namespace: pool, Name: "b"}, h); err != nil {
				return err
			}
			base := h.DeepCopy()
			claimedBy("n", "uid-n")(h)
			if err := other.api.Status().Patch(ctx, h, client.MergeFrom(base)); err != nil {
				return err
			}
		}
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}}
	w = newWorld(t, funcs, machine("a"), machine("b"))
	other = w
	request := w.request("n")
	request.Candidates[0].Hosts = []*v1beta1.SSHHost{w.Get("a")}
	if _, err := w.Claim(t.Context(), request); !errors.Is(err, host.ErrClaimRaced) {
		t.Fatalf("got %v, want ErrClaimRaced", err)
	}
	if ref := w.get(t, "a").Status.ClaimRef; ref != nil {
		t.Errorf("host a is still held by %v", ref)
	}
	got, err := w.Claim(t.Context(), request)
	if err != nil || got.Name != "b" {
		t.Errorf("the next call got %v, %v; want host b", got, err)
	}
}

// S2, found by seeds: a process that was suspended claims a second host for a NodeClaim in the moment it goes on, and before it can give it
// back the leader begins to join that one too. So a machine is changed only by a host that is alone, and of two at most one goes on.
func TestOfTwoHostsOfOneClaimAtMostOneJoins(t *testing.T) {
	touched := func(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = "abcdef" }
	mine := claimedBy("n", "uid-n")
	for name, row := range map[string]struct {
		hosts []*v1beta1.SSHHost
		asks  string
		want  error
		holds bool // whether the host still holds the claim
	}{
		"alone":                              {hosts: []*v1beta1.SSHHost{machine("a", mine), machine("b")}, asks: "a", holds: true},
		"the other has begun":                {hosts: []*v1beta1.SSHHost{machine("a", mine), machine("b", mine, touched)}, asks: "a", want: host.ErrFenced},
		"it has begun itself":                {hosts: []*v1beta1.SSHHost{machine("a", mine, touched), machine("b", mine)}, asks: "a", holds: true},
		"neither has, and it is the first":   {hosts: []*v1beta1.SSHHost{machine("a", mine), machine("b", mine)}, asks: "a", want: host.ErrClaimRaced, holds: true},
		"neither has, and it is the second":  {hosts: []*v1beta1.SSHHost{machine("a", mine), machine("b", mine)}, asks: "b", want: host.ErrFenced},
		"the other's claim has another UID":  {hosts: []*v1beta1.SSHHost{machine("a", mine), machine("b", claimedBy("n", "uid-of-before"))}, asks: "a", holds: true},
		"what is known of it is out of date": {hosts: []*v1beta1.SSHHost{machine("a", claimedBy("m", "uid-m"), touched), machine("b", mine, touched)}, asks: "a", want: host.ErrFenced, holds: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, interceptor.Funcs{}, row.hosts...)
			asked := w.get(t, row.asks)
			asked.Status.ClaimRef.Name, asked.Status.ClaimRef.UID = "n", "uid-n"
			if row.hosts[0].Status.ClaimRef.UID != "uid-n" {
				asked.Status.BootstrapTokenID = ""
			}
			if err := w.Alone(t.Context(), asked); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
			if holds := w.get(t, row.asks).Status.ClaimRef != nil; holds != row.holds {
				t.Errorf("the host holds a claim: %v, want %v", holds, row.holds)
			}
		})
	}
}

func TestClaimGoesOnToTheNextHostWhenOneIsLost(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"), machine("b"))
	stale := w.get(t, "a")
	base := stale.DeepCopy()
	claimedBy("somebody", "else")(stale)
	if err := w.api.Status().Patch(t.Context(), stale, client.MergeFrom(base)); err != nil {
		t.Fatal(err)
	}
	got, err := w.Claim(t.Context(), w.request("n"))
	if err != nil || got.Name != "b" {
		t.Errorf("got %v, %v; want host b", got, err)
	}
	if ref := w.get(t, "a").Status.ClaimRef; ref == nil || ref.Name != "somebody" {
		t.Errorf("host a is held by %v, want somebody", ref)
	}
}

func TestClaimSaysWhenThereIsNoHostAndWhenTheClaimIsEnding(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"))
	if _, err := w.Claim(t.Context(), w.request("n")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Claim(t.Context(), w.request("m")); !errors.Is(err, host.ErrNoHost) {
		t.Errorf("got %v, want ErrNoHost", err)
	}
	if err := w.BeginLeave(t.Context(), "a", "uid-n", "n"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Claim(t.Context(), w.request("n")); !errors.Is(err, host.ErrEnding) {
		t.Errorf("got %v, want ErrEnding", err)
	}
}

// Section 2 #17, #18: the fence is name and UID; the fence of a repeated Delete never reaches a successor.
func TestBeginLeaveIsFencedOnTheClaim(t *testing.T) {
	for name, row := range map[string]struct {
		host      *v1beta1.SSHHost
		uid, call string
		want      error
	}{
		"own claim":              {machine("a", claimedBy("n", "u1")), "u1", "n", nil},
		"successor of same name": {machine("a", claimedBy("n", "u2")), "u1", "n", host.ErrFenced},
		"another claim":          {machine("a", claimedBy("m", "u2")), "u1", "n", host.ErrFenced},
		"no claim":               {machine("a"), "u1", "n", host.ErrFenced},
		"built without a UID":    {machine("a", claimedBy("n", "u1")), "", "n", nil},
	} {
		w := newWorld(t, interceptor.Funcs{}, row.host)
		if err := w.BeginLeave(t.Context(), "a", types.UID(row.uid), row.call); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, want %v", name, err, row.want)
		}
		if leaving := w.get(t, "a").Status.State == v1beta1.HostLeaving; leaving != (row.want == nil) {
			t.Errorf("%s: leaving is %v", name, leaving)
		}
	}
}

// Section 2 #14: one conflict does not fail a write; the decision is made anew on what is there.
func TestUpdateDecidesAnewAfterAConflict(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"))
	outside := w.get(t, "a")
	outside.Labels = map[string]string{"edited": "meanwhile"}
	if err := w.api.Update(t.Context(), outside); err != nil {
		t.Fatal(err)
	}
	seen := []string{}
	got, err := w.Update(t.Context(), "a", func(h *v1beta1.SSHHost) error {
		seen = append(seen, h.Labels["edited"])
		h.Status.ObservedArch = "arm64"
		return nil
	})
	if err != nil || got.Status.ObservedArch != "arm64" || !slices.Equal(seen, []string{"", "meanwhile"}) {
		t.Errorf("got %v, %v, decided on %q", got, err, seen)
	}
}

func TestUpdateWritesNothingWhenNothingChanged(t *testing.T) {
	writes := 0
	w := newWorld(t, interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
		writes++
		return c.SubResource(sub).Patch(ctx, o, p, opts...)
	}}, machine("a"))
	for range 3 {
		if _, err := w.Update(t.Context(), "a", func(*v1beta1.SSHHost) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if writes != 1 { // the first derives the Ready condition
		t.Errorf("%d writes, want 1", writes)
	}
}

// Section 3 #26, #27: Ready follows the state in every write, and a leaving host is not ready.
func TestReadyFollowsTheState(t *testing.T) {
	for state, want := range map[v1beta1.HostState]struct {
		status metav1.ConditionStatus
		reason string
	}{
		v1beta1.HostPending:     {metav1.ConditionUnknown, v1beta1.ReasonAwaitingProbe},
		v1beta1.HostAvailable:   {metav1.ConditionTrue, v1beta1.ReasonProbeSucceeded},
		v1beta1.HostInUse:       {metav1.ConditionTrue, v1beta1.ReasonProbeSucceeded},
		v1beta1.HostLeaving:     {metav1.ConditionFalse, v1beta1.ReasonLeaving},
		v1beta1.HostMaintenance: {metav1.ConditionFalse, v1beta1.ReasonMaintenance},
		v1beta1.HostUnhealthy:   {metav1.ConditionFalse, v1beta1.ReasonProbeFailed},
	} {
		w := newWorld(t, interceptor.Funcs{}, machine("a"))
		got, err := w.Update(t.Context(), "a", func(h *v1beta1.SSHHost) error { h.Status.State = state; return nil })
		if err != nil {
			t.Fatal(err)
		}
		ready := apimeta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != want.status || ready.Reason != want.reason {
			t.Errorf("%s: Ready is %v, want %v", state, ready, want)
		}
	}
}

func TestAReasonForBeingUnhealthySurvivesTheNextWrite(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"))
	for _, mutate := range []func(*v1beta1.SSHHost) error{
		func(h *v1beta1.SSHHost) error {
			host.MarkUnhealthy(h, v1beta1.ReasonForeignKubelet, "somebody's kubelet", start)
			return nil
		},
		func(h *v1beta1.SSHHost) error { h.Status.ObservedGeneration = 7; return nil },
	} {
		got, err := w.Update(t.Context(), "a", mutate)
		if err != nil {
			t.Fatal(err)
		}
		if ready := apimeta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionReady); ready.Reason != v1beta1.ReasonForeignKubelet {
			t.Errorf("reason %s", ready.Reason)
		}
	}
}

func TestTheNewestObjectWins(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"))
	old := w.get(t, "a")
	newest, err := w.Update(t.Context(), "a", func(h *v1beta1.SSHHost) error { claimedBy("n", "u")(h); return nil })
	if err != nil {
		t.Fatal(err)
	}
	w.Observe(old) // a lagging watch delivers the older object
	if got := w.Get("a"); got.ResourceVersion != newest.ResourceVersion || w.ByClaim("u") == nil {
		t.Error("an older object replaced a newer one")
	}
}

// The answer to a write can come after the watch has said that its host was deleted; a host that is made again under the name is another one.
func TestADeletedHostDoesNotComeBackWithALateAnswer(t *testing.T) {
	i := host.NewInventory(pool, nil, nil, clocktesting.NewFakeClock(start))
	h := machine("a", func(h *v1beta1.SSHHost) { h.ResourceVersion = "5" })
	i.Observe(h)
	i.Forget(h)
	i.Observe(machine("a", claimedBy("claim", "uid-claim"), func(h *v1beta1.SSHHost) { h.ResourceVersion = "6" }))
	if i.Get("a") != nil || i.ByClaim("uid-claim") != nil {
		t.Fatal("a host that was deleted is back")
	}
	i.Observe(machine("a", func(h *v1beta1.SSHHost) { h.UID, h.ResourceVersion = "another", "7" }))
	if i.Get("a") == nil {
		t.Error("a new host of the name is not seen")
	}
}

func TestGenerationChangesOnlyWithWhatAHostOffers(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"))
	steps := []struct {
		name   string
		change bool
		mutate func(*v1beta1.SSHHost)
	}{
		{"a probe that finds nothing new", false, func(h *v1beta1.SSHHost) { h.Status.LastProbeTime = new(metav1.NewTime(start)) }},
		{"a claim", true, func(h *v1beta1.SSHHost) { claimedBy("n", "u")(h) }},
		{"the join of the claim", false, func(h *v1beta1.SSHHost) { host.MarkJoined(h, "", start) }},
		{"the release", true, func(h *v1beta1.SSHHost) { host.MarkReleased(h, host.Release{State: v1beta1.HostAvailable}, start) }},
		{"another architecture", true, func(h *v1beta1.SSHHost) { h.Status.ObservedArch = "arm64" }},
	}
	for _, step := range steps {
		before := w.Generation()
		if _, err := w.Update(t.Context(), "a", func(h *v1beta1.SSHHost) error { step.mutate(h); return nil }); err != nil {
			t.Fatal(err)
		}
		if changed := w.Generation() != before; changed != step.change {
			t.Errorf("%s: generation changed is %v, want %v", step.name, changed, step.change)
		}
	}
}

// Section 3 #12: each further failure doubles the pause, up to a bound; success forgets.
func TestFailuresPauseLongerAndLonger(t *testing.T) {
	h := machine("a")
	for _, want := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		host.MarkReleased(h, host.Release{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonJoinFailed, Failed: true}, start)
		if got := h.Status.Failures.NotBefore.Sub(start); got != want {
			t.Errorf("after %d failures: %s, want %s", h.Status.Failures.Count, got, want)
		}
	}
	host.MarkRegistered(h, "n", start)
	if h.Status.Failures != nil {
		t.Error("a join that succeeded did not clear the failures")
	}
}

// Section 2 #19: an empty provider ID matches no host.
func TestByProviderIDMatchesWholeIDsOnly(t *testing.T) {
	adopted := machine("b", func(h *v1beta1.SSHHost) { h.Status.ProviderID = "eks-hybrid:///eu/cluster/mi-1" })
	w := newWorld(t, interceptor.Funcs{}, machine("a"), adopted)
	for id, want := range map[string]string{
		"": "", "kpssh://kp-a/a": "a", "eks-hybrid:///eu/cluster/mi-1": "b", "kpssh://kp-a/b": "b", "kpssh://other/a": "", "kpssh://kp-a/": "",
	} {
		got := ""
		if h := w.ByProviderID(id); h != nil {
			got = h.Name
		}
		if got != want {
			t.Errorf("%q: host %q, want %q", id, got, want)
		}
	}
}

// Section 3 #50: no selector and an empty one both select every host.
func TestSelectedWithoutASelectorIsEveryHost(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a", func(h *v1beta1.SSHHost) { h.Labels = map[string]string{"rack": "1"} }), machine("b"))
	for name, row := range map[string]struct {
		selector *metav1.LabelSelector
		want     int
	}{
		"none":  {nil, 2},
		"empty": {&metav1.LabelSelector{}, 2},
		"rack":  {&metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}, 1},
	} {
		hosts, err := w.Selected(&v1beta1.SSHNodeClass{Spec: v1beta1.SSHNodeClassSpec{HostSelector: row.selector}})
		if err != nil || len(hosts) != row.want {
			t.Errorf("%s: %d hosts, %v; want %d", name, len(hosts), err, row.want)
		}
	}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
	if _, err := w.Selected(&v1beta1.SSHNodeClass{Spec: v1beta1.SSHNodeClassSpec{HostSelector: bad}}); err == nil {
		t.Error("a selector that does not parse was accepted")
	}
}

// The epoch only ever grows, also when the status was wiped, because the machine remembers it.
func TestEpochsGrow(t *testing.T) {
	h := machine("a")
	claimedBy("n", "u1")(h)
	first := h.Status.ClaimEpoch
	host.MarkReleased(h, host.Release{State: v1beta1.HostAvailable}, start)
	claimedBy("m", "u2")(h) // within the same second
	if h.Status.ClaimEpoch <= first {
		t.Errorf("epoch %d after %d", h.Status.ClaimEpoch, first)
	}
	wiped := machine("a")
	host.MarkClaimed(wiped, v1beta1.ClaimReference{Name: "o", UID: "u3"}, start.Add(time.Minute))
	if wiped.Status.ClaimEpoch <= h.Status.ClaimEpoch {
		t.Errorf("epoch %d after a wipe, was %d", wiped.Status.ClaimEpoch, h.Status.ClaimEpoch)
	}
}
