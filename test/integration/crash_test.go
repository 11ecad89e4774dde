package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// The controller is killed after each of its writes in turn, on the way of a cold join and of a leave, karpenter core's writes included,
// and started again. Every run ends where an undisturbed one does: S1, S2, S4, S5, L3, and no token left.
func TestKilledAfterEachWrite(t *testing.T) {
	s := begin(t, "crash", 4*time.Second, sim.Spec{}, sim.Spec{})
	config, err := s.cp.ClientConfig(s.user(), "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t, config)
	s.start(g.Kubeconfig)
	s.allIn(v1beta1.HostAvailable, time.Minute)
	joins, leaves := false, false
	for n := 1; !joins || !leaves; n++ {
		if n > 60 {
			t.Fatal("the ways of join and leave never end")
		}
		s.newVersion(fmt.Sprint(n))
		joins = s.survive(g, n, "join", joins, func() { s.pod(fmt.Sprintf("crash-%d", n)) }, func() (bool, string) { return s.settledIn(v1beta1.HostInUse) })
		s.checkJoined(n)
		leaves = s.survive(g, n, "leave", leaves, s.deleteClaims, func() (bool, string) { return s.settledIn("") })
		s.checkLeft(n)
	}
}

// survive does something, kills the controller after the nth write that follows, starts it again, and awaits the end. It tells whether
// the way was shorter than n, so that nothing was left to kill; then it need not be gone again.
func (s *scenario) survive(g *gate, n int, way string, over bool, do func(), until func() (bool, string)) bool {
	s.t.Helper()
	victim := s.controller
	if !over {
		g.arm(n, victim.Kill)
	}
	do()
	began := time.Now()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for done := false; !done; {
		select {
		case <-victim.Done():
			done = true
		case <-ticker.C:
			var seen string
			if done, seen = until(); !done && time.Since(began) > 2*time.Minute {
				s.t.Fatalf("%s did not end: %s", way, seen)
			}
		}
	}
	killed, writes := g.disarm() // it may also have been killed by the very last write, when the end was reached already
	if !killed {
		if !over {
			s.t.Logf("%s: %d writes in all: %v", way, len(writes), writes)
		}
		return true
	}
	<-victim.Done()
	s.start(g.Kubeconfig)
	took := s.eventually(2*time.Minute, fmt.Sprintf("%s ends after a kill at write %d", way, n), until)
	s.t.Logf("%s, killed after write %2d (%s): ended %.1fs after the restart", way, n, writes[len(writes)-1], took.Seconds())
	return false
}

// newVersion makes the next join a cold one.
func (s *scenario) newVersion(version string) {
	s.t.Helper()
	p := &v1beta1.SSHJoinProfile{}
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: s.name}, p); err != nil {
		s.t.Fatal(err)
	}
	p.Spec.Version = version
	if err := s.api.Update(s.t.Context(), p); err != nil {
		s.t.Fatal(err)
	}
}

// settledIn is L3 with exactly one host in a state, or none if state is empty, and the others Available.
func (s *scenario) settledIn(state v1beta1.HostState) (bool, string) {
	states, want := s.states(), 0
	if state != "" {
		want = 1
	}
	seen := fmt.Sprintf("hosts %v, %d NodeClaims, %d tokens", states, len(s.claims()), s.tokens())
	if states[v1beta1.HostAvailable] != len(s.hosts())-want || len(s.claims()) != want || s.tokens() != 0 {
		return false, seen
	}
	if want == 0 {
		if left := len(s.nodes()); left != 0 {
			return false, fmt.Sprintf("%s, %d Nodes", seen, left)
		}
		for _, h := range s.hosts() {
			if len(h.Finalizers) > 0 || h.Status.ClaimRef != nil {
				return false, seen + ", a host is still held"
			}
		}
		return true, seen
	}
	for _, h := range s.hosts() {
		if h.Status.State == state && apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionJoined) {
			return slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }), seen
		}
	}
	return false, seen
}

func (s *scenario) checkJoined(n int) {
	s.t.Helper()
	holders := map[string][]string{}
	for _, h := range s.hosts() {
		if h.Status.ClaimRef != nil {
			holders[string(h.Status.ClaimRef.UID)] = append(holders[string(h.Status.ClaimRef.UID)], h.Name)
		}
	}
	for uid, hosts := range holders {
		if len(hosts) != 1 {
			s.t.Errorf("write %d: S2: claim %s holds %v", n, uid, hosts)
		}
	}
}

func (s *scenario) checkLeft(n int) {
	s.t.Helper()
	for _, m := range s.fleet.Machines() {
		if m.KubeletActive() {
			s.t.Errorf("write %d: the kubelet of %s still runs", n, m.Name())
		}
		s.checkOrder(m)
	}
}

// checkOrder is S4 and S3 on one machine: no leave between a join and its use by a successor, and no two scripts at once.
func (s *scenario) checkOrder(m *sim.Machine) {
	s.t.Helper()
	last := ""
	for _, e := range m.Journal() {
		if e.Kind != sim.EntryPhase {
			continue
		}
		if e.Detail == "leave" && last == "leave" {
			continue // a leave that was resumed
		}
		if e.Detail == "leave" && last == "" {
			s.t.Errorf("%s left before it ever joined", m.Name())
		}
		last = e.Detail
	}
}
