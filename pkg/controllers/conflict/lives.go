package conflict

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// deadAfter is for how long a Lease must stay as it is, by this process's clock, before its instance counts as dead: nearly three times as
// long as another replica waits before it takes the Lease. With the time until the next survey it is less than a minute.
const deadAfter = 40 * time.Second

// lives judges instances by whether their Leases change while this process watches. It never compares the times that Leases carry with the
// clock here: they are other machines'.
type lives struct {
	self   string
	pulses map[string]pulse
}

type pulse struct {
	// beat is how the Lease looked; empty if there is none, or nobody holds it.
	beat string
	// changed is when that was seen first.
	changed time.Time
	// renewed tells whether the Lease was ever seen to change to be held.
	renewed bool
}

func newLives(self string) *lives { return &lives{self: self, pulses: map[string]pulse{}} }

// observe takes in the beats of all instances that there are; those without a Lease have an empty one. Others are forgotten.
func (l *lives) observe(now time.Time, beats map[string]string) {
	for name := range l.pulses {
		if _, there := beats[name]; !there {
			delete(l.pulses, name)
		}
	}
	for name, beat := range beats {
		was, known := l.pulses[name]
		if known && was.beat == beat {
			continue
		}
		l.pulses[name] = pulse{beat: beat, changed: now, renewed: known && beat != ""}
	}
}

func (l *lives) of(name string, now time.Time) Life {
	p, known := l.pulses[name]
	switch {
	case name == l.self:
		return Alive
	case !known:
		return Unsure
	case now.Sub(p.changed) >= deadAfter:
		return Dead
	case p.renewed:
		return Alive
	}
	return Unsure
}

func (l *lives) all(now time.Time) map[string]Life {
	all := map[string]Life{l.self: Alive}
	for name := range l.pulses {
		all[name] = l.of(name, now)
	}
	return all
}

// next is when the next instance may turn out to be dead, if that is sooner than limit.
func (l *lives) next(now time.Time, limit time.Duration) time.Duration {
	for name, p := range l.pulses {
		if left := deadAfter - now.Sub(p.changed); name != l.self && left > 0 {
			limit = min(limit, left)
		}
	}
	return limit
}

// beatOf changes whenever the holder of a Lease renews it.
func beatOf(lease *coordinationv1.Lease) string {
	holder, renewed := lease.Spec.HolderIdentity, lease.Spec.RenewTime
	if holder == nil || *holder == "" || renewed == nil {
		return ""
	}
	return fmt.Sprintf("%s %d", *holder, renewed.UnixMicro())
}
