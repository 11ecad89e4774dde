//go:build linux && e2e

package e2e

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

const (
	// upkeep is the pool of two machines, so that one can take over from the other; it is their host class, their profile and their class, too.
	upkeep = "upkeep"
	// agentTaint keeps pods from a node of the pool until its agent is there.
	agentTaint = "node.example.com/agent-not-ready"
	// versionsFile on a machine has a line for each phase that has run, with the version of the profile that it was of.
	versionsFile = "/var/lib/e2e-versions"
	// fullDirectory is one that the shipped install writes to, and nothing else does.
	fullDirectory = "/etc/modules-load.d"
)

// A pool of two machines over months, in minutes: what a person changes, and what breaks, while a deployment goes on running.
var _ = Describe("upkeep of a pool", Ordered, func() {
	var (
		began    time.Time
		machines []*machine.Machine
		guest    *appsv1.Deployment
		agent    *appsv1.DaemonSet
	)

	// other is the pool's other machine.
	other := func(m *machine.Machine) *machine.Machine {
		return machines[1-slices.Index(machines, m)]
	}
	scale := func(ctx context.Context, replicas int32) {
		GinkgoHelper()
		lives.update(ctx, guest, func() { guest.Spec.Replicas = &replicas })
	}
	// empty ends the deployment's pod, and the node with it; whether the machine is offered again is for the caller to see.
	empty := func(ctx context.Context) {
		GinkgoHelper()
		scale(ctx, 0)
		lives.deleteClaim(ctx, upkeep)
		lives.awaitNoClaims(ctx, upkeep)
	}
	// alone waits until karpenter is done with the node that was replaced.
	alone := func(ctx context.Context) {
		GinkgoHelper()
		Eventually(func() []karpv1.NodeClaim { return lives.claimsOf(ctx, upkeep) }).WithContext(ctx).Should(HaveLen(1))
	}
	// served waits until the deployment's pod runs, and tells on which machine.
	served := func(ctx context.Context) (*corev1.Pod, *machine.Machine) {
		GinkgoHelper()
		p := awaitGuest(ctx)
		name := path.Base(lives.nodeOf(ctx, p).Spec.ProviderID)
		Expect(lives.machines).To(HaveKey(name))
		return p, lives.machines[name]
	}

	BeforeAll(func(ctx SpecContext) {
		began = time.Now()
		guest, agent = upkeepGuest(), upkeepAgent()
		class, pool := nodeClass(upkeep, upkeep), nodePool(upkeep)
		class.Spec.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: agentTaint, RemoveWhen: v1beta1.RemoveWhen{
			PodsReady: &v1beta1.PodsReady{Namespace: agent.Namespace, Selector: *agent.Spec.Selector},
		}}}
		pool.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: agentTaint, Effect: corev1.TaintEffectNoSchedule}}
		pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never") // every node that goes here goes for another reason
		for _, object := range []client.Object{upkeepProfile("1"), class, pool} {
			Expect(lives.create(ctx, object)).To(Succeed())
		}
		for _, name := range []string{"upkeep-1", "upkeep-2"} {
			m, err := lives.segment.Machine(ctx, name)
			Expect(err).NotTo(HaveOccurred())
			machines = append(machines, m)
			lives.machines[name] = m
		}
		group, groupCtx := errgroup.WithContext(ctx)
		for _, m := range machines {
			group.Go(func() error { return m.PowerOn(groupCtx) })
		}
		Expect(group.Wait()).To(Succeed())
		for _, m := range machines {
			h := lives.host(m, "root")
			h.Labels = map[string]string{poolLabel: upkeep, v1beta1.HostClassLabel: upkeep}
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: poolNamespace},
				Data:       map[string][]byte{"privateKey": lives.site.LoginKey()},
			}
			Expect(lives.create(ctx, secret)).To(Succeed())
			Expect(lives.create(ctx, h)).To(Succeed())
		}
		for _, m := range machines {
			lives.awaitHost(ctx, m.Name, "available", available)
		}
	}, NodeTimeout(3*time.Minute))

	AfterAll(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(lives.postmortem()) // later there are no machines to ask
		}
		objects := []client.Object{guest, agent, nodePool(upkeep), nodeClass(upkeep, upkeep)}
		for _, m := range machines {
			objects = append(objects, lives.host(m, "root"))
		}
		for _, object := range objects {
			Expect(client.IgnoreNotFound(lives.client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)))).To(Succeed())
		}
		for _, m := range machines {
			Expect(m.PowerOff(ctx)).To(Succeed())
		}
		say("the upkeep of a pool took %.0fs", time.Since(began).Seconds())
	}, NodeTimeout(time.Minute))

	It("a startup taint stays until the node's agent is Ready", func(ctx SpecContext) {
		Expect(lives.create(ctx, guest)).To(Succeed())
		var node corev1.Node
		Eventually(func(g Gomega) {
			claims := lives.claimsOf(ctx, upkeep)
			g.Expect(claims).To(HaveLen(1))
			g.Expect(claims[0].Status.NodeName).NotTo(BeEmpty())
			g.Expect(lives.client.Get(ctx, types.NamespacedName{Name: claims[0].Status.NodeName}, &node)).To(Succeed())
			g.Expect(node.Labels).To(HaveKeyWithValue(karpv1.NodeRegisteredLabelKey, "true"))
		}).WithContext(ctx).Should(Succeed())
		lives.awaitNode(ctx, node.Name, corev1.ConditionTrue)
		Consistently(func(g Gomega) {
			g.Expect(lives.client.Get(ctx, client.ObjectKeyFromObject(&node), &node)).To(Succeed())
			g.Expect(node.Spec.Taints).To(ContainElement(HaveField("Key", agentTaint)))
			g.Expect(guests(ctx)).To(HaveEach(HaveField("Status.Phase", corev1.PodPending)))
		}).WithContext(ctx).WithTimeout(2 * time.Second).Should(Succeed())
		Expect(lives.create(ctx, agent)).To(Succeed())
		p, _ := served(ctx)
		Expect(p.Spec.NodeName).To(Equal(node.Name))
		Expect(lives.nodeOf(ctx, p).Spec.Taints).To(BeEmpty())
		awaitEvent(ctx, node.Name, "StartupTaintRemoved", agentTaint+":NoSchedule")
	}, SpecTimeout(3*time.Minute))

	// Section 3 #39
	It("a new version of the profile replaces the node: drained, left by the old version, joined by the new one", func(ctx SpecContext) {
		p, old := served(ctx)
		fresh, start := other(old), time.Now()
		lives.replaceProfile(ctx, upkeepProfile("2"))
		awaitNodesCurrent(ctx, metav1.ConditionFalse, v1beta1.ReasonRolling, old.Name)
		Eventually(func(g Gomega) {
			claim := &karpv1.NodeClaim{}
			g.Expect(lives.client.Get(ctx, types.NamespacedName{Name: p.Spec.NodeName}, claim)).To(Succeed())
			drifted := claim.StatusConditions().Get(karpv1.ConditionTypeDrifted)
			g.Expect(drifted.IsTrue()).To(BeTrue())
			g.Expect(drifted.Reason).To(Equal("ProfileDrift"))
		}).WithContext(ctx).Should(Succeed())
		Eventually(func() (err error) {
			return lives.client.Get(ctx, client.ObjectKeyFromObject(p), &corev1.Pod{})
		}).WithContext(ctx).Should(Satisfy(apierrors.IsNotFound))
		awaitEvent(ctx, p.Name, "Evicted", "")
		moved, on := served(ctx)
		Expect(on.Name).To(Equal(fresh.Name))
		alone(ctx)
		lives.awaitAvailable(ctx, old.Name)
		awaitNodesCurrent(ctx, metav1.ConditionTrue, v1beta1.ConditionNodesCurrent, "")
		say("profile changed -> node replaced, old machine back in the pool, after %.0fs", time.Since(start).Seconds())

		Expect(versions(old)).To(Equal([]string{"install 1", "join 1", "leave 1"}))
		Expect(versions(fresh)).To(Equal([]string{"install 2", "join 2"}))
		h, err := lives.hostNow(ctx, fresh.Name)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Status.InstalledProfile).To(Equal(upkeep + "@2"))
		Expect(moved.Spec.NodeName).To(Equal(h.Status.ClaimRef.Name))
		Expect(lives.claimsOf(ctx, upkeep)).To(HaveLen(1))
		var said []string
		for _, line := range lives.timeline.since(start, "class "+upkeep+" nodes ") {
			fields := strings.Fields(line)
			said = append(said, fields[len(fields)-1])
		}
		Expect(said).To(Equal([]string{v1beta1.ReasonRolling, v1beta1.ConditionNodesCurrent}), "what the class said about its nodes meanwhile")
	}, SpecTimeout(4*time.Minute))

	It("maintenance parks a free machine at once, and one in use when its claim has ended", func(ctx SpecContext) {
		_, busy := served(ctx)
		free := other(busy)
		lives.park(ctx, free.Name)
		h := lives.awaitHost(ctx, free.Name, "parked", parked)
		Expect(condition(h, v1beta1.ConditionReady).Reason).To(Equal(v1beta1.ReasonMaintenance))
		awaitEvent(ctx, free.Name, "MaintenanceStarted", v1beta1.MaintenanceAnnotation)
		lives.park(ctx, busy.Name)
		Consistently(func(g Gomega) {
			h, err := lives.hostNow(ctx, busy.Name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(h.Status.State).To(Equal(v1beta1.HostInUse), "maintenance takes no node away")
		}).WithContext(ctx).WithTimeout(2 * time.Second).Should(Succeed())
		Expect(awaitGuest(ctx).DeletionTimestamp).To(BeNil())

		empty(ctx)
		lives.awaitHost(ctx, busy.Name, "parked", parked)
		lives.expectOut(ctx, busy.Name)
		scale(ctx, 1)
		Consistently(func() []karpv1.NodeClaim { return lives.claimsOf(ctx, upkeep) }).WithContext(ctx).WithTimeout(3*time.Second).Should(BeEmpty(), "a parked machine was claimed")
		scale(ctx, 0)
		for _, m := range machines {
			lives.unpark(ctx, m.Name)
			lives.awaitHost(ctx, m.Name, "available", available)
			awaitEvent(ctx, m.Name, "MaintenanceEnded", "")
		}
	}, SpecTimeout(3*time.Minute))

	It("a disk that is full during install: the machine rests with the reason, another one serves the pod, and it is back when a person has made room", func(ctx SpecContext) {
		lives.replaceProfile(ctx, upkeepProfile("3"))
		before := map[*machine.Machine]int{}
		for _, m := range machines {
			hold(ctx, m, "install")
			before[m] = len(begun(m, "install"))
		}
		scale(ctx, 1)
		var full *machine.Machine
		Eventually(func() *machine.Machine {
			for _, m := range machines {
				if len(begun(m, "install")) > before[m] {
					full = m
				}
			}
			return full
		}).WithContext(ctx).ShouldNot(BeNil())
		claim := lives.claimsOf(ctx, upkeep)[0].Name
		inside(ctx, full, "mount -t tmpfs -o size=4k full "+fullDirectory+" && ! cat /dev/zero >"+fullDirectory+"/rest")
		for _, m := range machines {
			release(ctx, m, "install")
		}
		h := lives.awaitHost(ctx, full.Name, "parked", func(h *v1beta1.SSHHost) bool {
			return h.Status.State == v1beta1.HostUnhealthy && h.Status.ClaimRef == nil
		})
		ready := condition(h, v1beta1.ConditionReady)
		say("a full disk is told as %s: %s", ready.Reason, ready.Message)
		Expect(ready.Reason).To(Equal("ScriptFailed"))
		Expect(ready.Message).To(And(ContainSubstring("install"), ContainSubstring("No space left on device")))
		Expect(h.Status.Failures.Recent).To(ConsistOf(And(
			HaveField("Operation", v1beta1.OperationInstall), HaveField("Reason", "ScriptFailed"),
		)), "the machine is to blame, and this is remembered")
		for _, name := range []string{full.Name, claim} {
			awaitEvent(ctx, name, v1beta1.ReasonJoinFailed, "No space left on device")
		}
		_, on := served(ctx)
		Expect(on.Name).To(Equal(other(full).Name))
		Eventually(lives.tokens).WithArguments(ctx).WithContext(ctx).Should(BeEmpty())

		inside(ctx, full, "umount "+fullDirectory)
		lives.update(ctx, h, func() { metav1.SetMetaDataAnnotation(&h.ObjectMeta, v1beta1.ClearFailuresAnnotation, "more room") })
		h = lives.awaitHost(ctx, full.Name, "available", available)
		Expect(h.Status.Failures).To(BeNil())
		awaitEvent(ctx, full.Name, "FailuresCleared", "")
	}, SpecTimeout(4*time.Minute))

	It("a node whose kubelet is dead is repaired", func(ctx SpecContext) {
		p, sick := served(ctx)
		node := p.Spec.NodeName
		inside(ctx, sick, "systemctl stop kubelet.service")
		lives.awaitNode(ctx, node, corev1.ConditionUnknown)
		Expect(lives.claimsOf(ctx, upkeep)).To(ConsistOf(HaveField("DeletionTimestamp", BeNil())), "it has ten minutes to come back")
		start := time.Now()
		beOverdue(ctx, node, 11*time.Minute)
		Eventually(func(g Gomega) {
			p, on := served(ctx)
			g.Expect(p.Spec.NodeName).NotTo(Equal(node))
			g.Expect(on.Name).To(Equal(other(sick).Name))
		}).WithContext(ctx).Should(Succeed())
		alone(ctx)
		lives.awaitAvailable(ctx, sick.Name)
		Expect(lives.claimsOf(ctx, upkeep)).To(HaveLen(1))
		say("a node overdue for repair: its pod runs elsewhere and its machine is back in the pool after %.0fs", time.Since(start).Seconds())
	}, SpecTimeout(4*time.Minute))

	It("a machine re-imaged in use: it does not leave by a key that nobody trusts, and does when a person trusts it", func(ctx SpecContext) {
		_, m := served(ctx)
		old := ssh.FingerprintSHA256(m.HostKey())
		Expect(m.RotateHostKey(ctx)).To(Succeed())
		fresh := ssh.FingerprintSHA256(m.HostKey())
		leaves := len(begun(m, "leave"))
		empty(ctx)
		h := lives.awaitHost(ctx, m.Name, "refused", func(h *v1beta1.SSHHost) bool {
			return h.Status.State == v1beta1.HostUnhealthy && condition(h, v1beta1.ConditionHostKeyVerified).Status == metav1.ConditionFalse
		})
		Expect(condition(h, v1beta1.ConditionLeavePending).Status).To(Equal(metav1.ConditionTrue), "it is not offered before it has left")
		Expect(condition(h, v1beta1.ConditionHostKeyVerified).Message).To(And(ContainSubstring(old), ContainSubstring(fresh)))
		awaitEvent(ctx, m.Name, v1beta1.ReasonHostKeyMismatch, fresh)
		Expect(begun(m, "leave")).To(HaveLen(leaves))
		lives.update(ctx, h, func() { metav1.SetMetaDataAnnotation(&h.ObjectMeta, v1beta1.TrustHostKeyAnnotation, fresh) })
		lives.awaitAvailable(ctx, m.Name)
		Expect(begun(m, "leave")).To(HaveLen(leaves + 1))
	}, SpecTimeout(4*time.Minute))
})

// upkeepProfile is a gated one whose phases leave their version on the machine.
func upkeepProfile(version string) *v1beta1.SSHJoinProfile {
	profile := lives.gatedProfile(upkeep, version)
	note := func(phase string) string { return "echo \"" + phase + " " + version + "\" >>" + versionsFile + "\n" }
	s := &profile.Spec.Scripts
	s.Install, s.Join, s.Leave = note("install")+s.Install, note("join")+s.Join, note("leave")+s.Leave
	return profile
}

// versions are the phases that have run on a machine, each with the version that it was of, oldest first.
func versions(m *machine.Machine) []string {
	GinkgoHelper()
	raw, err := os.ReadFile(m.Path(versionsFile))
	Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

// upkeepGuest is what the pool's users run: evicted pods come again.
func upkeepGuest() *appsv1.Deployment {
	labels := map[string]string{"app": "upkeep-guest"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "upkeep-guest", Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", upkeep).Spec},
		},
	}
}

// upkeepAgent is what a cluster's operator runs on each node of the pool.
func upkeepAgent() *appsv1.DaemonSet {
	labels := map[string]string{"app": "upkeep-agent"}
	spec := pod("", upkeep).Spec
	spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: agentTaint, Operator: corev1.TolerationOpExists})
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "upkeep-agent", Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// guests are the deployment's pods, those left out that are ending.
func guests(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(lives.client.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": "upkeep-guest"})).To(Succeed())
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() })
}

// awaitGuest waits until the deployment's one pod runs.
func awaitGuest(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var p corev1.Pod
	Eventually(func(g Gomega) {
		found := guests(ctx)
		g.Expect(found).To(HaveLen(1))
		p = found[0]
		g.Expect(p.Status.Phase).To(Equal(corev1.PodRunning))
	}).WithContext(ctx).Should(Succeed())
	return &p
}

// awaitEvent waits for an event about an object of that name that says so.
func awaitEvent(ctx context.Context, about, reason, text string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(lives.client.List(ctx, events, client.MatchingFields{"involvedObject.name": about})).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(HaveField("Reason", reason), HaveField("Message", ContainSubstring(text)))), "events of %s", about)
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

// awaitNodesCurrent waits for what the class says about its nodes.
func awaitNodesCurrent(ctx context.Context, status metav1.ConditionStatus, reason, text string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		class := &v1beta1.SSHNodeClass{}
		g.Expect(lives.client.Get(ctx, types.NamespacedName{Name: upkeep}, class)).To(Succeed())
		current := class.StatusConditions().Get(v1beta1.ConditionNodesCurrent)
		g.Expect(current).NotTo(BeNil())
		g.Expect(current.Status).To(Equal(status), current.Message)
		g.Expect(current.Reason).To(Equal(reason), current.Message)
		g.Expect(current.Message).To(ContainSubstring(text))
	}).WithContext(ctx).Should(Succeed())
}

func parked(h *v1beta1.SSHHost) bool {
	return h.Status.State == v1beta1.HostMaintenance && h.Status.ClaimRef == nil
}

// park asks for maintenance of a machine, and unpark says that it is over.
func (w *world) park(ctx context.Context, host string) {
	GinkgoHelper()
	h := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Name: host, Namespace: w.namespaceOf(host)}}
	w.update(ctx, h, func() { metav1.SetMetaDataAnnotation(&h.ObjectMeta, v1beta1.MaintenanceAnnotation, "") })
}

func (w *world) unpark(ctx context.Context, host string) {
	GinkgoHelper()
	h := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Name: host, Namespace: w.namespaceOf(host)}}
	w.update(ctx, h, func() { delete(h.Annotations, v1beta1.MaintenanceAnnotation) })
}

// beOverdue dates back since when a Node's Ready condition is what it is: nobody waits ten minutes here for a repair.
func beOverdue(ctx context.Context, name string, by time.Duration) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		node := &corev1.Node{}
		g.Expect(lives.client.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
		for i := range node.Status.Conditions {
			if node.Status.Conditions[i].Type == corev1.NodeReady {
				node.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Add(-by))
			}
		}
		g.Expect(lives.client.Status().Update(ctx, node)).To(Succeed())
	}).WithContext(ctx).Should(Succeed())
}
