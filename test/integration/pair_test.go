package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// pair is two instances with a segment each: seg-a has pool-a and two machines, seg-b has pool-b and two machines. Each subtest finds
// both processes running, every host Available and no NodeClaim, and leaves them so.
type pair struct {
	*testing.T
	a, b *scenario
	// idle is a third instance, without a class.
	idle *instance
}

// Two instances are two OS processes against one API server. The subtests share them, since a start costs more than most of what is
// tested; S6 is judged once more at the end, over all that happened.
func TestTwoInstances(t *testing.T) {
	env := []string{"FEATURE_GATES=NodeRepair=true,StaticCapacity=true,NodeOverlay=true", "PROBE_INTERVAL=3s"}
	began := time.Now()
	p := &pair{
		T:    t,
		a:    prepare(t, shared.newInstance(t, "seg-a", "kp-a", env...), "pool-a", 4*time.Second, sim.Spec{}, sim.Spec{}),
		b:    prepare(t, shared.newInstance(t, "seg-b", "kp-b", env...), "pool-b", 4*time.Second, sim.Spec{}, sim.Spec{}),
		idle: shared.newInstance(t, "seg-c", "kp-c", env...),
	}
	overlay := &karpv1alpha1.NodeOverlay{ // of seg-a, and for nodes of both
		ObjectMeta: metav1.ObjectMeta{Name: "dearer", Labels: map[string]string{ownership.HomeInstanceLabel: "seg-a"}},
		Spec: karpv1alpha1.NodeOverlaySpec{
			Requirements:    []karpv1alpha1.NodeSelectorRequirement{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
			PriceAdjustment: new("+1"),
		},
	}
	p.a.create(overlay)
	t.Cleanup(func() { p.a.remove(overlay) })
	p.b.register()
	p.a.start("")
	p.a.eventually(time.Minute, "seg-a runs and says that it has no hosts", func() (bool, string) {
		ready := readyOf(p.a, "pool-a")
		return ready.Reason == v1beta1.ReasonNoHosts, ready.Reason
	})
	p.b.start("")
	p.b.allIn(v1beta1.HostAvailable, time.Minute)
	if !t.Run("A13: no capacity here is no verdict on a claim there", func(t *testing.T) { p.in(t).noCapacityHere() }) {
		return
	}
	p.a.register()
	nobodys := p.a.class(nobodysClass, func(c *v1beta1.SSHNodeClass) { c.Spec.Instance = "seg-none" })
	p.a.create(nobodys)
	t.Cleanup(func() { p.a.remove(nobodys) })
	p.settle()
	for _, each := range []struct {
		name string
		test func(*pair)
	}{
		{"A1, A12: one pod, one claim, one host, one writer, one that speaks of it", (*pair).onePodOneWriter},
		{"A6, L4: a slow install here does not delay a pod there", (*pair).slowInstallHere},
		{"a blocked drain here launches nothing there", (*pair).blockedDrainHere},
		{"a foreign Node without identity does not stop a first sync", (*pair).foreignNodeWithoutIdentity},
		{"A2, A3: a dead instance loses nothing and finishes what it began", (*pair).deadInstance},
		{"a NodePool moved to another instance's class leaves its claims where they are, and no error loop", (*pair).movedPool},
		{"section 3 #35: a startup taint goes when the agent on the node is ready", (*pair).startupTaint},
		{"section 3 #44: an identity that an agent chose is taken over, kept and given back", (*pair).agentsIdentity},
		{"A9: a class waits for its claims and its owner", (*pair).classDeletion},
		{"C1: one owner at a time on one machine", (*pair).handOverOfAMachine},
		{"A5, C8: a class has the owner it names, whatever the order", (*pair).classOrder},
		{"C4, section 3 #42: what alerts and dashboards ask for is scraped", (*pair).whatIsScraped},
	} {
		if !t.Run(each.name, func(t *testing.T) { each.test(p.in(t)) }) {
			return // the rest would only tell that something is left behind
		}
	}
	t.Run("S6: the status of a NodeOverlay has one writer", func(t *testing.T) {
		writers := map[string]int{}
		for _, e := range p.in(t).a.auditSince(began) {
			if who, is := strings.CutPrefix(e.User.Username, userPrefix); is && e.Write() && e.Object.Resource == "nodeoverlays" {
				writers[who]++
			}
		}
		if writers["seg-a"] == 0 || len(writers) != 1 {
			t.Errorf("overlays were written by %v", writers)
		}
	})
	t.Run("S6: no instance writes a foreign object", func(t *testing.T) {
		verdict := p.in(t).a.judgeSince(began)
		t.Log(verdict)
		for _, name := range []string{"seg-a", "seg-b"} {
			if verdict.own[name] < 100 {
				t.Errorf("%s wrote %d times: the audit log does not show what happened", name, verdict.own[name])
			}
		}
		if found := verdict.but(planted); len(found) > 0 {
			t.Errorf("foreign writes:\n%s", strings.Join(found, "\n"))
		}
	})
}

// in is the pair as a subtest sees it.
func (p *pair) in(t *testing.T) *pair {
	same := *p
	same.T, same.a, same.b = t, p.a.in(t), p.b.in(t)
	return &same
}

// settle ends every node and awaits that the hosts are free.
func (p *pair) settle() {
	p.Helper()
	for _, s := range []*scenario{p.a, p.b} {
		s.deleteClaims()
	}
	for _, s := range []*scenario{p.a, p.b} {
		s.eventually(90*time.Second, "the segment is at rest", func() (bool, string) { return s.settledIn("") })
	}
}

// noForeignWrites is S6 since a moment.
func (p *pair) noForeignWrites(began time.Time) {
	p.Helper()
	for _, w := range p.a.foreignSince(began) {
		if w.instance != planted {
			p.Errorf("S6: %s", w.text)
		}
	}
}

// readyOf is the Ready condition of a class; empty if there is none.
func readyOf(s *scenario, class string) condition {
	c := &v1beta1.SSHNodeClass{}
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: class}, c); err != nil {
		return condition{Reason: err.Error()}
	}
	for _, each := range c.Status.Conditions {
		if each.Type == v1beta1.ConditionReady {
			return condition{string(each.Status), each.Reason, each.Message}
		}
	}
	return condition{}
}

type condition struct{ Status, Reason, Message string }

// claimed awaits n NodeClaims of the scenario's pool that hold a host.
func (s *scenario) claimed(n int, within time.Duration) time.Duration {
	s.t.Helper()
	return s.eventually(within, fmt.Sprintf("%d NodeClaims of %s hold a host", n, s.name), func() (bool, string) {
		claims := s.claims()
		held := len(slices.DeleteFunc(slices.Clone(claims), func(c karpv1.NodeClaim) bool { return c.Status.ProviderID == "" }))
		return held >= n, fmt.Sprintf("%d of %d", held, len(claims))
	})
}

// made counts the NodeClaims that an instance asked for since a moment.
func (s *scenario) made(began time.Time) int {
	s.t.Helper()
	n := 0
	for _, e := range s.auditSince(began) {
		if e.User.Username == s.user() && e.Verb == "create" && e.Object.Resource == "nodeclaims" {
			n++
		}
	}
	return n
}

// latency is how long a pod of the scenario waits for a claim that holds a host, and until it runs.
type latency struct{ claim, run time.Duration }

func (l latency) String() string {
	return fmt.Sprintf("claim %.1fs, running %.1fs", l.claim.Seconds(), l.run.Seconds())
}

// serve makes the nth pod of the scenario and awaits its node.
func (s *scenario) serve(n int, pod string, edits ...func(*corev1.Pod)) latency {
	s.t.Helper()
	began := time.Now()
	s.pod(pod, edits...)
	s.claimed(n, time.Minute)
	claim := time.Since(began)
	s.running(n, 2*time.Minute)
	return latency{claim, time.Since(began)}
}

// likeAlone fails the test if a pod was served much more slowly than in calm times. Two busy cores explain a factor.
func (p *pair) likeAlone(what string, calm, now latency) {
	p.Helper()
	p.Logf("pod to node: %s when nothing else goes on; %s %s", calm, now, what)
	if now.claim > 15*time.Second || now.claim > 3*calm.claim+5*time.Second || now.run > 3*calm.run+5*time.Second {
		p.Errorf("%s: %s instead of %s", what, now, calm)
	}
}

// podIn lets a pod run in any of some pools.
func podIn(pools ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeSelector = nil
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: pools},
			}}},
		}}}
	}
}
