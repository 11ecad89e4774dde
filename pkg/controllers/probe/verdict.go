package probe

import (
	"fmt"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

const (
	// skewNoticed is the difference of clocks from which on the ClockSynced condition is False.
	skewNoticed = 30 * time.Second
	// skewRefused is the difference from which on a host is parked: fresh certificates and tokens would not be valid yet, or any more.
	skewRefused = 5 * time.Minute
)

// observation is what came of a probe.
type observation struct {
	facts facts
	// skew is how far the machine's clock is ahead, negative if behind; what the connection's delay may explain is left out.
	skew time.Duration
	// fingerprint of the host key; empty if the connection did not come about.
	fingerprint string
	// nodeKnown tells that a Node with the host's provider ID exists. Looked up only where the verdict rests on it.
	nodeKnown bool
	// leftOver is a Node with the host's provider ID, although no kubelet runs on the machine or would at its next boot; empty if there is none.
	leftOver string
	// err is why there are no facts.
	err *fault.Error
}

// verdict is what becomes of the host.
type verdict struct {
	// state is Available, Unhealthy or Leaving. Empty: it stays what it is, because the machine was not asked.
	state v1beta1.HostState
	// reason and message, for Unhealthy and Leaving. Empty with Unhealthy: it stays what it is, for the reason it has.
	reason, message string
}

// Event reasons that are no condition's.
const (
	eventZombieKubelet   = "ZombieKubelet"
	eventLeaveResumed    = "LeaveResumed"
	eventNodeLeftOver    = "NodeLeftOver"
	eventLeaveOvertaken  = "LeaveOvertaken"
	eventProbeRecovered  = "ProbeRecovered"
	eventCapacityDrift   = "CapacityDrift"
	eventHostKeyRecorded = "HostKeyRecorded"
	eventHostKeyReplaced = "HostKeyReplaced"
	eventFailuresCleared = "FailuresCleared"

	eventMaintenanceStarted = "MaintenanceStarted"
	eventMaintenanceEnded   = "MaintenanceEnded"
)

// judge decides what becomes of an unclaimed host, from the newest object and what was observed. self names this cluster and instance.
func judge(h *v1beta1.SSHHost, o observation, self ssh.Owner, now time.Time) verdict {
	if o.err != nil && o.err.Before {
		return verdict{reason: o.err.Reason, message: o.err.Error()}
	}
	if o.err != nil {
		reason := v1beta1.ReasonProbeFailed
		if wrongHostKey(o.err) {
			reason = v1beta1.ReasonHostKeyMismatch
		}
		return verdict{v1beta1.HostUnhealthy, reason, o.err.Error()}
	}
	owner := readOwner(o.facts.owner)
	holder := holderOf(h, owner, self.Cluster)
	if holder == holdsElsewhere {
		return verdict{v1beta1.HostUnhealthy, v1beta1.ReasonHostOwnedElsewhere, fmt.Sprintf(
			"the machine says that %s owns it: %q. Remove one of the two SSHHosts that list it. If that owner no longer exists, annotate this SSHHost with %s=%q",
			relation(owner, self), owner, v1beta1.TakeOverAnnotation, owner)}
	}
	if host.LeavePending(h) {
		return verdict{v1beta1.HostLeaving, eventLeaveResumed, "the machine answers; its leave script has yet to run"}
	}
	if unit, found := o.facts.kubelet(); found {
		if v, decided := zombie(h, unit, holder, o.nodeKnown); decided {
			return v
		}
	} else if o.leftOver != "" {
		return verdict{v1beta1.HostLeaving, eventNodeLeftOver, fmt.Sprintf(
			"no NodeClaim holds this host and no kubelet runs on it, yet Node %s has its provider ID: it leaves once more, and the Node with it", o.leftOver)}
	}
	if skew := o.skew.Abs(); skew > skewRefused {
		return verdict{v1beta1.HostUnhealthy, v1beta1.ReasonClockSkewed, skewMessage(o.skew) + ": certificates would be refused. Set up time synchronisation on the machine"}
	}
	if f := h.Status.Failures; f != nil && f.NotBefore != nil && f.NotBefore.After(now) {
		return backoff(h, f, now)
	}
	return verdict{state: v1beta1.HostAvailable}
}

// prepared tells whether a script of ours prepared the machine, so that there is one that makes it leave.
func prepared(h *v1beta1.SSHHost) bool {
	return h.Status.InstalledProfile != "" || h.Status.InstalledRevision != ""
}

// zombie decides about a kubelet on a host that nobody claims. What is ours leaves; what is not is never touched.
func zombie(h *v1beta1.SSHHost, u unit, holder holder, nodeKnown bool) (verdict, bool) {
	switch {
	case holder == holdsHere && prepared(h):
		return verdict{v1beta1.HostLeaving, eventZombieKubelet, fmt.Sprintf(
			"no NodeClaim holds this host, yet %s, and the machine says that this SSHHost made it join: it leaves", u)}, true
	case prepared(h) && nodeKnown:
		return verdict{v1beta1.HostLeaving, eventZombieKubelet, fmt.Sprintf(
			"no NodeClaim holds this host, yet %s, and a Node has its provider ID: it leaves", u)}, true
	case holder == holdsHere && u.active != "active":
		// An install that was cut short: a join would have been recorded before it ran. The next install finishes it.
		return verdict{}, false
	}
	return verdict{v1beta1.HostUnhealthy, v1beta1.ReasonForeignKubelet, fmt.Sprintf(
		"%s, and nothing shows that this SSHHost made it join: it is left alone. If the machine is free, run `systemctl disable --now %s` on it", u, u.name)}, true
}

// backoff keeps a host from being offered so soon after a join failed on it. The join's own report stays.
func backoff(h *v1beta1.SSHHost, f *v1beta1.HostFailures, now time.Time) verdict {
	if host.State(h) == v1beta1.HostUnhealthy {
		switch readyReason(h) {
		case v1beta1.ReasonProbeFailed, v1beta1.ReasonHostKeyMismatch, v1beta1.ReasonClockSkewed, v1beta1.ReasonForeignKubelet, v1beta1.ReasonHostOwnedElsewhere:
		default:
			return verdict{state: v1beta1.HostUnhealthy}
		}
	}
	if host.HealthOf(f, now) == host.Quarantined {
		return verdict{v1beta1.HostUnhealthy, v1beta1.ReasonQuarantined, host.Quarantine(f, "")}
	}
	return verdict{v1beta1.HostUnhealthy, v1beta1.ReasonBackoff, fmt.Sprintf("joining failed %d times, last with %s; the host is offered again after %s",
		f.Count, f.LastReason, f.NotBefore.UTC().Format(time.RFC3339))}
}

// holder is whom the machine says it belongs to.
type holder int

const (
	holdsNobody holder = iota
	holdsHere
	holdsElsewhere
	// holdsStale is somebody else whom a person has given up, by an annotation that quotes it.
	holdsStale
)

// readOwner reads the owner file's fields off one line. Nil if there is no owner file.
func readOwner(line string) *ssh.Owner {
	if line == "" {
		return nil
	}
	owner := &ssh.Owner{}
	for field := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "cluster":
			owner.Cluster = value
		case "instance":
			owner.Instance = value
		case "host":
			owner.Host = value
		case "claim":
			owner.Claim = value
		}
	}
	return owner
}

// holderOf judges the owner file as the machine itself does before it lets a phase run.
func holderOf(h *v1beta1.SSHHost, owner *ssh.Owner, cluster string) holder {
	switch {
	case owner == nil:
		return holdsNobody
	case owner.Cluster == cluster && owner.Host == string(h.UID):
		return holdsHere
	case strings.TrimSpace(h.Annotations[v1beta1.TakeOverAnnotation]) == owner.String():
		return holdsStale
	}
	return holdsElsewhere
}

// wrongHostKey tells whether the machine showed a key that it must not have.
func wrongHostKey(err *fault.Error) bool {
	return err.Reason == v1beta1.ReasonHostKeyMismatch || err.Reason == "HostKeyRevoked" || err.Reason == "HostCertificateInvalid"
}

func readyReason(h *v1beta1.SSHHost) string {
	if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); ready != nil {
		return ready.Reason
	}
	return ""
}

// relation says who another owner is, seen from here.
func relation(owner *ssh.Owner, self ssh.Owner) string {
	switch {
	case owner.Cluster != self.Cluster:
		return "another cluster"
	case owner.Instance != self.Instance:
		return fmt.Sprintf("instance %q of this cluster", owner.Instance)
	}
	return "another SSHHost of this instance, or an earlier one of this name,"
}

func skewMessage(skew time.Duration) string {
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the machine's clock is %s %s the controller's", skew.Abs().Round(time.Second), direction)
}
