package integration

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// deadInstance kills seg-a while it has a node that runs and another that is about to join. The machine of the first loses power.
// A2: core's garbage collection deletes claims of Nodes that are not Ready and that the provider does not list; it runs at the start of a
// process and every two minutes, so that each start of seg-b is one of its periods.
// A3: where the Node is deleted by hand, both finalizers wait for the owner.
func (p *pair) deadInstance() {
	began := time.Now()
	p.a.newVersion("dead") // the second join is a cold one
	p.b.newVersion("dead")
	calm := p.b.serve(1, "dead-calm")
	p.settle()
	p.b.newVersion("dead-again")

	p.a.serve(1, "dead-first")
	first := p.a.claims()[0]
	lost := p.machineOf(first)
	p.a.pod("dead-second")
	second := p.dieDuringInstall(first)
	lost.PowerOff()
	p.notReady(first.Status.NodeName)
	before := p.belongings()

	for range 2 {
		p.b.kill()
		p.b.start("")
		p.b.eventually(time.Minute, "core's garbage collection has run in seg-b", func() (bool, string) {
			runs, err := p.b.scrape("controller_runtime_reconcile_total", `controller="nodeclaim.garbagecollection"`, `result="requeue_after"`)
			return err == nil && runs > 0, fmt.Sprint(runs, err)
		})
	}
	p.likeAlone("while the other instance is dead", calm, p.b.serve(1, "dead-beside"))
	p.unchanged("A2: while its owner is dead and its Node not Ready", before)

	// A3
	p.a.remove(&corev1.Node{ObjectMeta: objectMeta(first.Status.NodeName)})
	ours := p.b.claims()[0]
	p.b.deletePods()
	p.b.remove(&corev1.Node{ObjectMeta: objectMeta(ours.Status.NodeName)})
	p.b.eventually(time.Minute, "seg-b has ended a Node of its own that was deleted after", func() (bool, string) { return p.b.settledIn("") })
	after := p.unchanged("A3: its Node was deleted while its owner is dead", before)
	if after["Node "+first.Status.NodeName].deleting == "" {
		p.Errorf("the Node is not being deleted: %v", after)
	}

	leaves := lost.Counters().Runs["leave"]
	if err := lost.PowerOn(); err != nil {
		p.Fatal(err)
	}
	p.a.start("")
	took := p.a.eventually(2*time.Minute, "the owner ends what was deleted", func() (bool, string) {
		claim, node := p.a.api.Get(p.Context(), keyIn("", first.Name), &karpv1.NodeClaim{}), p.a.api.Get(p.Context(), keyIn("", first.Status.NodeName), &corev1.Node{})
		return client.IgnoreNotFound(claim) == nil && claim != nil && client.IgnoreNotFound(node) == nil && node != nil, fmt.Sprintf("claim: %v, node: %v", claim, node)
	})
	p.a.running(1, time.Minute)
	p.Logf("%.1fs after its return the owner had ended what was deleted, %.1fs after it finished what it had begun", took.Seconds(), time.Since(p.a.started).Seconds())
	if n := lost.Counters().Runs["leave"] - leaves; n != 1 {
		p.Errorf("A3: leave ran %d times", n)
	}
	if claims := p.a.claims(); len(claims) != 1 || claims[0].UID != second.UID {
		p.Errorf("the claim whose join was cut short is not the one that was finished: %+v", claims)
	}
	p.noForeignWrites(began)
	p.settle()
}

// dieDuringInstall kills seg-a while it installs for another claim than the first, and returns that claim.
func (p *pair) dieDuringInstall(first karpv1.NodeClaim) karpv1.NodeClaim {
	p.Helper()
	for _, m := range p.a.fleet.Machines() {
		m.Slow("install", 5*time.Second)
		defer m.Inject("install", "")
	}
	installs := func() (n int) {
		for _, m := range p.a.fleet.Machines() {
			n += m.Counters().Runs["install"]
		}
		return n
	}
	had := installs()
	p.a.eventually(time.Minute, "the second install runs", func() (bool, string) { return installs() > had, "" })
	p.a.kill()
	for _, c := range p.a.claims() {
		if c.UID != first.UID {
			return c
		}
	}
	p.Fatal("the second claim is gone")
	return first
}

// machineOf is the machine of a claim of seg-a.
func (p *pair) machineOf(c karpv1.NodeClaim) *sim.Machine {
	p.Helper()
	for _, h := range p.a.hosts() {
		if h.Status.ClaimRef != nil && h.Status.ClaimRef.UID == c.UID {
			return p.a.fleet.Machine(h.Name)
		}
	}
	p.Fatalf("no host is held by %s", c.Name)
	return nil
}

// notReady says of a Node what the control plane would say after its grace period.
func (p *pair) notReady(name string) {
	p.Helper()
	node := &corev1.Node{}
	if err := p.a.api.Get(p.Context(), keyIn("", name), node); err != nil {
		p.Fatal(err)
	}
	base := node.DeepCopy()
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		}
	}
	if err := p.a.api.Status().Patch(p.Context(), node, client.MergeFrom(base)); err != nil {
		p.Fatal(err)
	}
}

// belonging is what must not change about an object while its owner is away.
type belonging struct{ finalizers, version, deleting string }

// belongings are all objects of seg-a. Of Nodes, which the control plane writes too, only finalizers and deletion count.
func (p *pair) belongings() map[string]belonging {
	p.Helper()
	all := map[string]belonging{}
	note := func(kind string, o client.Object, versioned bool) {
		b := belonging{finalizers: fmt.Sprint(o.GetFinalizers())}
		if versioned {
			b.version = o.GetResourceVersion()
		}
		if at := o.GetDeletionTimestamp(); at != nil {
			b.deleting = at.String()
		}
		all[kind+" "+o.GetName()] = b
	}
	for _, c := range p.a.claims() {
		note("NodeClaim", &c, true)
	}
	for _, n := range p.a.nodes() {
		note("Node", &n, false)
	}
	for _, h := range p.a.hosts() {
		note("SSHHost", &h, true)
	}
	class, pool := &v1beta1.SSHNodeClass{}, &karpv1.NodePool{}
	for _, o := range []client.Object{class, pool} {
		if err := p.a.api.Get(p.Context(), keyIn("", "pool-a"), o); err != nil {
			p.Fatal(err)
		}
	}
	note("SSHNodeClass", class, true)
	note("NodePool", pool, true)
	return all
}

// unchanged compares with what was before; that a Node is being deleted may be new.
func (p *pair) unchanged(when string, before map[string]belonging) map[string]belonging {
	p.Helper()
	now := p.belongings()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		was, is := before[name], now[name]
		if is.finalizers != was.finalizers || is.version != was.version || was.version != "" && is.deleting != was.deleting {
			p.Errorf("%s: %s was %+v and is %+v", when, name, was, is)
		}
	}
	if len(now) != len(before) {
		p.Errorf("%s: there were %d objects and are %d: %v", when, len(before), len(now), now)
	}
	return now
}
