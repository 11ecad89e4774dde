package probe

import (
	"container/heap"
	"math"
	"time"
)

// lane sorts hosts by how likely a probe of them ends soon: a host that does not answer holds its worker for many seconds, and must
// not hold up those that would have answered at once.
type lane int

const (
	// proven answered last time.
	proven lane = iota
	// unknown was never probed.
	unknown
	// suspect failed last time.
	suspect
	lanes
)

// schedule says whom to probe next. It is plain data, without clock or goroutines: the caller locks it and tells the time.
type schedule struct {
	// limit of probes at a time.
	limit int
	// interval between probes of one host.
	interval time.Duration

	entries map[string]*entry
	waiting [lanes]queue
	running [lanes]int
	// usual is how long a probe that succeeds takes, smoothed.
	usual time.Duration
}

// entry is one host in the schedule.
type entry struct {
	name string
	lane lane
	due  time.Time
	// index in its lane's queue; -1 while it is not in one.
	index int
	// lease is non-zero while the host is being probed: the lane whose worker it holds, plus one.
	lease lane
	// next is when it is due again, if that was decided while it was being probed; nil takes it out.
	next *time.Time
}

func newSchedule(limit int, interval time.Duration) *schedule {
	return &schedule{limit: max(limit, 1), interval: interval, entries: map[string]*entry{}, usual: time.Second}
}

// plan puts a host into the schedule, or moves it.
func (s *schedule) plan(name string, in lane, due time.Time) {
	e := s.entries[name]
	if e == nil {
		e = &entry{name: name, index: -1}
		s.entries[name] = e
	}
	if e.lease != 0 {
		e.lane, e.next = in, &due
		return
	}
	if e.index >= 0 {
		heap.Remove(&s.waiting[e.lane], e.index)
	}
	e.lane, e.due = in, due
	heap.Push(&s.waiting[in], e)
}

// drop takes a host out of the schedule.
func (s *schedule) drop(name string) {
	e := s.entries[name]
	if e == nil {
		return
	}
	if e.lease != 0 {
		e.next = nil
		return
	}
	if e.index >= 0 {
		heap.Remove(&s.waiting[e.lane], e.index)
	}
	delete(s.entries, name)
}

// take hands out the next host that is due, if there is a worker for it. Otherwise wait is how long until one is due; negative if
// only the end of a running probe, or news of a host, can change anything.
func (s *schedule) take(now time.Time) (name string, wait time.Duration) {
	wait = -1
	for in := proven; in < lanes; in++ {
		if len(s.waiting[in]) == 0 || !s.free(in) {
			continue
		}
		first := s.waiting[in][0]
		if until := first.due.Sub(now); until > 0 {
			if wait < 0 || until < wait {
				wait = until
			}
			continue
		}
		heap.Pop(&s.waiting[in])
		first.lease, first.next = in+1, nil
		s.running[in]++
		return first.name, 0
	}
	return "", wait
}

// done gives a host's worker back. The host stays in the schedule only if it was planned again meanwhile.
func (s *schedule) done(name string, took time.Duration, succeeded bool) {
	e := s.entries[name]
	if e == nil || e.lease == 0 {
		return
	}
	s.running[e.lease-1]--
	e.lease = 0
	if succeeded {
		s.usual += (took - s.usual) / 16
	}
	if e.next == nil {
		delete(s.entries, name)
		return
	}
	e.due, e.next = *e.next, nil
	heap.Push(&s.waiting[e.lane], e)
}

// busy tells whether the host is being probed.
func (s *schedule) busy(name string) bool {
	e := s.entries[name]
	return e != nil && e.lease != 0
}

// free tells whether a lane may use another worker.
func (s *schedule) free(in lane) bool {
	total := 0
	for _, n := range s.running {
		total += n
	}
	if total >= s.limit {
		return false
	}
	if in == proven {
		return true
	}
	return s.running[unknown]+s.running[suspect] < doubtful(s.limit, s.proven(), s.usual, s.interval)
}

// proven is the number of hosts that answered last time.
func (s *schedule) proven() int { return len(s.waiting[proven]) + s.running[proven] }

// doubtful is how many workers hosts that may not answer can have at a time. Those that answer keep twice what they need on average,
// and at least a quarter; the others keep a quarter too, so that a machine which comes back is noticed however busy the rest is.
func doubtful(limit, answering int, usual, interval time.Duration) int {
	quarter := max(limit/4, 1)
	need := int(math.Ceil(float64(answering) * float64(usual) / float64(interval)))
	return max(quarter, min(limit-2*need, limit-limit/4))
}

// queue is a heap of entries by due time.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}
