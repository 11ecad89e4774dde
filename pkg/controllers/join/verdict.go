package join

import (
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

const (
	// networkAttempts is how often an unreachable host is tried before another one gets the claim.
	networkAttempts = 3
	// configurationPatience is how long a claim waits for a person to mend a profile, class or Secret. The class is not Ready meanwhile,
	// so karpenter plans nothing new with it.
	configurationPatience = 2 * time.Minute
	// temporaryPatience is how long a host is tried whose script asks to be run again, such as for a package manager that is busy after
	// boot. Karpenter gives up on the NodeClaim after 15 minutes.
	temporaryPatience = 10 * time.Minute
	// busyPatience outlasts the time after which a machine ends a phase whose controller was cut off: three keepalive intervals, and one
	// more wait for the machine's lock.
	busyPatience = 3 * time.Minute
	// leavePatience bounds how long the deletion of a Node and its NodeClaim waits for a machine that does not answer.
	leavePatience = 3 * time.Minute
	// leaveAttempts bounds how often a leave script that fails is run before the claim is let go.
	leaveAttempts = 3
	maxPause      = 30 * time.Second
)

// pause grows from one second and doubles, so that what mends itself is soon noticed and what does not costs little.
func pause(attempt int32) time.Duration {
	if attempt > 5 {
		return maxPause
	}
	return min(maxPause, time.Second<<(attempt-1))
}

// verdict is what a failed join leads to.
type verdict struct {
	// again tries the same host for the same claim, after a pause.
	again bool
	// release is what becomes of the host otherwise; the NodeClaim is deleted, so that karpenter tries elsewhere at once.
	release host.Release
}

// judgeJoin decides what a failed join leads to. hostOnly says that the failure concerns this host alone, even where the
// configuration is at fault: its own key Secret, for one.
func judgeJoin(f *fault.Error, hostOnly bool, attempts int32, failingFor time.Duration) verdict {
	park := verdict{release: host.Release{State: v1beta1.HostUnhealthy, Reason: f.Reason, Message: f.Error(), Failed: true, Blamed: f.Blame == fault.Host}}
	if f.Reason == v1beta1.ReasonNodeNameInUse {
		return verdict{release: host.Release{State: v1beta1.HostAvailable}} // the next NodeClaim has another name
	}
	if f.Before && f.Blame != fault.Cluster {
		// A jump host or a certificate: the machine has done nothing wrong, and nothing about it is to be unlearnt.
		return verdict{again: f.Blame == fault.Network && attempts < networkAttempts,
			release: host.Release{State: v1beta1.HostAvailable, Reason: f.Reason, Message: f.Error(), Blocked: true}}
	}
	switch f.Blame {
	case fault.Cluster:
		return verdict{again: true}
	case fault.Network:
		if attempts < networkAttempts {
			return verdict{again: true}
		}
		return park
	case fault.Configuration:
		if hostOnly {
			return park
		}
		if failingFor < configurationPatience {
			return verdict{again: true}
		}
		return verdict{release: host.Release{State: v1beta1.HostAvailable}}
	}
	switch f.Reason {
	case reasonHostBusy:
		return verdict{again: failingFor < busyPatience, release: park.release}
	case reasonTemporaryFailure, reasonPackageManagerBusy:
		return verdict{again: failingFor < temporaryPatience, release: park.release}
	}
	return park
}

// giveUpLeave tells whether a leave that keeps failing lets the claim go; the host then stays out of use until it has left.
func giveUpLeave(f *fault.Error, attempts int32, failingFor time.Duration) bool {
	if f.Blame == fault.Cluster {
		return false
	}
	if f.Reason == reasonHostBusy {
		return failingFor >= busyPatience // the phase that holds the machine's lock will end, and then it can leave
	}
	return attempts >= leaveAttempts || failingFor >= leavePatience
}

// Reasons of host faults that pass.
const (
	reasonHostBusy           = "HostBusy"
	reasonTemporaryFailure   = "TemporaryFailure"
	reasonPackageManagerBusy = "PackageManagerBusy"
)
