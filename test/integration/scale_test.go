package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// 200 hosts, 200 pods that need one each, all at once: a bijection, without a conflict, with one handshake a join.
func TestManyHostsAtOnce(t *testing.T) {
	const n = 200
	s := begin(t, "many", 20*time.Second, make([]sim.Spec, n)...)
	// Here the machines' work is done by the two cores that the control plane runs on; on a network it is not, and the defaults fit.
	s.start("", "JOIN_CONCURRENCY=8", "PROBE_CONCURRENCY=4")
	probed := s.allIn(v1beta1.HostAvailable, 3*time.Minute)
	before := map[string]int64{}
	for _, m := range s.fleet.Machines() {
		before[m.Name()] = m.Counters().Handshakes
	}
	s.began = time.Now()
	for i := range n {
		s.pod(fmt.Sprintf("many-%03d", i))
	}
	took := s.running(n, 8*time.Minute)

	claims := map[string]string{}
	for _, h := range s.hosts() {
		if h.Status.ClaimRef == nil {
			t.Errorf("host %s has no claim", h.Name)
			continue
		}
		if other, taken := claims[string(h.Status.ClaimRef.UID)]; taken {
			t.Errorf("NodeClaim %s holds %s and %s", h.Status.ClaimRef.Name, other, h.Name)
		}
		claims[string(h.Status.ClaimRef.UID)] = h.Name
	}
	if len(claims) != n {
		t.Errorf("%d claims on %d hosts", len(claims), n)
	}
	list := &karpv1.NodeClaimList{}
	if err := s.api.List(t.Context(), list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name}); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != n {
		t.Errorf("%d NodeClaims for %d pods", len(list.Items), n)
	}
	if conflicts := s.metric("kpssh_claim_conflicts_total"); conflicts != 0 {
		t.Errorf("%.0f claim conflicts", conflicts)
	}
	handshakes := int64(0)
	for _, m := range s.fleet.Machines() {
		handshakes += m.Counters().Handshakes - before[m.Name()]
		if runs := m.Counters().Runs; runs["install"] != 1 || runs["join"] != 1 || runs["leave"] != 0 {
			t.Errorf("%s ran %v", m.Name(), runs)
		}
	}
	if joins := s.metric("kpssh_ssh_handshakes_total", `purpose="join"`); joins != n {
		t.Errorf("%.0f SSH handshakes for %d cold joins, want one each", joins, n)
	}
	s.eventually(time.Minute, "every token is gone", func() (bool, string) { left := s.tokens(); return left == 0, fmt.Sprint(left) })
	ours := s.perJoin(n)
	t.Logf("\n%d hosts probed in %.1fs; %d pods Running %.1fs after the first was created; %d handshakes on the machines in that time, probes included",
		n, probed.Seconds(), n, took.Seconds(), handshakes)
	if ours > 8 {
		t.Errorf("%.2f writes per cold join by this provider, want at most 8", ours)
	}

	s.deletePods()
	back := s.allIn(v1beta1.HostAvailable, 6*time.Minute)
	t.Logf("every host is Available again %.1fs after the pods went", back.Seconds())
	for _, m := range s.fleet.Machines() {
		if m.Counters().Runs["leave"] != 1 || m.KubeletActive() {
			t.Errorf("%s: leave ran %d times, kubelet active: %v", m.Name(), m.Counters().Runs["leave"], m.KubeletActive())
		}
	}
}

// perJoin prints the controller's writes per join, and sums those that this provider makes; the others are karpenter core's. Events are
// printed and not summed, nor is the ControllerRevision, of which there is one per version of a profile.
func (s *scenario) perJoin(joins int) float64 {
	s.t.Helper()
	counts := s.writes()
	names := []string{}
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	ours := 0.0
	var table strings.Builder
	for _, name := range names {
		mine := strings.Contains(name, "sshhosts") || strings.Contains(name, " secrets")
		each := float64(counts[name]) / float64(joins)
		who := "core"
		switch {
		case mine:
			ours += each
			who = "ours"
		case strings.Contains(name, " events"):
			who = "both"
		case strings.Contains(name, "controllerrevisions"):
			who = "once"
			if counts[name] != 1 {
				s.t.Errorf("%d times %s for one version of one profile", counts[name], name)
			}
		}
		fmt.Fprintf(&table, "  %-4s %-34s %6d  %6.2f\n", who, name, counts[name], each)
	}
	s.t.Logf("\nAPI writes of the controller during %d cold joins (total, per join):\n%s  ours without events: %.2f per join", joins, table.String(), ours)
	return ours
}
