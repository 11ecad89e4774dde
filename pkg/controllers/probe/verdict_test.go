package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

const (
	thisCluster = "uid-cluster"
	ours        = "cluster=uid-cluster instance=default host=uid-h1 claim=uid-c epoch=7"
	reborn      = "cluster=uid-cluster instance=default host=uid-older claim=uid-c epoch=7" // the SSHHost was deleted and made again
	foreign     = "cluster=uid-other instance=default host=uid-h1 claim=uid-c epoch=7"
	quoted      = "cluster=uid-other instance=default host=uid-h1 claim=uid-c" // as people are told to quote it
)

var self = ssh.Owner{Cluster: thisCluster, Instance: "default"}

func installed(h *v1beta1.SSHHost) {
	h.Status.InstalledProfile, h.Status.InstalledRevision = "p@1", "p-abc"
}

func installedBeforeRevisions(h *v1beta1.SSHHost) { h.Status.InstalledProfile = "p@1" }

func unhealthy(reason string) edit {
	return func(h *v1beta1.SSHHost) { host.MarkUnhealthy(h, reason, "it was so", noon) }
}

func units(state string) []unit {
	active, file, _ := strings.Cut(state, "/")
	return []unit{{name: "kubelet", active: active, file: file}}
}

// The zombie guard and its neighbours, row by row. The host is unclaimed in all of them: see TestStageOf.
func TestJudge(t *testing.T) {
	mismatch := fault.New(fault.Host, v1beta1.ReasonHostKeyMismatch, nil, "expected SHA256:old, got SHA256:new")
	for _, tc := range []struct {
		name      string
		host      *v1beta1.SSHHost
		err       *fault.Error
		owner     string // the machine's owner file
		kubelet   string // ActiveState/UnitFileState; default inactive/disabled
		nodeKnown bool   // a Node has the host's provider ID
		leftOver  string // a Node has it, and no kubelet runs
		skew      time.Duration

		state  v1beta1.HostState
		reason string
		says   string
	}{
		{name: "answers", host: aHost(), state: v1beta1.HostAvailable},
		{name: "issue 5 #6: a dead jump host says nothing about the machine", host: aHost(),
			err: fault.New(fault.Network, "JumpHostUnreachable", nil, "jump host 1 of 1").BeforeMachine(), state: "", reason: "JumpHostUnreachable", says: "jump host 1 of 1"},
		{name: "issue 5: nor does an expired certificate", host: aHost(unhealthy(v1beta1.ReasonForeignKubelet)),
			err: fault.New(fault.Configuration, "CertificateExpired", nil, "it expired").BeforeMachine(), state: "", reason: "CertificateExpired", says: "expired"},
		{name: "does not answer", host: aHost(), err: fault.New(fault.Network, "DialTimeout", nil, "no answer from 192.0.2.7:22"),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonProbeFailed, says: "192.0.2.7"},
		{name: "its Secret is missing", host: aHost(), err: fault.New(fault.Configuration, "SSHKeySecretNotFound", nil, "Secret pool/login"),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonProbeFailed, says: "pool/login"},
		{name: "shows another host key (D18)", host: aHost(), err: mismatch, state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostKeyMismatch, says: "SHA256:new"},

		// Whose machine is it?
		{name: "owned by us, at rest", host: aHost(installed), owner: ours, state: v1beta1.HostAvailable},
		{name: "owned by another cluster", host: aHost(), owner: foreign, state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere, says: "another cluster owns it: \"" + quoted},
		{name: "owned by another SSHHost of this cluster", host: aHost(), owner: reborn, state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere, says: "another SSHHost"},
		{name: "owned by another instance of this cluster", host: aHost(), owner: strings.Replace(reborn, "default", "rack-b", 1),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere, says: `instance "rack-b"`},
		{name: "owned elsewhere, kubelet running: still not ours to judge", host: aHost(installed), owner: foreign, kubelet: "active/enabled", nodeKnown: true,
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere},
		{name: "owned elsewhere, leave pending: our leave is not run on it", host: aHost(installed, leavePending), owner: foreign,
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere},
		{name: "a stale owner that a person quoted", host: aHost(annotated(v1beta1.TakeOverAnnotation, quoted)), owner: foreign, state: v1beta1.HostAvailable},
		{name: "a quotation of some other owner", host: aHost(annotated(v1beta1.TakeOverAnnotation, quoted+"x")), owner: foreign,
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere},
		{name: "a stale owner's kubelet is not stopped by quoting it", host: aHost(annotated(v1beta1.TakeOverAnnotation, quoted)), owner: foreign, kubelet: "active/enabled",
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "an owner file that says nothing", host: aHost(), owner: "garbage", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonHostOwnedElsewhere},

		// Leave first (D14).
		{name: "returns with its leave pending", host: aHost(state(v1beta1.HostUnhealthy), installed, leavePending), state: v1beta1.HostLeaving, reason: eventLeaveResumed},
		{name: "returns with its leave pending, kubelet running", host: aHost(state(v1beta1.HostUnhealthy), installed, leavePending), owner: ours, kubelet: "active/enabled",
			state: v1beta1.HostLeaving, reason: eventLeaveResumed},
		{name: "does not return with its leave pending", host: aHost(leavePending), err: fault.New(fault.Network, "DialTimeout", nil, "no answer"),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonProbeFailed},

		// A kubelet on a host that nobody claims.
		{name: "ours by the owner file, running", host: aHost(installed), owner: ours, kubelet: "active/enabled", state: v1beta1.HostLeaving, reason: eventZombieKubelet, says: "kubelet is active"},
		{name: "ours by the owner file, crashing", host: aHost(installed), owner: ours, kubelet: "activating/disabled", state: v1beta1.HostLeaving, reason: eventZombieKubelet},
		{name: "ours by the owner file, waiting for a reboot", host: aHost(installed), owner: ours, kubelet: "inactive/enabled", state: v1beta1.HostLeaving, reason: eventZombieKubelet},
		{name: "ours by its Node, joined by the existing provider", host: aHost(installedBeforeRevisions), kubelet: "active/enabled", nodeKnown: true,
			state: v1beta1.HostLeaving, reason: eventZombieKubelet, says: "provider ID"},
		{name: "installed by us, but neither owner file nor Node", host: aHost(installed), kubelet: "active/enabled", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "a Node of ours, but nothing was installed (section 3 #25)", host: aHost(), kubelet: "active/enabled", nodeKnown: true,
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "nothing known of it", host: aHost(), kubelet: "active/enabled", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet, says: "systemctl disable --now kubelet"},
		{name: "nothing known of it, waiting for a reboot", host: aHost(), kubelet: "inactive/enabled", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "nothing known of it, crashing", host: aHost(), kubelet: "activating/enabled", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "an install of ours that was cut short enabled it", host: aHost(), owner: ours, kubelet: "activating/enabled", state: v1beta1.HostAvailable},
		{name: "it runs for us, but what was installed is not known", host: aHost(), owner: ours, kubelet: "active/enabled", state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonForeignKubelet},
		{name: "not there", host: aHost(installed), owner: ours, kubelet: "inactive/", state: v1beta1.HostAvailable},
		{name: "masked", host: aHost(installed), owner: ours, kubelet: "inactive/masked", state: v1beta1.HostAvailable},
		{name: "no systemd", host: aHost(), kubelet: "absent/", state: v1beta1.HostAvailable},

		// A Node without a machine: the kubelet registered again while its machine left, and no cache showed the Node then.
		{name: "its Node is left over", host: aHost(installed), leftOver: "n1", state: v1beta1.HostLeaving, reason: eventNodeLeftOver, says: "Node n1"},
		{name: "its Node is left over, whatever its clock", host: aHost(installed), leftOver: "n1", skew: time.Hour, state: v1beta1.HostLeaving, reason: eventNodeLeftOver},

		// Clocks.
		{name: "clock a little off", host: aHost(), skew: 2 * time.Minute, state: v1beta1.HostAvailable},
		{name: "clock far ahead", host: aHost(), skew: 6 * time.Minute, state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonClockSkewed, says: "ahead"},
		{name: "clock far behind", host: aHost(), skew: -time.Hour, state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonClockSkewed, says: "behind"},
		{name: "a zombie leaves whatever its clock", host: aHost(installed), owner: ours, kubelet: "active/enabled", skew: time.Hour, state: v1beta1.HostLeaving, reason: eventZombieKubelet},

		// Backoff after failed joins.
		{name: "the join's report stays until the backoff is over", host: aHost(unhealthy("ScriptFailed"), failed("ScriptFailed", -time.Minute, time.Minute)), state: v1beta1.HostUnhealthy},
		{name: "answers again, but in backoff", host: aHost(unhealthy(v1beta1.ReasonProbeFailed), failed("ScriptFailed", -time.Minute, time.Minute)),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonBackoff, says: "ScriptFailed"},
		{name: "in backoff after maintenance", host: aHost(state(v1beta1.HostPending), failed("ScriptFailed", -time.Minute, time.Minute)), state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonBackoff},
		{name: "answers again, but in quarantine", host: aHost(unhealthy(v1beta1.ReasonProbeFailed), failed("ScriptFailed", -time.Minute, time.Hour), quarantined(time.Hour)),
			state: v1beta1.HostUnhealthy, reason: v1beta1.ReasonQuarantined, says: v1beta1.ClearFailuresAnnotation},
		{name: "the quarantine is over", host: aHost(unhealthy(v1beta1.ReasonQuarantined), failed("ScriptFailed", -time.Hour, -time.Second), quarantined(-time.Second)), state: v1beta1.HostAvailable},
		{name: "backoff is over", host: aHost(unhealthy("ScriptFailed"), failed("ScriptFailed", -time.Minute, -time.Second)), state: v1beta1.HostAvailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.kubelet == "" {
				tc.kubelet = "inactive/disabled"
			}
			o := observation{err: tc.err, skew: tc.skew, nodeKnown: tc.nodeKnown, leftOver: tc.leftOver, facts: facts{owner: tc.owner, units: units(tc.kubelet)}}
			got := judge(tc.host, o, self, noon)
			if got.state != tc.state || got.reason != tc.reason || !strings.Contains(got.message, tc.says) {
				t.Fatalf("want %s %s saying %q, got %+v", tc.state, tc.reason, tc.says, got)
			}
		})
	}
}

// Events are for changes (section 3 #41), conditions and Ready for states.
func TestRecord(t *testing.T) {
	seen := func(edits ...func(*observation)) observation {
		f, err := parseFacts(said(), []string{"kubelet"})
		if err != nil {
			t.Fatal(err)
		}
		o := observation{facts: f, fingerprint: "SHA256:one"}
		for _, e := range edits {
			e(&o)
		}
		return o
	}
	key := func(fingerprint string) edit {
		return func(h *v1beta1.SSHHost) { h.Status.HostKeyFingerprint = fingerprint }
	}
	dead := func(o *observation) { *o = observation{err: fault.New(fault.Network, "DialTimeout", nil, "no answer")} }
	wrongKey := func(o *observation) {
		*o = observation{err: fault.New(fault.Host, v1beta1.ReasonHostKeyMismatch, nil, "SHA256:one, not SHA256:two")}
	}
	taken := func(owner string) func(*observation) { return func(o *observation) { o.facts.owner = owner } }
	rogue := func(o *observation) { o.facts.units = units("active/enabled") }
	late := func(d time.Duration) func(*observation) { return func(o *observation) { o.skew = d } }
	size := func(cpu, memory string) edit {
		return func(h *v1beta1.SSHHost) { h.Spec.Capacity = capacity(cpu, memory) }
	}
	saw := func(cpu, memory string) edit {
		return func(h *v1beta1.SSHHost) { h.Status.ObservedCapacity = capacity(cpu, memory) }
	}
	condition := func(kind string, status metav1.ConditionStatus, reason string) edit {
		return func(h *v1beta1.SSHHost) { host.SetCondition(h, noon, kind, status, reason, "") }
	}
	skewed := condition(v1beta1.ConditionClockSynced, metav1.ConditionFalse, v1beta1.ReasonClockSkewed)

	for _, tc := range []struct {
		name   string
		host   *v1beta1.SSHHost
		seen   observation
		events string // type and reason of each, in order
		want   func(*v1beta1.SSHHost) bool
	}{
		{name: "first success pins the host key", host: aHost(), seen: seen(), events: "[Normal HostKeyRecorded Normal ProbeSucceeded]",
			want: func(h *v1beta1.SSHHost) bool {
				return h.Status.HostKeyFingerprint == "SHA256:one" && h.Status.State == v1beta1.HostAvailable && h.Status.ObservedArch == "amd64" &&
					h.Status.ObservedGeneration == 1 && is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionTrue) && is(h, v1beta1.ConditionClockSynced, metav1.ConditionTrue)
			}},
		{name: "a heartbeat is no event", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one")), seen: seen(), events: "[]",
			want: func(h *v1beta1.SSHHost) bool { return h.Status.LastProbeTime.Time.Equal(noon) }},
		{name: "an accepted new key replaces the pin (D18)", host: aHost(state(v1beta1.HostAvailable), key("SHA256:old")), seen: seen(), events: "[Normal HostKeyReplaced]",
			want: func(h *v1beta1.SSHHost) bool { return h.Status.HostKeyFingerprint == "SHA256:one" }},
		{name: "a refused key replaces nothing (D18)", host: aHost(state(v1beta1.HostAvailable), key("SHA256:two")), seen: seen(wrongKey), events: "[Warning HostKeyMismatch]",
			want: func(h *v1beta1.SSHHost) bool {
				return h.Status.HostKeyFingerprint == "SHA256:two" && h.Status.State == v1beta1.HostUnhealthy && is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionFalse)
			}},
		{name: "L3, found by seeds: another owner has the machine, so no leave is pending any more", host: aHost(unhealthy(v1beta1.ReasonLeaveFailed), installed, leavePending, key("SHA256:one")),
			seen: seen(taken(reborn)), events: "[Normal LeaveOvertaken Warning HostOwnedElsewhere]",
			want: func(h *v1beta1.SSHHost) bool {
				return h.Status.State == v1beta1.HostUnhealthy && !host.LeavePending(h) && is(h, v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue)
			}},
		{name: "an owner file that says nothing leaves a leave pending", host: aHost(unhealthy(v1beta1.ReasonLeaveFailed), installed, leavePending, key("SHA256:one")),
			seen: seen(taken("garbage")), events: "[Warning HostOwnedElsewhere]", want: host.LeavePending},
		{name: "goes down", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), saw("4", "8Gi")), seen: seen(dead), events: "[Warning ProbeFailed]",
			want: func(h *v1beta1.SSHHost) bool {
				return h.Status.State == v1beta1.HostUnhealthy && h.Status.LastProbeError == "no answer" && !h.Status.ObservedCapacity.Cpu().IsZero() &&
					h.Status.ObservedGeneration == 1 && h.Status.LastProbeTime != nil
			}},
		{name: "stays down", host: aHost(unhealthy(v1beta1.ReasonProbeFailed)), seen: seen(dead), events: "[]"},
		{name: "recovers", host: aHost(unhealthy(v1beta1.ReasonProbeFailed), key("SHA256:one")), seen: seen(), events: "[Normal ProbeRecovered]",
			want: func(h *v1beta1.SSHHost) bool {
				return h.Status.State == v1beta1.HostAvailable && h.Status.LastProbeError == ""
			}},
		{name: "a foreign kubelet appears", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one")), seen: seen(rogue), events: "[Warning ForeignKubelet]"},
		{name: "and stays", host: aHost(unhealthy(v1beta1.ReasonForeignKubelet), key("SHA256:one")), seen: seen(rogue), events: "[]"},
		{name: "down for another reason", host: aHost(unhealthy(v1beta1.ReasonForeignKubelet), key("SHA256:one")), seen: seen(dead), events: "[Warning ProbeFailed]"},
		{name: "a zombie", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), installed), seen: seen(rogue, func(o *observation) { o.facts.owner = ours }),
			events: "[Warning ZombieKubelet]", want: func(h *v1beta1.SSHHost) bool {
				return h.Status.State == v1beta1.HostLeaving && h.Status.ClaimRef == nil
			}},
		{name: "backoff is quiet", host: aHost(state(v1beta1.HostPending), key("SHA256:one"), failed("ScriptFailed", 0, time.Minute)), seen: seen(), events: "[]"},

		{name: "less than specified", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), size("8", "1Gi"), probed(0), saw("8", "1Gi")), seen: seen(), events: "[Warning CapacityDrift]"},
		{name: "less than specified at first sight", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), size("4", "64Gi")), seen: seen(), events: "[Warning CapacityDrift]"},
		{name: "still less", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), size("8", "1Gi"), probed(0), saw("4", "1Gi")), seen: seen(), events: "[]"},
		{name: "less than a new specification", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), size("8", "1Gi"), probed(0), saw("4", "1Gi"), func(h *v1beta1.SSHHost) { h.Generation = 2 }),
			seen: seen(), events: "[Warning CapacityDrift]"},
		{name: "enough again re-arms", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), size("4", "1Gi"), probed(0), saw("2", "1Gi")), seen: seen(), events: "[]"},

		{name: "clock drifts", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one")), seen: seen(late(time.Minute)), events: "[Warning ClockSkewed]",
			want: func(h *v1beta1.SSHHost) bool {
				return is(h, v1beta1.ConditionClockSynced, metav1.ConditionFalse) && h.Status.State == v1beta1.HostAvailable
			}},
		{name: "clock drifts on", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one"), skewed), seen: seen(late(-time.Minute)), events: "[]"},
		{name: "clock is far off: one event, not two", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one")), seen: seen(late(time.Hour)), events: "[Warning ClockSkewed]",
			want: func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostUnhealthy }},
		{name: "clock is set", host: aHost(unhealthy(v1beta1.ReasonClockSkewed), key("SHA256:one"), skewed), seen: seen(), events: "[Normal ProbeRecovered]",
			want: func(h *v1beta1.SSHHost) bool { return is(h, v1beta1.ConditionClockSynced, metav1.ConditionTrue) }},

		{name: "found to be owned elsewhere", host: aHost(state(v1beta1.HostAvailable), key("SHA256:one")), seen: seen(func(o *observation) { o.facts.owner = foreign }),
			events: "[Warning HostOwnedElsewhere]", want: func(h *v1beta1.SSHHost) bool { return is(h, v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue) }},
		{name: "given up by the other owner", host: aHost(unhealthy(v1beta1.ReasonHostOwnedElsewhere), key("SHA256:one"), condition(v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue, v1beta1.ReasonHostOwnedElsewhere)),
			seen: seen(), events: "[Normal ProbeRecovered]", want: func(h *v1beta1.SSHHost) bool {
				return !is(h, v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue) && h.Status.State == v1beta1.HostAvailable
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := tc.host.DeepCopy()
			var got []string
			for _, n := range record(h, tc.seen, judge(h, tc.seen, self, noon), noon) {
				kind := "Normal"
				if n.warning {
					kind = "Warning"
				}
				got = append(got, kind, n.reason)
			}
			if fmt.Sprint(got) != tc.events {
				t.Errorf("want events %s, got %s", tc.events, got)
			}
			if tc.want != nil && !tc.want(h) {
				t.Errorf("status is %+v", h.Status)
			}
		})
	}
}

// Issue 5 #6: what lies before the machine changes neither its state nor what is known about it, and is told once. It is not offered until
// the machine was asked again.
func TestBlockedHostKeepsItsState(t *testing.T) {
	blocked := observation{err: fault.New(fault.Network, "JumpHostUnreachable", nil, "jump host 1 of 1").BeforeMachine()}
	for _, state := range []v1beta1.HostState{v1beta1.HostAvailable, v1beta1.HostPending, v1beta1.HostUnhealthy} {
		h := aHost(func(h *v1beta1.SSHHost) {
			h.Status.State, h.Status.LastProbeError = state, "as before"
			h.Status.Failures = &v1beta1.HostFailures{Count: 1}
		})
		before := h.Status.DeepCopy()
		news := record(h, blocked, judge(h, blocked, self, noon), noon)
		if len(news) != 1 || !news[0].warning || news[0].reason != "JumpHostUnreachable" {
			t.Errorf("%s: events %v", state, news)
		}
		if h.Status.State != state || h.Status.LastProbeError != "as before" || h.Status.Failures.Count != 1 || len(h.Status.Conditions) != len(before.Conditions)+1 {
			t.Errorf("%s: the status became %+v", state, h.Status)
		}
		if ok, _ := host.Claimable(h); ok {
			t.Errorf("%s: it is offered", state)
		}
		if again := record(h, blocked, judge(h, blocked, self, noon), noon.Add(time.Hour)); len(again) != 0 {
			t.Errorf("%s: it is told again: %v", state, again)
		}
		// A machine that is asked and does not answer is unwell, whatever was before.
		silent := observation{err: fault.New(fault.Network, "DialTimeout", nil, "through jump host 1 of 1: no answer")}
		asked := h.DeepCopy()
		record(asked, silent, judge(asked, silent, self, noon), noon)
		if asked.Status.State != v1beta1.HostUnhealthy || host.Blocked(asked) != nil {
			t.Errorf("%s: after no answer: %+v", state, asked.Status)
		}
	}
}
