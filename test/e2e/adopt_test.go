//go:build linux && e2e

package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

const (
	// hybrid is a machine whose agent chooses the Node's name and provider ID, as nodeadm does.
	hybrid = "hybrid"
	// agent is what stands for it: whatever the controller said, the kubelet gets the agent's own choice.
	agent = `[ -z "$KPSSH_PROVIDER_ID" ] || { echo "a provider ID was chosen for the agent" >&2; exit 1; }
export KPSSH_NODE_NAME=mi-0123456789 KPSSH_PROVIDER_ID=eks-hybrid:///lab/cluster/mi-0123456789
`
)

// agents is what the agent's Node is.
var agents = v1beta1.AdoptedIdentity{ProviderID: "eks-hybrid:///lab/cluster/mi-0123456789", NodeName: "mi-0123456789"}

var _ = Describe("a machine whose agent chooses its identity (adopt)", Ordered, func() {
	var m *machine.Machine

	BeforeAll(func(ctx SpecContext) {
		var err error
		m, err = lives.segment.Machine(ctx, hybrid)
		Expect(err).NotTo(HaveOccurred())
		lives.machines[hybrid] = m
		Expect(m.PowerOn(ctx)).To(Succeed())
		profile, err := lives.shippedProfile()
		Expect(err).NotTo(HaveOccurred())
		profile.Name, profile.Spec.Scripts.Join = hybrid, agent+profile.Spec.Scripts.Join
		class := nodeClass(hybrid, hybrid)
		class.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: hybrid, Namespace: poolNamespace}, Data: map[string][]byte{"privateKey": lives.site.LoginKey()},
		}
		for _, object := range []client.Object{profile, secret, lives.host(m, "root"), class, nodePool(hybrid)} {
			Expect(lives.create(ctx, object)).To(Succeed())
		}
		lives.awaitHost(ctx, hybrid, "available", available)
	}, NodeTimeout(4*time.Minute))

	AfterAll(func(ctx SpecContext) {
		for _, object := range []client.Object{nodePool(hybrid), nodeClass(hybrid, hybrid), lives.host(m, "root")} {
			Expect(lives.client.Delete(ctx, object)).To(Succeed())
		}
		Expect(m.PowerOff(ctx)).To(Succeed())
	}, NodeTimeout(time.Minute))

	serve := func(ctx SpecContext, name string) {
		GinkgoHelper()
		lives.run(ctx, name, hybrid)
		p := lives.awaitRunning(ctx, name)
		Expect(p.Spec.NodeName).To(Equal(agents.NodeName))
		claims := lives.claimsOf(ctx, hybrid)
		Expect(claims).To(HaveLen(1))
		Expect(claims[0].Status.ProviderID).To(Equal(agents.ProviderID))
		Expect(claims[0].Status.NodeName).To(Equal(agents.NodeName))
		h, err := lives.hostNow(ctx, hybrid)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Status.ProviderID).To(Equal(agents.ProviderID))
		Expect(h.Status.Adopted).To(HaveValue(Equal(agents)))
		Eventually(lives.tokens).WithArguments(ctx).WithContext(ctx).Should(BeEmpty(), "a token does not outlive its use")

		lives.end(ctx, p)
		lives.deleteClaim(ctx, hybrid)
		lives.awaitNoClaims(ctx, hybrid)
		lives.awaitAvailable(ctx, hybrid)
		err = lives.client.Get(ctx, types.NamespacedName{Name: agents.NodeName}, &corev1.Node{})
		Expect(apierrors.IsNotFound(err)).To(BeTrue(), "Node %s is left: %v", agents.NodeName, err)
	}

	It("its Node is taken over, and leaves with it", func(ctx SpecContext) {
		serve(ctx, "adopted")
		h, err := lives.hostNow(ctx, hybrid)
		Expect(err).NotTo(HaveOccurred())
		Expect(h.Status.ProviderID).To(BeEmpty())
		Expect(h.Status.Adopted).To(HaveValue(Equal(agents)), "what the machine calls itself is remembered")
	}, SpecTimeout(4*time.Minute))

	It("comes again as what it was", func(ctx SpecContext) {
		serve(ctx, "readopted")
	}, SpecTimeout(4*time.Minute))
})
