package host_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// A state that no host of a class is in any more counts 0 and does not vanish: a rule that compares it would go blind.
func TestStatsCountEveryState(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a"), machine("b"), machine("c", func(h *v1beta1.SSHHost) {
		h.Labels = map[string]string{v1beta1.HostClassLabel: "big"}
		h.Status.State = ""
	}))
	got := w.Stats(time.Hour).Hosts
	if len(got) != 14 {
		t.Errorf("%d cells, want 7 states of 2 classes: %v", len(got), got)
	}
	maps.DeleteFunc(got, func(_ metrics.PoolKey, n int) bool { return n == 0 })
	want := map[metrics.PoolKey]int{{State: "Available", HostClass: "default"}: 2, {State: "Pending", HostClass: "big"}: 1}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// Alert LeaveStuck: age is counted from when the state was entered; what else is written meanwhile does not make it young again.
func TestStatsTellTheOldestOfAState(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a", claimedBy("n", "u")), machine("b", claimedBy("m", "v")))
	leave := func(name string) {
		t.Helper()
		if _, err := w.Update(t.Context(), name, func(h *v1beta1.SSHHost) error { host.MarkLeaving(h); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	leave("a")
	w.clock.Step(time.Minute)
	leave("b")
	if _, err := w.Update(t.Context(), "a", func(h *v1beta1.SSHHost) error {
		host.MarkLeaveRunning(h, 2, w.clock.Now(), w.clock.Now())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.clock.Step(time.Minute)
	if got, want := w.Stats(time.Hour).Oldest, map[string]float64{"Leaving": 120, "Claimed": 0, "Pending": 0}; !maps.Equal(got, want) {
		t.Errorf("oldest %v, want %v", got, want)
	}
}

// Alerts HostKeyChanged, ZombieKubelet, LeaveStuck, SharedMachine: what they name is there while its cause is, and not longer.
func TestTroublesComeAndGoWithTheirCause(t *testing.T) {
	parked := func(reason string) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) { host.MarkUnhealthy(h, reason, "why", start) }
	}
	condition := func(kind string, status metav1.ConditionStatus) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) { host.SetCondition(h, start, kind, status, "R", "") }
	}
	for name, row := range map[string]struct {
		edits []func(*v1beta1.SSHHost)
		want  []string
	}{
		"healthy":                      {},
		"does not answer":              {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonProbeFailed)}},
		"a probe saw another key":      {edits: []func(*v1beta1.SSHHost){condition(v1beta1.ConditionHostKeyVerified, metav1.ConditionFalse)}, want: []string{"HostKeyMismatch"}},
		"a join saw another key":       {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonHostKeyMismatch)}, want: []string{"HostKeyMismatch"}},
		"its key is revoked":           {edits: []func(*v1beta1.SSHHost){parked("HostKeyRevoked")}, want: []string{"HostKeyMismatch"}},
		"the right key again":          {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonHostKeyMismatch), func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostAvailable }}},
		"somebody else's kubelet":      {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonForeignKubelet)}, want: []string{"ForeignKubelet"}},
		"has yet to leave":             {edits: []func(*v1beta1.SSHHost){condition(v1beta1.ConditionLeavePending, metav1.ConditionTrue)}, want: []string{"LeavePending"}},
		"somebody else's machine":      {edits: []func(*v1beta1.SSHHost){condition(v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue)}, want: []string{"HostOwnedElsewhere"}},
		"a wrong clock":                {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonClockSkewed)}, want: []string{"ClockSkewed"}},
		"a person is looking after it": {edits: []func(*v1beta1.SSHHost){parked(v1beta1.ReasonForeignKubelet), func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""} }}},
	} {
		var got []string
		for _, trouble := range newWorld(t, interceptor.Funcs{}, machine("h", row.edits...)).Stats(time.Hour).Troubles {
			got = append(got, trouble.Trouble)
			if trouble.Host != "h" || trouble.HostClass != "default" {
				t.Errorf("%s: %+v", name, trouble)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// Alert TokenLeak: a token that is on record for longer than it can live was not deleted by whom it concerned.
func TestTokensOnRecordAreCounted(t *testing.T) {
	w := newWorld(t, interceptor.Funcs{}, machine("a", claimedBy("n", "u")), machine("b"))
	look := func(tokens, overdue int) {
		t.Helper()
		if s := w.Stats(time.Hour); s.Tokens != tokens || s.Overdue != overdue {
			t.Errorf("after %s: %d tokens, %d overdue; want %d, %d", w.clock.Since(start), s.Tokens, s.Overdue, tokens, overdue)
		}
	}
	look(0, 0)
	w.clock.Step(30 * time.Minute) // an install, say
	write := func(change func(*v1beta1.SSHHost)) {
		t.Helper()
		if _, err := w.Update(context.Background(), "a", func(h *v1beta1.SSHHost) error { change(h); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	write(func(h *v1beta1.SSHHost) {
		host.MarkJoining(h, "p@1", "r", "abcdef", "SHA256:x", 1, w.clock.Now(), w.clock.Now())
	})
	w.clock.Step(time.Hour)
	look(1, 0)
	w.clock.Step(time.Second)
	look(1, 1)
	write(func(h *v1beta1.SSHHost) { host.MarkRegistered(h, "n", w.clock.Now()) })
	look(0, 0)
}
