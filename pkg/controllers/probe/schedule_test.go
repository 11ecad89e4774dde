package probe

import (
	"container/heap"
	"fmt"
	"testing"
	"time"
)

// simulate runs a schedule against hosts that take so long to answer, in event order, and reports each host's probes.
type simulation struct {
	schedule *schedule
	now      time.Time
	ends     queue
	// takes is how long a probe of the host lasts; dead ones fail.
	takes func(name string) (d time.Duration, dead bool)
	// failures in a row.
	failures map[string]int
	// starts of probes.
	starts map[string][]time.Time
	most   int
}

func (s *simulation) run(until time.Time) {
	running := len(s.ends)
	for {
		name, wait := s.schedule.take(s.now)
		if name != "" {
			took, _ := s.takes(name)
			s.starts[name] = append(s.starts[name], s.now)
			heap.Push(&s.ends, &entry{name: name, due: s.now.Add(took)})
			running++
			s.most = max(s.most, running)
			continue
		}
		next := until
		if wait >= 0 && s.now.Add(wait).Before(next) {
			next = s.now.Add(wait)
		}
		if len(s.ends) > 0 && !s.ends[0].due.After(next) {
			ended := heap.Pop(&s.ends).(*entry)
			s.now = ended.due
			running--
			took, dead := s.takes(ended.name)
			in, rest := proven, s.schedule.interval
			if dead {
				s.failures[ended.name]++
				in, rest = suspect, doubled(s.schedule.interval, s.failures[ended.name])
			}
			s.schedule.plan(ended.name, in, s.now.Add(rest))
			s.schedule.done(ended.name, took, !dead)
			continue
		}
		if s.now = next; !next.Before(until) {
			return
		}
	}
}

// Section 2 #12 and section 3 #9: hosts that do not answer never hold up those that do.
func TestDeadHostsDoNotStallLiveOnes(t *testing.T) {
	for _, tc := range []struct {
		name                     string
		dead, live, concurrency  int
		deadTakes, liveTakes     time.Duration
		lag                      time.Duration // the most a live host's probe may be late, once it has been probed
		firstWithin, backWithin  time.Duration // the first probe of every host; the noticing of a dead host that returns after an hour
		mostProbesOfOneDeadHost  int           // in the first hour: the backoff
		leastProbesOfOneLiveHost int           // in the first hour
	}{
		{name: "100 dead and 1 live on 8 workers", dead: 100, live: 1, concurrency: 8, deadTakes: 15 * time.Second, liveTakes: time.Second,
			lag: 0, firstWithin: 5 * time.Minute, backWithin: 15 * time.Minute, mostProbesOfOneDeadHost: 9, leastProbesOfOneLiveHost: 28},
		{name: "1000 live and 100 stalled on 32 workers", dead: 100, live: 1000, concurrency: 32, deadTakes: 30 * time.Second, liveTakes: time.Second,
			lag: 5 * time.Second, firstWithin: 4 * time.Minute, backWithin: 15 * time.Minute, mostProbesOfOneDeadHost: 9, leastProbesOfOneLiveHost: 28},
		{name: "one worker", dead: 1, live: 3, concurrency: 1, deadTakes: 15 * time.Second, liveTakes: time.Second,
			lag: 15 * time.Second, firstWithin: time.Minute, backWithin: 15 * time.Minute, mostProbesOfOneDeadHost: 9, leastProbesOfOneLiveHost: 28},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			cured := false
			dead := func(name string) bool { return name[0] == 'd' && !cured }
			s := &simulation{schedule: newSchedule(tc.concurrency, 2*time.Minute), now: start, failures: map[string]int{}, starts: map[string][]time.Time{}}
			s.takes = func(name string) (time.Duration, bool) {
				if dead(name) {
					return tc.deadTakes, true
				}
				return tc.liveTakes, false
			}
			for i := range tc.dead {
				s.schedule.plan(fmt.Sprintf("dead-%d", i), unknown, start)
			}
			for i := range tc.live {
				s.schedule.plan(fmt.Sprintf("live-%d", i), unknown, start.Add(time.Nanosecond)) // the unluckiest place in the queue
			}
			s.run(start.Add(time.Hour))

			var late, first time.Duration
			for name, starts := range s.starts {
				first = max(first, starts[0].Sub(start))
				if dead(name) {
					if len(starts) > tc.mostProbesOfOneDeadHost {
						t.Errorf("%s was probed %d times in an hour", name, len(starts))
					}
					continue
				}
				if len(starts) < tc.leastProbesOfOneLiveHost {
					t.Errorf("%s was probed %d times in an hour", name, len(starts))
				}
				for i := 1; i < len(starts); i++ {
					late = max(late, starts[i].Sub(starts[i-1])-tc.liveTakes-2*time.Minute)
				}
			}
			if len(s.starts) != tc.dead+tc.live || first > tc.firstWithin {
				t.Errorf("%d of %d hosts were probed, the last of them after %s", len(s.starts), tc.dead+tc.live, first)
			}
			if late > tc.lag {
				t.Errorf("a live host was probed %s late", late)
			}
			if s.most > tc.concurrency {
				t.Errorf("%d probes ran at a time", s.most)
			}

			cured = true
			returned := s.now
			s.run(returned.Add(tc.backWithin))
			for name, starts := range s.starts {
				if !starts[len(starts)-1].After(returned) {
					t.Errorf("%s returned and was not noticed within %s", name, tc.backWithin)
				}
			}
			t.Logf("first round %s, live hosts at most %s late, %d probes at a time", first, late, s.most)
		})
	}
}

func TestDoubtfulHostsGetWhatTheOthersDoNotNeed(t *testing.T) {
	for _, tc := range []struct {
		limit, answering int
		usual            time.Duration
		want             int
	}{
		{limit: 32, answering: 0, usual: time.Second, want: 24},    // a quarter is kept for those that will answer
		{limit: 32, answering: 200, usual: time.Second, want: 24},  // need 2
		{limit: 32, answering: 1000, usual: time.Second, want: 14}, // need 9, twice that is kept
		{limit: 32, answering: 5000, usual: time.Second, want: 8},  // overloaded: still a quarter
		{limit: 2, answering: 1, usual: time.Second, want: 1},
		{limit: 1, answering: 1, usual: time.Second, want: 1}, // nothing to share: they take turns
	} {
		if got := doubtful(tc.limit, tc.answering, tc.usual, 2*time.Minute); got != tc.want {
			t.Errorf("limit %d, %d answering in %s: want %d, got %d", tc.limit, tc.answering, tc.usual, tc.want, got)
		}
	}
}

func TestSchedulePlansWhileProbing(t *testing.T) {
	now := time.Unix(0, 0)
	s := newSchedule(2, time.Minute)
	s.plan("a", unknown, now)
	if name, _ := s.take(now); name != "a" || !s.busy("a") {
		t.Fatalf("want a, got %q", name)
	}
	s.plan("a", proven, now) // news arrives while it is being probed
	if name, wait := s.take(now); name != "" || wait >= 0 {
		t.Fatalf("the same host was handed out twice: %q, wait %s", name, wait)
	}
	s.done("a", time.Second, true)
	if name, _ := s.take(now); name != "a" {
		t.Fatal("the plan made while it was being probed was lost")
	}
	s.drop("a") // claimed meanwhile
	s.done("a", time.Second, true)
	if len(s.entries) != 0 || s.running != [lanes]int{} {
		t.Fatalf("a dropped host is still there: %v %v", s.entries, s.running)
	}
	s.plan("b", suspect, now.Add(time.Minute))
	s.plan("b", proven, now.Add(time.Hour))
	if _, wait := s.take(now); wait != time.Hour {
		t.Fatalf("the older plan was kept: %s", wait)
	}
	s.drop("b")
	s.drop("b")
	s.done("b", 0, true)
	if name, wait := s.take(now); name != "" || wait >= 0 {
		t.Fatal("a dropped host is still due")
	}
}
