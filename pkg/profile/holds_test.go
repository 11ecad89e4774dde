package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const holdPool = "kp-a"

type holdWorld struct {
	*Holds
	t       *testing.T
	api     client.WithWatch
	clock   *clocktesting.FakeClock
	patches int
	refuse  error // of the next patch
}

func newHoldWorld(t *testing.T, objects ...client.Object) *holdWorld {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &holdWorld{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.patches++
			if err := w.refuse; err != nil {
				w.refuse = nil
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
	w.Holds = NewHolds(w.api, w.api, holdPool, "seg-a", w.clock)
	return w
}

func (w *holdWorld) get(name string) *v1beta1.SSHJoinProfile {
	w.t.Helper()
	p := &v1beta1.SSHJoinProfile{}
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Name: name}, p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func heldProfile(finalizers ...string) *v1beta1.SSHJoinProfile {
	return &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p", Finalizers: finalizers}, Spec: v1beta1.SSHJoinProfileSpec{Version: "1"}}
}

func machineWith(name string, status v1beta1.SSHHostStatus) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: holdPool, Name: name}, Status: status}
}

var mine, theirs = v1beta1.InstalledFinalizer("seg-a"), v1beta1.InstalledFinalizer("seg-b")

// Section 3 #15: an instance's finalizer is a valid one whatever the instance is called.
func TestInstalledFinalizerIsAQualifiedName(t *testing.T) {
	for _, instance := range []string{"a", "default", strings.Repeat("x", 40)} {
		if wrong := validation.IsQualifiedName(v1beta1.InstalledFinalizer(instance)); len(wrong) > 0 {
			t.Errorf("%s: %v", instance, wrong)
		}
	}
}

// Section 3 #15: what a profile is held for.
func TestUsersOfAProfile(t *testing.T) {
	revision := revisionName("p", []byte(`{}`))
	claimed := func(state v1beta1.HostState) v1beta1.SSHHostStatus {
		return v1beta1.SSHHostStatus{State: state, ClaimRef: &v1beta1.ClaimReference{Name: "n", UID: "u", NodeClass: "nc"}}
	}
	with := func(s v1beta1.SSHHostStatus, edit func(*v1beta1.SSHHostStatus)) v1beta1.SSHHostStatus {
		edit(&s)
		return s
	}
	for name, row := range map[string]struct {
		status v1beta1.SSHHostStatus
		want   bool
	}{
		"nothing installed":               {v1beta1.SSHHostStatus{State: v1beta1.HostAvailable}, false},
		"installed, free":                 {v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, InstalledProfile: "p@7"}, true},
		"another profile, like in name":   {v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, InstalledProfile: "p2@1"}, false},
		"its claim is about to install":   {claimed(v1beta1.HostClaimed), true},
		"another profile, and about to":   {with(claimed(v1beta1.HostClaimed), func(s *v1beta1.SSHHostStatus) { s.InstalledProfile = "q@1" }), true},
		"in use with another profile":     {with(claimed(v1beta1.HostInUse), func(s *v1beta1.SSHHostStatus) { s.InstalledProfile = "q@1" }), false},
		"its join failed, and it leaves":  {with(claimed(v1beta1.HostLeaving), func(s *v1beta1.SSHHostStatus) { s.InstalledRevision = revision }), true},
		"its join failed, and it is free": {v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, InstalledRevision: revision}, false},
		"has yet to leave": {v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, InstalledRevision: revision,
			Conditions: []metav1.Condition{{Type: v1beta1.ConditionLeavePending, Status: metav1.ConditionTrue}}}, true},
		"leaves by another's revision": {v1beta1.SSHHostStatus{State: v1beta1.HostLeaving, InstalledRevision: revisionName("p-2", []byte(`{}`))}, false},
	} {
		users := UsersOf("p", []*v1beta1.SSHHost{machineWith("h", row.status)}, func(string) string { return "p" })
		if got := len(users) == 1; got != row.want {
			t.Errorf("%s: held %v, want %v", name, got, row.want)
		}
	}
}

// Section 3 #15: the finalizer goes on before the machine is touched, once, and beside those of other instances.
func TestTakeHoldsAProfileBesideOtherInstances(t *testing.T) {
	w := newHoldWorld(t, heldProfile(theirs))
	for range 3 {
		done, err := w.Take(t.Context(), w.get("p"))
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	if got := w.get("p").Finalizers; !slices.Equal(got, []string{theirs, mine}) || w.patches != 1 {
		t.Errorf("finalizers %v after %d writes", got, w.patches)
	}
}

// Section 3 #15: of two instances that write at once, neither undoes what the other wrote.
func TestHoldingIsDecidedAnewAfterAConflict(t *testing.T) {
	w := newHoldWorld(t, heldProfile())
	w.refuse = apierrors.NewConflict(schema.GroupResource{}, "p", errors.New("written meanwhile"))
	if err := w.Keep(t.Context(), w.get("p")); err != nil || w.patches != 2 || !w.Holding(w.get("p")) {
		t.Errorf("%v after %d writes, finalizers %v", err, w.patches, w.get("p").Finalizers)
	}
}

// A finalizer that a person took off is put on again by the next join, once the cache shows that it is gone.
func TestForcedOffIsPutOnAgain(t *testing.T) {
	w := newHoldWorld(t, heldProfile())
	if err := w.Keep(t.Context(), w.get("p")); err != nil {
		t.Fatal(err)
	}
	p := w.get("p")
	p.Finalizers = nil
	if err := w.api.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.clock.Step(lag)
	if err := w.Keep(t.Context(), w.get("p")); err != nil || !w.Holding(w.get("p")) {
		t.Errorf("%v, finalizers %v", err, w.get("p").Finalizers)
	}
}

// Nothing new is installed from a profile that goes, and a right that is missing is named.
func TestTakeRefuses(t *testing.T) {
	for name, row := range map[string]struct {
		prepare func(*holdWorld) *v1beta1.SSHJoinProfile
		blame   fault.Blame
		reason  string
	}{
		"being deleted": {func(w *holdWorld) *v1beta1.SSHJoinProfile {
			p := w.get("p")
			_ = w.api.Delete(w.t.Context(), p)
			return w.get("p")
		}, fault.Configuration, v1beta1.ReasonProfileDeleting},
		"being deleted, and the cache does not know": {func(w *holdWorld) *v1beta1.SSHJoinProfile {
			p := w.get("p")
			_ = w.api.Delete(w.t.Context(), p.DeepCopy())
			return p
		}, fault.Configuration, v1beta1.ReasonProfileDeleting},
		"gone": {func(w *holdWorld) *v1beta1.SSHJoinProfile {
			return &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "x"}}
		}, fault.Configuration, v1beta1.ReasonProfileNotFound},
		"made anew": {func(w *holdWorld) *v1beta1.SSHJoinProfile {
			p := w.get("p")
			p.UID = types.UID("former")
			return p
		}, fault.Cluster, ReasonProfileHoldUnavailable},
		"no right": {func(w *holdWorld) *v1beta1.SSHJoinProfile {
			w.refuse = apierrors.NewForbidden(schema.GroupResource{}, "p", errors.New("no"))
			return w.get("p")
		}, fault.Configuration, ReasonProfileHoldForbidden},
	} {
		w := newHoldWorld(t, heldProfile(theirs))
		_, err := w.Take(t.Context(), row.prepare(w))
		if f := fault.Of(err); f == nil || f.Blame != row.blame || f.Reason != row.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Section 3 #15: a profile is let go when no host of this instance needs it, by the API server's word; another instance's finalizer stays.
func TestReleaseTakesOffTheOwnFinalizerOnly(t *testing.T) {
	installed := machineWith("h", v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, InstalledProfile: "p@1"})
	w := newHoldWorld(t, heldProfile(mine, theirs), installed)
	needed, err := w.Release(t.Context(), w.get("p"))
	if err != nil || !slices.Equal(needed, []string{"h"}) || w.patches != 0 {
		t.Fatalf("needed by %v, %v, %d writes", needed, err, w.patches)
	}
	if err := w.api.Delete(t.Context(), installed); err != nil {
		t.Fatal(err)
	}
	done, err := w.Take(t.Context(), w.get("p"))
	if err != nil {
		t.Fatal(err)
	}
	if needed, err := w.Release(t.Context(), w.get("p")); err != nil || len(needed) != 1 || !w.Holding(w.get("p")) {
		t.Fatalf("let go under a join: needed by %v, %v", needed, err)
	}
	done()
	if needed, err := w.Release(t.Context(), w.get("p")); err != nil || len(needed) != 0 {
		t.Fatalf("needed by %v, %v", needed, err)
	}
	if got := w.get("p").Finalizers; !slices.Equal(got, []string{theirs}) {
		t.Errorf("finalizers %v", got)
	}
	if _, err := w.Release(t.Context(), &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "gone", ResourceVersion: "1", Finalizers: []string{mine}}}); err != nil {
		t.Errorf("of a profile that is gone: %v", err)
	}
}

func TestFewNamesAreListed(t *testing.T) {
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	if got := Few(names); got != "h0, h1, h2, h3, h4 and 3 more" {
		t.Error(got)
	}
}
