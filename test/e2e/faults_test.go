//go:build linux && e2e

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

var _ = Describe("what goes wrong with a machine", Ordered, func() {
	var p *corev1.Pod

	It("NodeClaim deleted during install: the install is stopped, and the next claim is served", func(ctx SpecContext) {
		m := lives.machines[faulty]
		lives.awaitHost(ctx, faulty, "available", available)
		hold(ctx, m, "install")
		lives.run(ctx, "again", faulty)
		awaitBegun(ctx, m, "install", 1)
		first := lives.deleteClaim(ctx, faulty)
		Eventually(func() time.Time { return lives.timeline.after(time.Time{}, "nodeclaim "+first+" gone") }).WithContext(ctx).ShouldNot(BeZero())
		awaitBegun(ctx, m, "install", 2)
		release(ctx, m, "install")
		p = lives.awaitRunning(ctx, "again")
		Expect(p.Spec.NodeName).NotTo(Equal(first))
		Eventually(lives.tokens).WithArguments(ctx).WithContext(ctx).Should(BeEmpty())
	}, SpecTimeout(4*time.Minute))

	It("power lost while in use: the claim is kept, and the machine comes back into it", func(ctx SpecContext) {
		m := lives.machines[faulty]
		Expect(m.PowerOff(ctx)).To(Succeed())
		lives.awaitNode(ctx, p.Spec.NodeName, corev1.ConditionUnknown)
		h, err := lives.hostNow(ctx, faulty)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Status.State).To(Equal(v1beta1.HostInUse), "a machine that is off is still its claim's")
		Expect(m.PowerOn(ctx)).To(Succeed())
		lives.awaitNode(ctx, p.Spec.NodeName, corev1.ConditionTrue)
		Expect(lives.claimsOf(ctx, faulty)).To(HaveLen(1))
	}, SpecTimeout(4*time.Minute))

	It("power lost and claim ended: the leave runs before the machine is offered again", func(ctx SpecContext) {
		m := lives.machines[faulty]
		start := time.Now()
		Expect(m.PowerOff(ctx)).To(Succeed())
		lives.end(ctx, p)
		lives.deleteClaim(ctx, faulty)
		Eventually(func() int { return len(lives.claimsOf(ctx, faulty)) }).WithContext(ctx).WithTimeout(5*time.Minute).Should(BeZero(), "a dead machine does not hold up its NodeClaim for ever")
		say("power lost, NodeClaim deleted: NodeClaim gone after %.0fs", time.Since(start).Seconds())
		h := lives.awaitHost(ctx, faulty, "waiting for its leave", func(h *v1beta1.SSHHost) bool {
			return condition(h, v1beta1.ConditionLeavePending).Status == metav1.ConditionTrue
		})
		Expect(h.Status.State).To(Equal(v1beta1.HostUnhealthy))
		Expect(m.PowerOn(ctx)).To(Succeed())
		lives.awaitAvailable(ctx, faulty)
	}, SpecTimeout(8*time.Minute))

	It("host key changed: the host is out until a person trusts the new one", func(ctx SpecContext) {
		m := lives.machines[faulty]
		old := ssh.FingerprintSHA256(m.HostKey())
		Expect(m.RotateHostKey(ctx)).To(Succeed())
		fresh := ssh.FingerprintSHA256(m.HostKey())
		h := lives.awaitHost(ctx, faulty, "refused", func(h *v1beta1.SSHHost) bool {
			return h.Status.State == v1beta1.HostUnhealthy && condition(h, v1beta1.ConditionHostKeyVerified).Status == metav1.ConditionFalse
		})
		Expect(condition(h, v1beta1.ConditionHostKeyVerified).Message).To(And(ContainSubstring(old), ContainSubstring(fresh)), "a person can compare")
		lives.update(ctx, h, func() { metav1.SetMetaDataAnnotation(&h.ObjectMeta, v1beta1.TrustHostKeyAnnotation, fresh) })
		lives.awaitHost(ctx, faulty, "available", available)
	}, SpecTimeout(4*time.Minute))

	It("install script failed: the host rests with the reason, the NodeClaim goes, and a mended version serves the pod", func(ctx SpecContext) {
		profile := lives.gatedProfile(faulty, "2")
		profile.Spec.Scripts.Install = "echo no such disk /dev/sdz >&2; exit 7"
		lives.replaceProfile(ctx, profile)
		lives.run(ctx, "mended", faulty)
		h := lives.awaitHost(ctx, faulty, "parked", func(h *v1beta1.SSHHost) bool {
			return h.Status.State == v1beta1.HostUnhealthy && h.Status.ClaimRef == nil
		})
		Expect(condition(h, v1beta1.ConditionReady).Message).To(And(ContainSubstring("no such disk /dev/sdz"), ContainSubstring("7")))
		Expect(h.Status.Failures).NotTo(BeNil())
		lives.awaitNoClaims(ctx, faulty)
		Expect(lives.tokens(ctx)).To(BeEmpty())
		lives.replaceProfile(ctx, lives.gatedProfile(faulty, "3"))
		p = lives.awaitRunning(ctx, "mended")
		h, err := lives.hostNow(ctx, faulty)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Status.InstalledProfile).To(Equal(faulty + "@3"))
		lives.end(ctx, p)
		lives.deleteClaim(ctx, faulty)
		lives.awaitNoClaims(ctx, faulty)
		lives.awaitAvailable(ctx, faulty)
	}, SpecTimeout(6*time.Minute))
})

// awaitNode waits until a Node's Ready condition has a status.
func (w *world) awaitNode(ctx context.Context, name string, status corev1.ConditionStatus) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		node := &corev1.Node{}
		g.Expect(w.client.Get(ctx, types.NamespacedName{Name: name}, node)).To(Succeed())
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				g.Expect(c.Status).To(Equal(status), "Node %s Ready: %s", name, c.Message)
			}
		}
	}).WithContext(ctx).Should(Succeed())
}

func (w *world) replaceProfile(ctx context.Context, profile *v1beta1.SSHJoinProfile) {
	GinkgoHelper()
	current := &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: profile.Name}}
	w.update(ctx, current, func() { current.Spec = profile.Spec })
}
