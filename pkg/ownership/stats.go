package ownership

import (
	"sync/atomic"
	"time"
)

// counters of one kind. They only grow.
type counters struct {
	dropped    atomic.Uint64
	masked     atomic.Uint64
	split      atomic.Uint64
	translated atomic.Uint64
	injected   atomic.Uint64
	handovers  atomic.Uint64
	failures   atomic.Uint64
}

// KindStats says what happened to the objects of one kind since the process started.
type KindStats struct {
	// Dropped objects of lists and watches were not ours.
	Dropped uint64
	// Masked objects of lists and watches were made to look like another provider's.
	Masked uint64
	// Split objects were seen with a class of ours and a host of another instance, once per list or event.
	Split uint64
	// Translated events left our view by an edit and reached core as a deletion.
	Translated uint64
	// Injected events moved core from one class set to the next.
	Injected uint64
	// HandOvers that completed.
	HandOvers uint64
	// HandOverFailures are hand-overs that could not read the cluster and were tried again; the old view stayed in force.
	HandOverFailures uint64
	// Refused writes on objects that are not ours.
	Refused uint64
	// Lag is for how long core's cache has not shown the wanted class set; 0 when it does. Above 30 s a person should look.
	Lag time.Duration
}

// Stats returns the figures by kind: NodePool, NodeClaim, Node, CapacityBuffer, SSHNodeClass and SSHHost.
func (s *Seam) Stats() map[string]KindStats {
	out := make(map[string]KindStats, len(s.kinds)+len(s.guard.refused))
	for name, k := range s.kinds {
		st := k.counts.read()
		st.Lag = k.lag(s.clock.Now())
		out[name] = st
	}
	for name, c := range s.guard.refused {
		st := out[name]
		st.Refused = c.Load()
		out[name] = st
	}
	return out
}

func (c *counters) read() KindStats {
	return KindStats{
		Dropped: c.dropped.Load(), Masked: c.masked.Load(), Split: c.split.Load(), Translated: c.translated.Load(),
		Injected: c.injected.Load(), HandOvers: c.handovers.Load(), HandOverFailures: c.failures.Load(),
	}
}

// saw counts what a view made of an object.
func (c *counters) saw(s sight) {
	switch s {
	case hidden:
		c.dropped.Add(1)
	case split:
		c.split.Add(1)
	case masked:
		c.masked.Add(1)
	}
}
