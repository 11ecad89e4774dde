package integration

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// A13: seg-a was started first and has no host at all. It must not answer for pool-b's claim, which core would then delete.
func (p *pair) noCapacityHere() {
	began := time.Now()
	took := p.b.serve(1, "a13")
	p.Logf("beside an instance without hosts: %s", took)
	if claims := p.b.claims(); len(claims) != 1 || !claims[0].DeletionTimestamp.IsZero() {
		p.Errorf("pool-b has %d claims: %+v", len(claims), claims)
	}
	if n := p.b.made(began); n != 1 {
		p.Errorf("seg-b made %d claims for one pod", n)
	}
	for _, s := range []*scenario{p.a, p.b} {
		if n := s.metric("karpenter_nodeclaims_disrupted_total", `reason="insufficient_capacity"`); n != 0 {
			p.Errorf("%s: %.0f claims were disrupted for want of capacity", s.instance.name, n)
		}
	}
	p.noForeignWrites(began)
}

// A1, A12: both instances see the pod; it selects pool-a.
func (p *pair) onePodOneWriter() {
	began := time.Now()
	took := p.a.serve(1, "a1")
	p.Log(took)
	claims, nodes := p.a.claims(), p.a.nodes()
	if len(claims) != 1 || len(nodes) != 1 || len(p.b.claims()) != 0 {
		p.Fatalf("%d claims and %d nodes of pool-a, %d claims of pool-b", len(claims), len(nodes), len(p.b.claims()))
	}
	if a, b := p.a.states(), p.b.states(); a[v1beta1.HostInUse] != 1 || b[v1beta1.HostAvailable] != len(p.b.hosts()) {
		p.Errorf("hosts of seg-a %v, of seg-b %v", a, b)
	}
	writers := map[string]int{}
	for _, e := range p.a.auditSince(began) {
		instance, is := strings.CutPrefix(e.User.Username, userPrefix)
		about := e.Object.Name
		if is && e.Write() && (about == "pool-a" || about == claims[0].Name || about == nodes[0].Name) && e.Object.Resource != "events" {
			writers[instance]++
		}
	}
	if len(writers) != 1 || writers["seg-a"] == 0 {
		p.Errorf("pool, claim and node of seg-a were written by %v", writers)
	}
	if a, b := p.a.made(began), p.b.made(began); a != 1 || b != 0 {
		p.Errorf("seg-a made %d claims, seg-b %d", a, b)
	}
	// A12: seg-b has nothing to say about a pod that selects another's pool.
	for _, line := range p.b.errorLines(p.T) {
		if strings.Contains(line, `"a1"`) {
			p.Errorf("A12: seg-b complains of seg-a's pod: %s", line)
		}
	}
	p.noForeignWrites(began)
	p.settle()
}

// A6, L4: core must not wait for a machine, neither where it is slow nor anywhere else.
func (p *pair) slowInstallHere() {
	p.a.newVersion("a6")
	p.b.newVersion("a6")
	calm := p.b.serve(1, "a6-alone")
	p.settle()
	p.b.newVersion("a6-again") // as cold as the first time
	for _, m := range p.a.fleet.Machines() {
		m.Slow("install", time.Minute)
		defer m.Inject("install", "")
	}
	a, b := p.watchUnsynced(p.a), p.watchUnsynced(p.b)
	p.a.pod("a6-slow")
	p.a.eventually(time.Minute, "the slow install runs", func() (bool, string) {
		for _, h := range p.a.hosts() {
			if h.Status.Operation != nil && h.Status.Operation.Type == v1beta1.OperationInstall {
				return true, ""
			}
		}
		return false, "no operation"
	})
	beside := p.b.serve(1, "a6-beside")
	if p.a.states()[v1beta1.HostClaimed] != 1 {
		p.Errorf("the slow install is over: hosts %v", p.a.states())
	}
	p.likeAlone("beside an install of 60s in the other segment", calm, beside)
	longestA, longestB := a(), b()
	p.Logf("core's state was unsynced for at most: seg-a %.2fs, seg-b %.2fs", longestA, longestB)
	if longestA > 5 || longestB > 1 {
		p.Errorf("core's state was unsynced: seg-a %.2fs, seg-b %.2fs", longestA, longestB)
	}
	p.settle() // which cancels the install
}

// watchUnsynced looks at how long core's state has been out of sync, until the result is called, which tells the longest.
func (p *pair) watchUnsynced(s *scenario) func() float64 {
	stop, longest := make(chan struct{}), make(chan float64)
	go func() {
		most := 0.0
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if now, err := s.scrape("karpenter_cluster_state_unsynced_time_seconds"); err == nil {
					most = max(most, now)
				}
			case <-stop:
				longest <- most
				return
			}
		}
	}()
	return func() float64 { close(stop); return <-longest }
}

// While a node of seg-a drains, its pods will need a place. That is seg-a's business: an instance that sees the node as one that is
// being deleted launches capacity for them too.
func (p *pair) blockedDrainHere() {
	p.b.pause(p.T) // so that seg-a gets the pod, which pool-b would fit as well
	p.a.serve(1, "drain", podIn("pool-a", "pool-b"))
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: "drain"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{hostLabel: "pool-a"}},
		},
	}
	p.a.create(budget)
	p.Cleanup(func() { p.a.remove(budget) })
	p.a.eventually(time.Minute, "the budget allows no disruption", func() (bool, string) {
		err := p.a.api.Get(p.Context(), keyIn(corev1.NamespaceDefault, "drain"), budget)
		return err == nil && budget.Status.CurrentHealthy == 1 && budget.Status.DisruptionsAllowed == 0 && budget.Status.ObservedGeneration > 0, budget.Status.String()
	})
	p.b.resume(p.T)
	began := time.Now()
	old := p.a.claims()[0]
	p.a.remove(&old)
	p.a.claimed(2, time.Minute) // core reacts to the drain: the owner makes room
	// seg-b decides on all pods it thinks are without a place at once: one more of its own would not be served alone.
	p.b.serve(1, "drain-sentinel")
	if n := p.b.made(began); n != 1 {
		p.Errorf("seg-b made %d claims for one pod of its own", n)
	}
	if err := p.a.api.Get(p.Context(), keyIn("", old.Name), &old); err != nil || old.DeletionTimestamp.IsZero() {
		p.Errorf("the drain was not blocked: %v", err)
	}
	p.a.remove(budget)
	p.a.eventually(time.Minute, "the drain ends", func() (bool, string) {
		return p.a.api.Get(p.Context(), keyIn("", old.Name), &old) != nil, "the claim is there"
	})
	p.noForeignWrites(began)
	p.settle()
}

// Core does not begin to work while a Node of a NodePool lacks an identity or an instance type: that is the owner's to wait for.
func (p *pair) foreignNodeWithoutIdentity() {
	stray := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stray", Labels: map[string]string{classLabel: "pool-a", karpv1.NodePoolLabelKey: "pool-a"}}}
	p.a.create(stray)
	p.Cleanup(func() { p.a.remove(stray) })
	p.b.kill()
	p.b.start("")
	p.Logf("after a start beside such a Node: %s", p.b.serve(1, "stray"))
	p.b.eventually(30*time.Second, "core's state is in sync", func() (bool, string) {
		return p.b.metric("karpenter_cluster_state_synced") == 1, "not synced"
	})
	p.a.destroy(p.Context(), stray)
	p.settle()
}
