package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const (
	// couples are nodes, one of each segment, whose pods fit on either. Several at once make more of a round than one.
	couples = 4
	// turnRounds times couples are the 20 chances that a wrong consolidation gets.
	turnRounds    = 5
	controlRounds = 2
	// phase is longer than core's disruption loop waits between two runs: the loops of two processes that were stopped for that long run at the
	// same moment when both go on.
	phase = 11 * time.Second
)

// Two instances whose disruption loops run at the same moment, each able to move its pods onto the other's node, never delete both nodes of
// a couple. Without turns they do, which is the test of the test.
func TestTurnsPreventMutualConsolidation(t *testing.T) {
	t.Run("without turns both nodes go", func(t *testing.T) {
		binary, err := lab.Build(t.Context(), "test/integration/withoutturns")
		if err != nil {
			t.Fatal(err)
		}
		if both := newCouples(t, "solo", binary).play(controlRounds); both == 0 {
			t.Errorf("in %d chances no couple lost both nodes: the test does not provoke what turns prevent", couples*controlRounds)
		}
	})
	t.Run("with turns never", func(t *testing.T) {
		c := newCouples(t, "turn", shared.binary)
		if both := c.play(turnRounds); both > 0 {
			t.Errorf("%d couples lost both nodes in %d chances", both, couples*turnRounds)
		}
		for _, s := range []*scenario{c.a, c.b} {
			t.Logf("%s: %.0f turns taken, %.0f writes refused, waited %.1fs in all", s.instance.name, s.metric("kpssh_disruption_turns_total"),
				s.metric("kpssh_disruption_turn_refusals_total"), s.metric("kpssh_disruption_turn_wait_seconds_sum"))
		}
	})
}

// coupled are two instances, with one machine of each couple each.
type coupled struct {
	*testing.T
	a, b *scenario
}

func newCouples(t *testing.T, name, binary string) *coupled {
	t.Helper()
	made := func(side string) *scenario {
		full := name + "-" + side
		owner := shared.newInstance(t, full, "kp-"+full)
		owner.runs = binary
		s := prepare(t, owner, full, 4*time.Second, make([]sim.Spec, couples)...)
		n := 0
		s.registerWith(s.instance, func(h *v1beta1.SSHHost) {
			h.Labels[v1beta1.HostClassLabel] = coupleName(name, n)
			n++
		})
		pool := &karpv1.NodePool{}
		if err := s.api.Get(s.ctx(), client.ObjectKey{Name: full}, pool); err != nil {
			t.Fatal(err)
		}
		pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized
		if err := s.api.Update(s.ctx(), pool); err != nil {
			t.Fatal(err)
		}
		s.start("")
		s.allIn(v1beta1.HostAvailable, time.Minute)
		return s
	}
	return &coupled{T: t, a: made("a"), b: made("b")}
}

func coupleName(name string, n int) string { return fmt.Sprintf("%s-couple-%d", name, n) }

// play plays rounds and counts the couples that lost both nodes.
func (c *coupled) play(rounds int) int {
	c.Helper()
	total := 0
	for round := range rounds {
		began := time.Now()
		c.fill(round)
		for _, s := range []*scenario{c.a, c.b} {
			s.pause(c.T)
		}
		c.empty(round)
		time.Sleep(phase) // both processes are stopped: this is the time by which their timers are over
		for _, s := range []*scenario{c.a, c.b} {
			s.resume(c.T)
		}
		both := c.deleted()
		c.Logf("round %d: of %d couples, %d lost both nodes; %.0fs", round, couples, both, time.Since(began).Seconds())
		total += both
		c.rest()
	}
	return total
}

// fill brings up every node with a pod that fills it, and puts a small pod beside it that fits on either node of the couple.
func (c *coupled) fill(round int) {
	c.Helper()
	for _, s := range []*scenario{c.a, c.b} {
		for n := range couples {
			s.pod(fmt.Sprintf("%s-big-%d-%d", s.name, round, n), func(p *corev1.Pod) {
				p.Spec.NodeSelector[v1beta1.HostClassLabel] = coupleName(c.name(), n)
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2500m")
			})
		}
	}
	for _, s := range []*scenario{c.a, c.b} {
		s.running(couples, time.Minute)
		for _, node := range s.nodes() {
			class := node.Labels[v1beta1.HostClassLabel]
			s.pod(fmt.Sprintf("%s-small-%d-%s", s.name, round, class), func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{v1beta1.HostClassLabel: class}
				p.Spec.NodeName = node.Name
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("500m")
			})
		}
		s.running(2*couples, time.Minute)
	}
}

func (c *coupled) name() string { return strings.TrimSuffix(c.a.name, "-a") }

// empty removes the big pods.
func (c *coupled) empty(round int) {
	c.Helper()
	for _, s := range []*scenario{c.a, c.b} {
		for n := range couples {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: fmt.Sprintf("%s-big-%d-%d", s.name, round, n)}}
			if err := s.api.Delete(s.ctx(), p, client.GracePeriodSeconds(0)); err != nil {
				c.Fatal(err)
			}
		}
	}
}

// deleted watches the NodeClaims until every couple has lost a node and for a while after, and counts the couples that lost both.
func (c *coupled) deleted() int {
	c.Helper()
	lost := map[string]map[string]bool{} // host class → pool
	look := func() {
		for _, s := range []*scenario{c.a, c.b} {
			for _, claim := range s.claims() {
				class := claim.Labels[v1beta1.HostClassLabel]
				if !claim.DeletionTimestamp.IsZero() && class != "" {
					if lost[class] == nil {
						lost[class] = map[string]bool{}
					}
					lost[class][s.name] = true
				}
			}
		}
	}
	c.a.eventually(2*time.Minute, "every couple has lost a node", func() (bool, string) {
		look()
		return len(lost) == couples, fmt.Sprint(lost)
	})
	// Whoever was at it at the same moment is done by now or will be soon: a disruption that began is over within a validation.
	ctx, cancel := context.WithTimeout(c.Context(), 5*time.Second)
	defer cancel()
	for ticker := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			look()
		}
	}
	both := 0
	for _, pools := range lost {
		if len(pools) == 2 {
			both++
		}
	}
	return both
}

func (c *coupled) rest() {
	c.Helper()
	p := &pair{T: c.T, a: c.a, b: c.b}
	p.settle()
}
