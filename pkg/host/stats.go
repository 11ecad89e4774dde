package host

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

var states = []v1beta1.HostState{
	v1beta1.HostPending, v1beta1.HostAvailable, v1beta1.HostClaimed, v1beta1.HostInUse, v1beta1.HostUnhealthy, v1beta1.HostLeaving, v1beta1.HostMaintenance,
}

// passing are the states that end by themselves, if nothing is wrong.
var passing = []v1beta1.HostState{v1beta1.HostPending, v1beta1.HostClaimed, v1beta1.HostLeaving}

// reasonHostKeyRevoked is a host key that a pin forbids; no other is as bad.
const reasonHostKeyRevoked = "HostKeyRevoked"

// Stats are figures of all hosts, for metrics.Pool. A bootstrap token counts as overdue when it is on record for longer than lifetime.
func (i *Inventory) Stats(lifetime time.Duration) metrics.PoolStats {
	now := i.clock.Now()
	stats := metrics.PoolStats{Hosts: map[metrics.PoolKey]int{}, Oldest: map[string]float64{}}
	for _, state := range passing {
		stats.Oldest[string(state)] = 0
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	for _, h := range i.hosts {
		class, state := h.HostClass(), string(State(h))
		if _, seen := stats.Hosts[metrics.PoolKey{State: state, HostClass: class}]; !seen {
			for _, each := range states { // a state that empties must go to 0, not vanish
				key := metrics.PoolKey{State: string(each), HostClass: class}
				stats.Hosts[key] += 0
			}
		}
		stats.Hosts[metrics.PoolKey{State: state, HostClass: class}]++
		if oldest, passes := stats.Oldest[state]; passes {
			stats.Oldest[state] = max(oldest, now.Sub(i.since[h.Name]).Seconds())
		}
		for _, trouble := range troubles(h) {
			stats.Troubles = append(stats.Troubles, metrics.HostTrouble{Host: h.Name, HostClass: class, Trouble: trouble})
		}
		if h.Status.BootstrapTokenID != "" {
			stats.Tokens++
			if now.Sub(recordedAt(h)) > lifetime {
				stats.Overdue++
			}
		}
	}
	return stats
}

// troubles are what a person has to look at, as the reasons of the host's conditions. A host in maintenance is being looked at.
func troubles(h *v1beta1.SSHHost) (found []string) {
	if h.InMaintenance() {
		return nil
	}
	if apimeta.IsStatusConditionFalse(h.Status.Conditions, v1beta1.ConditionHostKeyVerified) || parkedFor(h, v1beta1.ReasonHostKeyMismatch, reasonHostKeyRevoked) {
		found = append(found, v1beta1.ReasonHostKeyMismatch)
	}
	if parkedFor(h, v1beta1.ReasonForeignKubelet) {
		found = append(found, v1beta1.ReasonForeignKubelet)
	}
	if LeavePending(h) {
		found = append(found, v1beta1.ConditionLeavePending)
	}
	if apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionOwnedElsewhere) || parkedFor(h, v1beta1.ReasonHostOwnedElsewhere) {
		found = append(found, v1beta1.ReasonHostOwnedElsewhere)
	}
	if parkedFor(h, v1beta1.ReasonClockSkewed) {
		found = append(found, v1beta1.ReasonClockSkewed)
	}
	if parkedFor(h, v1beta1.ReasonQuarantined) {
		found = append(found, v1beta1.ReasonQuarantined)
	}
	return found
}

// parkedFor tells whether the host is Unhealthy for one of these reasons.
func parkedFor(h *v1beta1.SSHHost, reasons ...string) bool {
	ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady)
	if ready == nil || State(h) != v1beta1.HostUnhealthy {
		return false
	}
	for _, reason := range reasons {
		if ready.Reason == reason {
			return true
		}
	}
	return false
}

// recordedAt is when the token's join began, at the latest when the host was claimed.
func recordedAt(h *v1beta1.SSHHost) time.Time {
	if joined := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionJoined); joined != nil {
		return joined.LastTransitionTime.Time
	}
	if ref := h.Status.ClaimRef; ref != nil && ref.ClaimedAt != nil {
		return ref.ClaimedAt.Time
	}
	return h.CreationTimestamp.Time
}
