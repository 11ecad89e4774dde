//go:build linux && e2e

package e2e

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// One machine's life with the shipped profile.
var _ = Describe("a machine with the shipped profile", Ordered, func() {
	var p *corev1.Pod

	It("is offered once a probe has seen it", func(ctx SpecContext) {
		h := lives.awaitHost(ctx, shipped, "available", available)
		Expect(condition(h, v1beta1.ConditionHostKeyVerified).Status).To(BeEquivalentTo("True"))
	}, SpecTimeout(2*time.Minute))

	It("joins, cold, for a pending pod", func(ctx SpecContext) {
		joins := lives.metric(ctx, `kpssh_ssh_handshakes_total{kpssh_instance="default",outcome="success",purpose="join"}`)
		lives.run(ctx, "cold", shipped)
		p = lives.awaitRunning(ctx, "cold")
		report("pod pending -> Running on a cold machine:", lives.breakdown(ctx, p, lives.machines[shipped]))
		Expect(lives.metric(ctx, `kpssh_ssh_handshakes_total{kpssh_instance="default",outcome="success",purpose="join"}`)-joins).To(BeEquivalentTo(1), "install and join share one connection")
		node := &corev1.Node{}
		Expect(lives.client.Get(ctx, types.NamespacedName{Name: p.Spec.NodeName}, node)).To(Succeed())
		Expect(node.Spec.ProviderID).To(Equal("kpssh://" + poolNamespace + "/" + shipped))
		Expect(node.Labels).To(HaveKeyWithValue(v1beta1.HostClassLabel, shipped))
		Eventually(lives.tokens).WithArguments(ctx).WithContext(ctx).Should(BeEmpty(), "a token does not outlive its use")
	}, SpecTimeout(4*time.Minute))

	It("refuses a second SSHHost that lists the same machine", func(ctx SpecContext) {
		h, err := lives.hostNow(ctx, shipped)
		Expect(err).NotTo(HaveOccurred())
		Expect(owner(ctx, lives.machines[shipped])).To(And(ContainSubstring("host="+string(h.UID)), ContainSubstring("claim="+string(h.Status.ClaimRef.UID))))
		twin := lives.host(lives.machines[shipped], "root")
		twin.Name = "twin"
		Expect(lives.client.Create(ctx, twin)).To(Succeed())
		seen := lives.awaitHost(ctx, "twin", "refused", func(h *v1beta1.SSHHost) bool {
			return condition(h, v1beta1.ConditionOwnedElsewhere).Status == metav1.ConditionTrue
		})
		Expect(seen.Status.State).To(Equal(v1beta1.HostUnhealthy), "it is never offered")
		Expect(condition(seen, v1beta1.ConditionOwnedElsewhere).Message).To(ContainSubstring(string(h.UID)), "it says whose the machine is")
		Expect(lives.client.Delete(ctx, twin)).To(Succeed())
		Eventually(func() bool {
			_, err := lives.hostNow(ctx, "twin")
			return apierrors.IsNotFound(err)
		}).WithContext(ctx).Should(BeTrue())
	}, SpecTimeout(2*time.Minute))

	It("is drained and leaves when the pod is gone", func(ctx SpecContext) {
		start := time.Now()
		lives.end(ctx, p)
		lives.awaitNoClaims(ctx, shipped)
		lives.awaitAvailable(ctx, shipped)
		say("pod gone -> host back in the pool:\n%s", strings.Join(lives.timeline.since(start, "pod cold", "node", "host "+shipped), "\n"))
	}, SpecTimeout(4*time.Minute))

	It("joins again, warm, without an install", func(ctx SpecContext) {
		lives.run(ctx, "warm", shipped)
		p = lives.awaitRunning(ctx, "warm")
		_, ours := report("pod pending -> Running on a warm machine:", lives.breakdown(ctx, p, lives.machines[shipped]))
		Expect(lives.timeline.after(lives.timeline.after(time.Time{}, "pod warm created"), "host "+shipped+" operation Install for "+p.Spec.NodeName)).To(BeZero(), "a warm machine is not installed again")
		// Seconds when the cores are idle. The limit only catches what waits for something it should not wait for.
		Expect(ours).To(BeNumerically("<", 30*time.Second))
	}, SpecTimeout(4*time.Minute))

	It("stays out when it reboots in the pool", func(ctx SpecContext) {
		lives.end(ctx, p)
		lives.awaitNoClaims(ctx, shipped)
		lives.awaitAvailable(ctx, shipped)
		before, err := lives.hostNow(ctx, shipped)
		Expect(err).NotTo(HaveOccurred())
		Expect(lives.machines[shipped].Reboot(ctx)).To(Succeed())
		lives.awaitHost(ctx, shipped, "probed after its reboot", func(h *v1beta1.SSHHost) bool {
			return available(h) && h.Status.LastProbeTime.After(before.Status.LastProbeTime.Add(2*time.Second))
		})
		lives.expectOut(ctx, shipped)
	}, SpecTimeout(4*time.Minute))
})
