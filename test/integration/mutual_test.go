package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const (
	// couples are nodes, one of each segment, whose pods fit on either. Several at once make more of a round than one.
	couples = 4
	// turnRounds times couples are the 20 chances that a wrong consolidation gets.
	turnRounds = 5
)

// Two instances that consolidate at the same moment, each able to move its pods onto the other's node, never delete both nodes of a couple.
// Without turns they do, in the first round on a calm machine, which is the test of the test.
func TestTurnsPreventMutualConsolidation(t *testing.T) {
	t.Run("without turns both nodes go", func(t *testing.T) {
		binary, err := lab.Build(t.Context(), "test/integration/withoutturns")
		if err != nil {
			t.Fatal(err)
		}
		c := newCouples(t, "solo", binary)
		if both := c.play(turnRounds, func(both int) bool { return both > 0 }); both == 0 {
			t.Errorf("in %d chances no couple lost both nodes (%d writes met): the test does not provoke what turns prevent", couples*turnRounds, c.met)
		}
	})
	t.Run("with turns never", func(t *testing.T) {
		c := newCouples(t, "turn", shared.binary)
		if both := c.play(turnRounds, nil); both > 0 {
			t.Errorf("%d couples lost both nodes in %d chances", both, couples*turnRounds)
		}
		if c.met > 0 {
			t.Errorf("%d times both instances began a disruption at the same moment", c.met)
		}
		for _, s := range []*scenario{c.a, c.b} {
			t.Logf("%s: %.0f turns taken, %.0f writes refused", s.instance.name, s.metric("kpssh_disruption_turns_total"), s.metric("kpssh_disruption_turn_refusals_total"))
		}
		c.suspendedHolder()
	})
}

// coupled are two instances, with one machine of each couple each.
type coupled struct {
	*testing.T
	a, b    *scenario
	meeting *meeting
	// met counts the writes by which both began a disruption at the same moment.
	met   int
	gates map[string]*gate // by scenario
}

func newCouples(t *testing.T, name, binary string) *coupled {
	t.Helper()
	c := &coupled{T: t, meeting: newMeeting("a", "b"), gates: map[string]*gate{}}
	made := func(side, other string) *scenario {
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
		config, err := s.cp.ClientConfig(s.user(), "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		g := newGate(t, config)
		g.hold.Store(new(c.meeting.attend(side, other)))
		c.gates[full] = g
		s.start(g.Kubeconfig)
		s.allIn(v1beta1.HostAvailable, time.Minute)
		return s
	}
	c.a, c.b = made("a", "b"), made("b", "a")
	return c
}

func coupleName(name string, n int) string { return fmt.Sprintf("%s-couple-%d", name, n) }

// play plays rounds, until enough is seen if that is asked, and counts the couples that lost both nodes.
func (c *coupled) play(rounds int, enough func(both int) bool) int {
	c.Helper()
	total := 0
	for round := range rounds {
		began := time.Now()
		c.fill(round)
		c.meeting.again("a", "b")
		c.empty(round)
		both := c.deleted()
		c.met += c.meeting.end()
		c.Logf("round %d: of %d couples, %d lost both nodes; %.0fs", round, couples, both, time.Since(began).Seconds())
		total += both
		c.rest()
		if enough != nil && enough(total) {
			break
		}
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

// suspendedHolder: the holder of the turn is suspended between its decision and its first write, as a virtual machine may be, for so long
// that the other takes the turn from it and deletes its own nodes. When the write arrives, late, and the process goes on, it deletes nothing.
func (c *coupled) suspendedHolder() {
	c.Helper()
	const round = turnRounds
	c.fill(round)
	first, goOn := make(chan *scenario, 1), make(chan struct{})
	var begun atomic.Pointer[scenario]
	for _, s := range []*scenario{c.a, c.b} {
		c.gates[s.name].hold.Store(new(func(r *http.Request) {
			if !beginsDisruption(r) {
				return
			}
			if begun.CompareAndSwap(nil, s) {
				first <- s
			}
			if begun.Load() == s {
				<-goOn
			}
		}))
	}
	c.empty(round)
	var holder, other *scenario
	select {
	case holder = <-first:
	case <-time.After(2 * time.Minute):
		close(goOn)
		c.Fatal("nobody began a disruption")
	}
	holder.pause(c.T)
	if other = c.b; holder == c.b {
		other = c.a
	}
	took := other.eventually(2*time.Minute, "the other has taken the turn and disrupted its nodes", func() (bool, string) {
		live := 0
		for _, claim := range other.claims() {
			if claim.DeletionTimestamp.IsZero() {
				live++
			}
		}
		return live == 0, fmt.Sprintf("%d of its claims live", live)
	})
	close(goOn)
	late := 0
	holder.eventually(10*time.Second, "the late writes are answered", func() (bool, string) {
		late = 0
		for _, node := range holder.nodes() {
			if turn.Tainted(&node) {
				late++
			}
		}
		return late > 0, "no taint"
	})
	holder.resume(c.T)
	c.Logf("the other had the turn %.0fs after the holder was suspended; %d taints of the holder arrived after that", took.Seconds(), late)
	holder.eventually(2*time.Minute, "the late taints are taken away", func() (bool, string) {
		for _, claim := range holder.claims() {
			if !claim.DeletionTimestamp.IsZero() {
				c.Fatalf("NodeClaim %s was deleted on a decision of before the other's turn", claim.Name)
			}
		}
		left := 0
		for _, node := range holder.nodes() {
			if turn.Tainted(&node) {
				left++
			}
		}
		return left == 0, fmt.Sprintf("%d taints", left)
	})
	c.rest()
}

func (c *coupled) rest() {
	c.Helper()
	p := &pair{T: c.T, a: c.a, b: c.b}
	p.settle()
}
