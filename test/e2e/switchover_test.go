//go:build linux && e2e

package e2e

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// existing is the machine of the manifests in testdata/existing-provider.
const existing = "existing"

// What users of the existing single-instance provider have in their repositories works as it is, with the instance that is called default.
var _ = Describe("manifests of the existing provider", Ordered, func() {
	var objects []client.Object
	var agent, workload *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		m, err := lives.segment.Machine(ctx, existing)
		Expect(err).NotTo(HaveOccurred())
		lives.machines[existing] = m
		Expect(m.PowerOn(ctx)).To(Succeed())
		objects = append(objects,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: "existing-login"}, Data: map[string][]byte{
				"privateKey": lives.site.LoginKey(), "knownHost": []byte(knownHost(m)),
			}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: "existing-join"}, Data: map[string][]byte{"licence": []byte("basement-licence-1")}},
		)
		// Addresses and authority of documentation stand for what is the user's own.
		site := strings.NewReplacer("192.0.2.21", m.Address.String(), "https://198.51.100.1:6443", lives.cp.Endpoint,
			"Q0EgYnVuZGxl", base64.StdEncoding.EncodeToString(lives.cp.CA()))
		for _, file := range []string{"profile", "nodeclass", "host", "nodepool"} {
			raw, err := os.ReadFile(filepath.Join("testdata", "existing-provider", file+".yaml"))
			Expect(err).NotTo(HaveOccurred())
			o := &unstructured.Unstructured{}
			Expect(yaml.Unmarshal([]byte(site.Replace(string(raw))), &o.Object)).To(Succeed())
			objects = append(objects, o)
		}
		for _, o := range objects {
			Expect(lives.client.Create(ctx, o, client.FieldValidation(metav1.FieldValidationStrict))).To(Succeed(), o.GetName())
		}
	}, NodeTimeout(3*time.Minute))

	AfterAll(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(lives.postmortem()) // later there is no machine to ask
		}
		for index := len(objects) - 1; index >= 0; index-- {
			Expect(client.IgnoreNotFound(lives.client.Delete(ctx, objects[index]))).To(Succeed())
		}
		Expect(lives.machines[existing].PowerOff(ctx)).To(Succeed())
	}, NodeTimeout(time.Minute))

	It("belong to instance default, and their host is offered", func(ctx SpecContext) {
		class := &v1beta1.SSHNodeClass{}
		Expect(lives.client.Get(ctx, types.NamespacedName{Name: existing}, class)).To(Succeed())
		Expect(class.Spec.Instance).To(Equal(v1beta1.DefaultInstance))
		lives.awaitHost(ctx, existing, "available", available)
	}, SpecTimeout(2*time.Minute))

	It("scale up, through startup taints", func(ctx SpecContext) {
		agent, workload = pod("agent", existing), pod("guest", existing)
		agent.Labels = map[string]string{"app": "agent"}
		agent.Spec.Tolerations = append(agent.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
		Expect(lives.client.Create(ctx, workload)).To(Succeed())
		Expect(lives.client.Create(ctx, agent)).To(Succeed())
		workload = lives.awaitRunning(ctx, workload.Name)
		node := lives.nodeOf(ctx, workload)
		Expect(node.Spec.ProviderID).To(Equal("kpssh://" + poolNamespace + "/" + existing))
		Expect(node.Spec.Taints).To(BeEmpty())
		Expect(node.Labels).To(And(
			HaveKeyWithValue(corev1.LabelInstanceTypeStable, existing), HaveKeyWithValue(corev1.LabelTopologyZone, "pool"),
			HaveKeyWithValue(v1beta1.ManagedLabel, "true"),
		))
		h := lives.awaitHost(ctx, existing, "in use", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostInUse })
		Expect(h.Status.InstalledProfile).To(Equal("existing@1.1-basement_2"))
	}, SpecTimeout(4*time.Minute))

	It("scale down", func(ctx SpecContext) {
		lives.end(ctx, workload)
		lives.end(ctx, agent)
		lives.awaitNoClaims(ctx, existing)
		lives.awaitAvailable(ctx, existing)
	}, SpecTimeout(4*time.Minute))
})

func (w *world) nodeOf(ctx context.Context, p *corev1.Pod) *corev1.Node {
	GinkgoHelper()
	node := &corev1.Node{}
	Expect(w.client.Get(ctx, types.NamespacedName{Name: p.Spec.NodeName}, node)).To(Succeed())
	return node
}
