package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// act is a part of the demonstration.
type act int

const (
	up act = iota
	down
)

// milestones of a machine, in their order.
const (
	claimed   = "claimed"
	joined    = "joined"
	nodeReady = "node ready"
	podRuns   = "pod runs"
	leaving   = "leaving"
	returned  = "available"
)

// times keeps when things were first seen, since the act that they belong to began. It sees five snapshots a second.
type times struct {
	act      act
	running  bool
	began    [2]time.Time
	took     [2]time.Duration
	machines map[string]map[string]time.Duration
}

func newTimes() *times { return &times{machines: map[string]map[string]time.Duration{}} }

func (t *times) start(a act) { t.act, t.running, t.began[a] = a, true, time.Now() }

func (t *times) finish(a act) { t.running, t.took[a] = false, time.Since(t.began[a]) }

func (t *times) note(s *snapshot) {
	if !t.running {
		return
	}
	for _, h := range s.hosts {
		state := v1beta1.HostState(h.state)
		if t.act == up {
			t.first(h.name, claimed, s, state == v1beta1.HostClaimed || state == v1beta1.HostInUse)
			t.first(h.name, joined, s, state == v1beta1.HostInUse)
			t.first(h.name, nodeReady, s, h.node == "Ready")
			t.first(h.name, podRuns, s, h.running > 0)
			continue
		}
		t.first(h.name, leaving, s, state == v1beta1.HostLeaving)
		t.first(h.name, returned, s, state == v1beta1.HostAvailable)
	}
}

func (t *times) first(machine, milestone string, s *snapshot, reached bool) {
	if !reached {
		return
	}
	if t.machines[machine] == nil {
		t.machines[machine] = map[string]time.Duration{}
	}
	if _, seen := t.machines[machine][milestone]; !seen {
		t.machines[machine][milestone] = s.at.Sub(t.began[t.act])
	}
}

func (t *times) summary(machines []*sim.Machine, total time.Duration) string {
	var b strings.Builder
	b.WriteString("\nSeconds since the Deployment was created (left), and since it was scaled to zero (right):\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	milestones := []string{claimed, joined, nodeReady, podRuns, leaving, returned}
	fmt.Fprintf(w, "machine\t%s\tSSH connections\tscripts run\t\n", strings.Join(milestones, "\t"))
	for _, m := range machines {
		fmt.Fprintf(w, "%s\t", m.Name())
		for _, milestone := range milestones {
			if at, seen := t.machines[m.Name()][milestone]; seen {
				fmt.Fprintf(w, "%.1f\t", at.Seconds())
			} else {
				fmt.Fprint(w, "-\t")
			}
		}
		counters := m.Counters()
		fmt.Fprintf(w, "%d\t%d\t\n", counters.Handshakes, counters.Runs["install"]+counters.Runs["join"]+counters.Runs["leave"])
	}
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "\nPASS: %d pending pods ran on %d machines after %.1fs; all machines were back in the pool %.1fs after scaling down (%.0fs in total).\n",
		len(machines), len(machines), t.took[up].Seconds(), t.took[down].Seconds(), total.Seconds())
	return b.String()
}
