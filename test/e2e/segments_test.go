//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// Two segments that do not reach each other, an instance inside each, beside the suite's own: three instances, one cluster.
var _ = Describe("two segments", Ordered, func() {
	var (
		a, b     *segment
		stranger *machine.Station
		began    time.Time
	)

	BeforeAll(func(ctx SpecContext) {
		began = time.Now()
		Expect(lives.create(ctx, lives.gatedProfile(segmentProfile, "1"))).To(Succeed())
		var err error
		a, err = lives.newSegment(ctx, segmentA, "a1", "zone-a")
		Expect(err).NotTo(HaveOccurred())
		b, err = lives.newSegment(ctx, segmentB, "b1", "zone-b")
		Expect(err).NotTo(HaveOccurred())
		Expect(open(ctx, a, b)).To(Succeed())
		for _, s := range []*segment{a, b} {
			lives.awaitHost(ctx, s.machine.Name, "available", available)
		}
		say("two segments with a machine and an instance each are up after %.1fs", time.Since(began).Seconds())
	}, NodeTimeout(4*time.Minute))

	AfterAll(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(lives.postmortem()) // later there are no machines to ask
		}
		for _, s := range lives.elsewhere {
			Expect(s.close(ctx)).To(Succeed())
		}
		say("two segments took %.0fs", time.Since(began).Seconds())
	}, NodeTimeout(time.Minute))

	It("do not reach each other, and each instance holds its own lease", func(ctx SpecContext) {
		dialCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		// From a place of its own, so that the taps at the instances have nothing to excuse.
		var err error
		stranger, err = b.network.Station(ctx, "stranger")
		Expect(err).NotTo(HaveOccurred())
		_, err = stranger.Dial(dialCtx, "tcp", a.machine.Address.String()+":22")
		Expect(err).To(HaveOccurred(), "the segments are not apart")
		conn, err := stranger.Dial(ctx, "tcp", b.machine.Address.String()+":22")
		Expect(err).NotTo(HaveOccurred(), "the stranger reaches nobody")
		Expect(conn.Close()).To(Succeed())
		// The tap is read beside what it counts, a moment later.
		Eventually(func() map[machine.Dial]int { return dialled(b.atMachine) }).WithContext(ctx).WithTimeout(10*time.Second).
			Should(HaveKey(machine.Dial{From: stranger.Address, To: b.dial(b.machine).To}), "the tap sees nothing")
		for _, s := range []*segment{a, b} {
			lease := &coordinationv1.Lease{}
			Expect(lives.client.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "kpssh-" + s.instance}, lease)).To(Succeed())
			Expect(lease.Spec.HolderIdentity).NotTo(HaveValue(BeEmpty()))
		}
	}, SpecTimeout(time.Minute))

	It("serve the pods that name their instance, and consolidation empties both", func(ctx SpecContext) {
		pa, pb := a.pod(ctx, "in-a"), b.pod(ctx, "in-b")
		say("pod pending -> Running, both machines cold, at once: seg-a %.1fs, seg-b %.1fs", a.running(ctx, pa).Seconds(), b.running(ctx, pb).Seconds())
		for _, s := range []*segment{a, b} {
			Expect(lives.claimsOf(ctx, s.machine.Name)).To(HaveLen(1))
			Expect(owner(ctx, s.machine)).To(ContainSubstring("instance=" + s.instance))
		}
		start := time.Now()
		lives.end(ctx, pa)
		lives.end(ctx, pb)
		a.emptied(ctx)
		b.emptied(ctx)
		say("pods gone -> both hosts back in their pools after %.1fs", time.Since(start).Seconds())
		lives.expectOut(ctx, a.machine.Name)
		lives.expectOut(ctx, b.machine.Name)
	}, SpecTimeout(8*time.Minute))

	It("serve the pods that name their zone", func(ctx SpecContext) {
		pa, pb := a.podBy(ctx, "in-zone-a", corev1.LabelTopologyZone, a.zone), b.podBy(ctx, "in-zone-b", corev1.LabelTopologyZone, b.zone)
		say("pod pending -> Running, both machines warm, at once: seg-a %.1fs, seg-b %.1fs", a.running(ctx, pa).Seconds(), b.running(ctx, pb).Seconds())
		a.end(ctx, pa)
		b.end(ctx, pb)
	}, SpecTimeout(8*time.Minute))

	// L4
	It("are not slowed by each other's machines: one whose sshd accepts and says nothing, one whose packets to sshd are dropped", func(ctx SpecContext) {
		b.beCalm(ctx)
		tried := a.attempts()
		inside(ctx, a.machine, "systemctl kill --kill-whom=main --signal=STOP ssh.service")
		pa := a.pod(ctx, "tarpit")
		Eventually(a.attempts).WithContext(ctx).Should(BeNumerically(">", tried), "seg-a did not try its machine")
		b.expectLikeCalm("while seg-a's machine is a tarpit", b.serveWhile(ctx, "beside-tarpit", 2, 0))
		Expect(lives.client.Get(ctx, client.ObjectKeyFromObject(pa), pa)).To(Succeed())
		Expect(pa.Status.Phase).To(Equal(corev1.PodPending), "the tarpit was none")
		inside(ctx, a.machine, "systemctl kill --kill-whom=main --signal=CONT ssh.service")
		healed := time.Now()
		took := a.running(ctx, pa)
		say("a pod of seg-a that came upon a tarpit ran after %.1fs, %.1fs after that was mended", took.Seconds(), time.Since(healed).Seconds())

		inside(ctx, a.machine, "iptables --insert INPUT --protocol tcp --dport 22 --jump DROP")
		lives.end(ctx, pa)
		lives.deleteClaim(ctx, a.machine.Name)
		tried = a.attempts()
		Eventually(a.attempts).WithContext(ctx).Should(BeNumerically(">", tried), "seg-a did not try to make its machine leave")
		b.expectLikeCalm("while packets to the sshd of seg-a's machine are dropped", b.serveWhile(ctx, "beside-drop", 2, 0))
		h, err := lives.hostNow(ctx, a.machine.Name)
		Expect(err).NotTo(HaveOccurred())
		Expect(available(h)).To(BeFalse(), "a machine that cannot be reached is offered before it has left")
		inside(ctx, a.machine, "iptables --delete INPUT --protocol tcp --dport 22 --jump DROP")
		healed = time.Now()
		a.emptied(ctx)
		say("the machine of seg-a was back in its pool %.1fs after its firewall was opened", time.Since(healed).Seconds())
	}, SpecTimeout(8*time.Minute))

	It("one instance dies: the other goes on, what was the dead one's stays, and it finishes when it returns (A2)", func(ctx SpecContext) {
		b.beCalm(ctx)
		outage(ctx, a, b)
	}, SpecTimeout(8*time.Minute+outageLasts()))

	It("saw no connection from anywhere but their own instance, and no write but by it (S6)", func(ctx SpecContext) {
		for _, s := range []*segment{a, b} {
			other := map[*segment]*segment{a: b, b: a}[s]
			expectOwnDialsOnly(s, stranger)
			for instance, station := range map[string]*machine.Station{s.instance: s.station, other.instance: other.station, single.instance: lives.station} {
				n, err := s.machine.Connections(station)
				Expect(err).NotTo(HaveOccurred())
				say("sshd of %s counted %d connections from instance %s", s.machine.Name, n, instance)
				if instance == s.instance {
					Expect(n).To(BeNumerically(">", 0))
				} else {
					Expect(n).To(BeZero())
				}
			}
		}
		for name, m := range lives.machines {
			if lives.elsewhere[name] == nil {
				for _, s := range []*segment{a, b} {
					Expect(m.Connections(s.station)).To(BeZero())
				}
			}
		}

		// What an intruder with seg-b's credentials would do must show: else the log, or the look at it, is blind.
		plant(ctx, b, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: a.machine.Name}})
		// Whoever it is: what lives is not handed over. The policy goes by the name that the instance wrote on its NodePool.
		move := fmt.Appendf(nil, `{"spec":{"template":{"spec":{"nodeClassRef":{"name":%q}}}}}`, b.machine.Name)
		err := lives.client.Patch(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: a.machine.Name}}, client.RawPatch(types.MergePatchType, move), client.DryRunAll)
		Expect(err).To(MatchError(ContainSubstring("a NodePool does not move between instances")))
		own, foreign := lives.writes(began)
		say("audit log: writes on own objects: %v; on foreign ones: %d, of which planted: 1", own, len(foreign))
		var told []string
		for _, e := range foreign {
			told = append(told, e.UserAgent+" "+tell(e))
		}
		Expect(told).To(ConsistOf(HavePrefix(planted+" ")), "S6")
		for _, s := range []*segment{a, b} {
			Expect(own[s.instance]).To(BeNumerically(">", 50), "the audit log does not show what %s did", s.instance)
		}
	}, SpecTimeout(time.Minute))
})

// inside runs a line on a machine.
func inside(ctx context.Context, m *machine.Machine, line string) {
	GinkgoHelper()
	_, err := m.Exec(ctx, line)
	Expect(err).NotTo(HaveOccurred())
}

// expectOwnDialsOnly looks at both ends: packets to another segment would not arrive, so that only the sender's end would show them.
func expectOwnDialsOnly(s *segment, stranger *machine.Station) {
	GinkgoHelper()
	sent := dialled(s.atController)
	own := s.dial(s.machine)
	Expect(sent[own]).To(BeNumerically(">", 0))
	for dial := range sent {
		Expect(dial.From).To(Equal(s.station.Address), "somebody connects to the instance %s: %v", s.instance, dial)
		Expect(dial.To == own.To || dial.To.Addr() == machine.HubAddress).To(BeTrue(), "instance %s tried to reach %s", s.instance, dial.To)
	}
	var strange []string
	for dial, n := range dialled(s.atMachine) {
		// The lab itself looks whether the machine has booted.
		if dial.To == own.To && dial.From != s.station.Address && dial.From != s.network.Hub && dial.From != stranger.Address {
			strange = append(strange, fmt.Sprintf("%d from %s", n, dial.From))
		}
	}
	Expect(strange).To(BeEmpty(), "who else connected to the sshd of %s", s.machine.Name)
	say("instance %s tried to connect to %d addresses, %d times to its machine", s.instance, len(sent), sent[own])
}

// plant writes with an instance's credentials what is not its own, in a way that changes nothing.
func plant(ctx context.Context, s *segment, object client.Object) {
	GinkgoHelper()
	config, err := clientcmd.BuildConfigFromFlags("", s.controller.kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	config.UserAgent = planted
	intruder, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"planted":"true"}}}`))
	err = intruder.Patch(ctx, object, patch, client.DryRunAll)
	Expect(err).To(MatchError(ContainSubstring("of instance "+segmentA.instance)), "H4: the policies that the chart installs")
}
