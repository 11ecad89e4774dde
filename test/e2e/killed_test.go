//go:build linux && e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// The controller is killed while a phase runs on a machine; its successor finishes the work, once, for the same claim.
var _ = Describe("a controller that is killed", Ordered, func() {
	var (
		p     *corev1.Pod
		claim *v1beta1.ClaimReference
	)

	// successor kills the controller, starts another and waits until that runs the phase again.
	successor := func(ctx SpecContext, phase string) {
		GinkgoHelper()
		lives.controller.kill()
		start := time.Now()
		Expect(lives.controller.start()).To(Succeed())
		awaitBegun(ctx, lives.machines[gated], phase, 2)
		say("controller killed during %s: its successor runs it again after %.1fs", phase, time.Since(start).Seconds())
	}

	It("during install: the successor installs again", func(ctx SpecContext) {
		m := lives.machines[gated]
		lives.awaitHost(ctx, gated, "available", available)
		hold(ctx, m, "install")
		hold(ctx, m, "join")
		p = lives.run(ctx, "killed", gated)
		awaitBegun(ctx, m, "install", 1)
		h, err := lives.hostNow(ctx, gated)
		Expect(err).NotTo(HaveOccurred())
		claim = h.Status.ClaimRef
		Expect(claim).NotTo(BeNil())
		successor(ctx, "install")
		release(ctx, m, "install")
		awaitBegun(ctx, m, "join", 1)
	}, SpecTimeout(4*time.Minute))

	It("during join: the successor joins, and the pod runs", func(ctx SpecContext) {
		m := lives.machines[gated]
		successor(ctx, "join")
		Expect(begun(m, "install")).To(HaveLen(2), "an install that is done is not repeated")
		release(ctx, m, "join")
		p = lives.awaitRunning(ctx, "killed")
		Expect(p.Spec.NodeName).To(Equal(claim.Name))
		Expect(lives.claimsOf(ctx, gated)).To(HaveLen(1))
		h := lives.awaitHost(ctx, gated, "in use", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostInUse })
		Expect(h.Status.ClaimRef.UID).To(Equal(claim.UID), "the claim is the same through both deaths")
		Eventually(lives.tokens).WithArguments(ctx).WithContext(ctx).Should(BeEmpty())
	}, SpecTimeout(4*time.Minute))

	It("during leave: the successor makes the machine leave", func(ctx SpecContext) {
		m := lives.machines[gated]
		hold(ctx, m, "leave")
		lives.end(ctx, p)
		lives.deleteClaim(ctx, gated)
		awaitBegun(ctx, m, "leave", 1)
		successor(ctx, "leave")
		release(ctx, m, "leave")
		lives.awaitNoClaims(ctx, gated)
		lives.awaitAvailable(ctx, gated)
	}, SpecTimeout(4*time.Minute))
})
