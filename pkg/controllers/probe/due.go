package probe

import (
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/maintenance"
)

const (
	// maxPause bounds the backoff of a host that does not answer: so long after its return it is noticed at the latest.
	maxPause = 10 * time.Minute
	// blip is the first pause after a network failure; most of those are over by then, and the host should not be missed for longer.
	blip = 30 * time.Second
	// apiPause is the pause after a failure that is not the host's: the API server's, or this process's own.
	apiPause = 10 * time.Second
)

// memory is what this process remembers of a host between probes.
type memory struct {
	// generation that was last probed, whatever came of it.
	generation int64
	// earliest next probe, unless the spec changes; zero if this process has not probed the host.
	earliest time.Time
	// retry is when a write that failed is tried again.
	retry time.Time
	// failures in a row.
	failures int
	// leaves since the host was last Available.
	leaves int
	// urged is set when a person did something about what was wrong.
	urged bool
	// boot is the machine's boot ID.
	boot string
}

// stage is what a host needs from this controller.
type stage int

const (
	// leave it alone: it is somebody else's turn, or nobody's.
	leaveAlone stage = iota
	// park it: its annotation asks for maintenance, or one of its windows is open.
	park
	// unpark it: neither does any more.
	unpark
	// probe it, when it is due.
	probe
)

// stageOf decides what a host needs now. Hosts that are held, or leaving, are the join controller's: a window that opens disturbs none.
func stageOf(h *v1beta1.SSHHost, now time.Time) stage {
	state := host.State(h)
	resting := h.InMaintenance()
	if !resting {
		windows, _ := maintenance.At(h.Spec.MaintenanceWindows, now) // a window that cannot be read is told by record
		resting = windows.Open
	}
	switch {
	case h.Status.ClaimRef != nil, state == v1beta1.HostClaimed, state == v1beta1.HostInUse, state == v1beta1.HostLeaving:
		return leaveAlone
	case state == v1beta1.HostMaintenance && resting:
		return leaveAlone
	case state == v1beta1.HostMaintenance:
		return unpark
	case resting:
		return park
	case host.Prewarming(h):
		return leaveAlone
	case !h.DeletionTimestamp.IsZero() && !host.LeavePending(h):
		return leaveAlone // its machine has nothing to undo
	}
	return probe
}

// due is when a host is to be probed; the zero time means now. A heartbeat of our own changes nothing about it (section 2 #10), an
// edit of the spec does.
func due(h *v1beta1.SSHHost, m memory, interval time.Duration) time.Time {
	next := m.earliest
	switch {
	case m.urged, h.Generation != h.Status.ObservedGeneration && h.Generation != m.generation:
		return time.Time{}
	case next.IsZero() && host.Forgivable(h):
		return time.Time{} // asked for while no process was there to see it
	case !next.IsZero():
	case host.State(h) == v1beta1.HostPending || h.Status.LastProbeTime == nil:
		return time.Time{}
	default:
		next = h.Status.LastProbeTime.Add(interval)
	}
	if failures := h.Status.Failures; failures != nil && !host.LeavePending(h) {
		// Nothing can come of a probe before the host may be offered again, except that it is locked out for trying too often (D6).
		if failures.NotBefore != nil && failures.NotBefore.After(next) {
			next = failures.NotBefore.Time
		}
		if after := lastFailure(failures).Add(interval); failures.LastReason == reasonAuthenticationFailed && after.After(next) {
			next = after
		}
	}
	return next
}

const reasonAuthenticationFailed = "AuthenticationFailed"

func lastFailure(f *v1beta1.HostFailures) time.Time {
	if f.LastTime == nil {
		return time.Time{}
	}
	return f.LastTime.Time
}

// pause is how long a host rests after a probe; failures counts failed ones in a row, this one included. Only the network is tried
// again sooner than after the interval: a refused login that is repeated gets this controller banned from the machine (D6).
func pause(err *fault.Error, failures int, interval time.Duration) time.Duration {
	if err == nil {
		return interval
	}
	switch err.Blame {
	case fault.Cluster:
		return min(apiPause, interval)
	case fault.Configuration:
		return interval // no machine was asked
	case fault.Network:
		if failures == 1 {
			return min(blip, interval)
		}
		if err.Before {
			return interval // what is mended at a jump host is mended for all the hosts behind it
		}
		failures--
	}
	return doubled(interval, failures)
}

// doubled is a pause that doubles with each failure in a row after the first, up to maxPause.
func doubled(interval time.Duration, failures int) time.Duration {
	longest := max(maxPause, interval)
	if failures > 10 {
		return longest
	}
	return min(longest, interval<<(failures-1))
}

// laneOf sorts a host by how likely it answers.
func laneOf(h *v1beta1.SSHHost, m memory) lane {
	switch {
	case m.failures > 0 || host.State(h) == v1beta1.HostUnhealthy:
		return suspect
	case h.Status.LastProbeTime == nil:
		return unknown
	}
	return proven
}
