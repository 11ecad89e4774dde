package probe

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(offset time.Duration) *metav1.Time { return new(metav1.NewTime(noon.Add(offset))) }

type edit = func(*v1beta1.SSHHost)

func aHost(edits ...edit) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: "h1", UID: "uid-h1", Generation: 1},
		Spec:       v1beta1.SSHHostSpec{Address: "192.0.2.7", Port: 22, User: "root", SSHKeySecretRef: v1beta1.SecretReference{Name: "login"}},
	}
	for _, e := range edits {
		e(h)
	}
	return h
}

func state(s v1beta1.HostState) edit { return func(h *v1beta1.SSHHost) { h.Status.State = s } }

func probed(offset time.Duration) edit {
	return func(h *v1beta1.SSHHost) {
		h.Status.LastProbeTime, h.Status.ObservedGeneration = at(offset), h.Generation
	}
}

func claimed(h *v1beta1.SSHHost) { h.Status.ClaimRef = &v1beta1.ClaimReference{Name: "c", UID: "u"} }

func annotated(key, value string) edit {
	return func(h *v1beta1.SSHHost) { metav1.SetMetaDataAnnotation(&h.ObjectMeta, key, value) }
}

func leavePending(h *v1beta1.SSHHost) {
	host.SetCondition(h, noon, v1beta1.ConditionLeavePending, metav1.ConditionTrue, v1beta1.ReasonLeaveFailed, "")
}

func deleting(h *v1beta1.SSHHost) { h.DeletionTimestamp = at(0) }

// quarantined is put on a host that failed.
func quarantined(until time.Duration) edit {
	return func(h *v1beta1.SSHHost) {
		h.Status.Failures.Quarantines, h.Status.Failures.QuarantinedUntil = 1, at(until)
	}
}

func failed(reason string, last, notBefore time.Duration) edit {
	return func(h *v1beta1.SSHHost) {
		h.Status.Failures = &v1beta1.HostFailures{Count: 1, LastReason: reason, LastTime: at(last), NotBefore: at(notBefore)}
	}
}

var inMaintenance = annotated(v1beta1.MaintenanceAnnotation, "")

// windowAt opens every day at a minute and hour of UTC, for an hour.
func windowAt(minuteAndHour string) edit {
	return func(h *v1beta1.SSHHost) {
		h.Spec.MaintenanceWindows = []v1beta1.MaintenanceWindow{{Schedule: minuteAndHour + " * * *", Duration: metav1.Duration{Duration: time.Hour}}}
	}
}

func TestStageOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		host *v1beta1.SSHHost
		want stage
	}{
		{"new", aHost(), probe},
		{"Available", aHost(state(v1beta1.HostAvailable)), probe},
		{"Unhealthy", aHost(state(v1beta1.HostUnhealthy)), probe},
		{"Claimed is the join's", aHost(state(v1beta1.HostClaimed), claimed), leaveAlone},
		{"InUse is the node's", aHost(state(v1beta1.HostInUse), claimed), leaveAlone},
		{"InUse without a claim is the join's to heal", aHost(state(v1beta1.HostInUse)), leaveAlone},
		{"a claim in an odd state is a claim", aHost(state(v1beta1.HostAvailable), claimed), leaveAlone},
		{"Leaving is the leave's", aHost(state(v1beta1.HostLeaving)), leaveAlone},
		{"Leaving goes on in maintenance", aHost(state(v1beta1.HostLeaving), inMaintenance), leaveAlone},
		{"maintenance while in use changes nothing", aHost(state(v1beta1.HostInUse), claimed, inMaintenance), leaveAlone},
		{"annotated", aHost(state(v1beta1.HostAvailable), inMaintenance), park},
		{"annotated before the first probe", aHost(inMaintenance), park},
		{"annotated while its leave is pending", aHost(state(v1beta1.HostUnhealthy), leavePending, inMaintenance), park},
		{"in maintenance", aHost(state(v1beta1.HostMaintenance), inMaintenance), leaveAlone},
		{"annotation removed", aHost(state(v1beta1.HostMaintenance)), unpark},
		{"issue 5 #7: its window is open", aHost(state(v1beta1.HostAvailable), windowAt("0 12")), park},
		{"issue 5 #7: its window is open while it is in use", aHost(state(v1beta1.HostInUse), claimed, windowAt("0 12")), leaveAlone},
		{"issue 5 #7: parked while its window is open", aHost(state(v1beta1.HostMaintenance), windowAt("0 12")), leaveAlone},
		{"issue 5 #7: its window is over", aHost(state(v1beta1.HostMaintenance), windowAt("0 10")), unpark},
		{"issue 5 #7: its window is over, the annotation is there", aHost(state(v1beta1.HostMaintenance), windowAt("0 10"), inMaintenance), leaveAlone},
		{"issue 5 #7: a window that cannot be read never opens", aHost(state(v1beta1.HostAvailable), windowAt("0 25")), probe},
		{"being deleted", aHost(state(v1beta1.HostAvailable), deleting), leaveAlone},
		{"being deleted, has yet to leave", aHost(state(v1beta1.HostUnhealthy), leavePending, deleting), probe},
	} {
		if got := stageOf(tc.host, noon); got != tc.want {
			t.Errorf("%s: want %d, got %d", tc.name, tc.want, got)
		}
	}
}

func TestDue(t *testing.T) {
	const interval = 2 * time.Minute
	soon := memory{generation: 1, earliest: noon.Add(3 * time.Minute)}
	for _, tc := range []struct {
		name   string
		host   *v1beta1.SSHHost
		memory memory
		want   *metav1.Time // nil: now
	}{
		{name: "new", host: aHost()},
		{name: "never probed though Available: made by hand", host: aHost(state(v1beta1.HostAvailable))},
		{name: "after a restart, an interval after the recorded probe", host: aHost(state(v1beta1.HostAvailable), probed(-time.Minute)), want: at(time.Minute)},
		{name: "own heartbeat changes nothing (section 2 #10)", host: aHost(state(v1beta1.HostAvailable), probed(0)), memory: soon, want: at(3 * time.Minute)},
		{name: "an edit of the spec is probed at once (section 2 #10)", host: aHost(state(v1beta1.HostAvailable), probed(0), func(h *v1beta1.SSHHost) { h.Generation = 2 }), memory: soon},
		{name: "but once, even if the result could not be written", host: aHost(state(v1beta1.HostAvailable), probed(0), func(h *v1beta1.SSHHost) { h.Generation = 2 }),
			memory: memory{generation: 2, earliest: noon.Add(time.Minute)}, want: at(time.Minute)},
		{name: "Pending again after its claim ended", host: aHost(state(v1beta1.HostPending), probed(-time.Second))},
		{name: "Pending after a failed write waits", host: aHost(state(v1beta1.HostPending)), memory: soon, want: at(3 * time.Minute)},
		{name: "rests after a failed join", host: aHost(state(v1beta1.HostUnhealthy), probed(-time.Hour), failed("ScriptFailed", 0, 30*time.Second)), want: at(30 * time.Second)},
		{name: "a refused login is not repeated within the interval (D6)", host: aHost(state(v1beta1.HostUnhealthy), probed(-time.Hour), failed(reasonAuthenticationFailed, 0, 30*time.Second)), want: at(interval)},
		{name: "failures were cleared while no process was there", host: aHost(state(v1beta1.HostUnhealthy), probed(-time.Second), failed("ScriptFailed", 0, time.Hour), annotated(v1beta1.ClearFailuresAnnotation, "today"))},
		{name: "a pending leave does not wait for the backoff of joins", host: aHost(state(v1beta1.HostUnhealthy), probed(-time.Hour), leavePending, failed("ScriptFailed", 0, time.Hour)), want: at(-time.Hour + interval)},
	} {
		want := time.Time{}
		if tc.want != nil {
			want = tc.want.Time
		}
		if got := due(tc.host, tc.memory, interval); !got.Equal(want) {
			t.Errorf("%s: want %s, got %s", tc.name, want, got)
		}
	}
}

func TestPause(t *testing.T) {
	const interval = 2 * time.Minute
	network := fault.New(fault.Network, "DialTimeout", nil, "")
	auth := fault.New(fault.Host, reasonAuthenticationFailed, nil, "")
	for _, tc := range []struct {
		name     string
		err      *fault.Error
		failures int
		want     time.Duration
	}{
		{"success", nil, 0, interval},
		{"a blip of the network is soon over", network, 1, blip},
		{"then as others", network, 2, interval},
		{"a refused login is never repeated within the interval (D6)", auth, 1, interval},
		{"doubling", auth, 2, 2 * interval},
		{"doubling", auth, 3, 4 * interval},
		{"bounded", auth, 4, maxPause},
		{"bounded, without overflow", auth, 1000, maxPause},
		{"a jump host is asked again soon, for all that is behind it", fault.New(fault.Network, "JumpHostUnreachable", nil, "").BeforeMachine(), 9, interval},
		{"no machine was asked", fault.New(fault.Configuration, "SSHKeySecretNotFound", nil, ""), 9, interval},
		{"the API server's fault", fault.New(fault.Cluster, "SSHKeySecretUnreadable", nil, ""), 9, apiPause},
	} {
		if got := pause(tc.err, tc.failures, interval); got != tc.want {
			t.Errorf("%s, %d failures: want %s, got %s", tc.name, tc.failures, tc.want, got)
		}
	}
	if got := pause(auth, 9, time.Hour); got != time.Hour {
		t.Errorf("an interval longer than the longest pause: got %s", got)
	}
}

func TestLaneOf(t *testing.T) {
	for _, tc := range []struct {
		name   string
		host   *v1beta1.SSHHost
		memory memory
		want   lane
	}{
		{"new", aHost(), memory{}, unknown},
		{"answered last time", aHost(state(v1beta1.HostAvailable), probed(0)), memory{}, proven},
		{"Unhealthy at start", aHost(state(v1beta1.HostUnhealthy), probed(0)), memory{}, suspect},
		{"failed last time", aHost(state(v1beta1.HostPending), probed(0)), memory{failures: 1}, suspect},
		{"its node just failed to leave", aHost(state(v1beta1.HostUnhealthy), leavePending, probed(-time.Hour)), memory{earliest: noon}, suspect},
	} {
		if got := laneOf(tc.host, tc.memory); got != tc.want {
			t.Errorf("%s: want %d, got %d", tc.name, tc.want, got)
		}
	}
}
