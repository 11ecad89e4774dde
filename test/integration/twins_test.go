package integration

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// D16: 50 claims, 50 hosts, two processes of one instance that both believe to lead. Both launch every claim at the same time: a host
// gets one claim and a claim one host (S1, S2), and all are served. The hosts are taken for probed, and their machines accept
// connections and say nothing, so that what is tested costs two cores no more than it must: claims are made, joins do not get anywhere.
func TestTwoLeadersFiftyClaimsFiftyHosts(t *testing.T) {
	const n = 50
	first := shared.newInstance(t, "twins", "kp-twins", "PROBE_INTERVAL=1h")
	s := prepare(t, first, "twins", 4*time.Second)
	second := shared.newInstance(t, "twins", "kp-twins", "PROBE_INTERVAL=1h")
	t.Cleanup(func() { first.kill(); second.kill() }) // both, before what they would act on
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-twins", Name: "twins"}, Data: s.fleet.LoginSecret("kp-twins", "twins", true).Data})
	for i := range n {
		s.silentHost(fmt.Sprintf("twins-%02d", i))
	}
	for i := range n {
		s.create(&karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("twins-%02d", i), Labels: map[string]string{karpv1.NodePoolLabelKey: "twins"}},
			Spec: karpv1.NodeClaimSpec{
				NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: "twins"},
				Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
				Resources:    karpv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}},
			},
		})
	}
	first.start(t, "")
	second.start(t, "")
	took := s.claimed(n, 2*time.Minute)

	holders := map[string]string{} // claim to host
	for _, h := range s.hosts() {
		if h.Status.ClaimRef == nil {
			t.Errorf("host %s has no claim", h.Name)
			continue
		}
		name := h.Status.ClaimRef.Name
		if other, taken := holders[name]; taken {
			t.Errorf("S2: claim %s holds %s and %s", name, other, h.Name)
		}
		holders[name] = h.Name
	}
	for _, c := range s.claims() {
		if want := v1beta1.ProviderIDScheme + "kp-twins/" + holders[c.Name]; c.Status.ProviderID != want {
			t.Errorf("claim %s says %s, the inventory %s", c.Name, c.Status.ProviderID, want)
		}
	}
	conflicts := first.metric(t, "kpssh_claim_conflicts_total") + second.metric(t, "kpssh_claim_conflicts_total")
	t.Logf("%d claims on %d hosts in %.1fs by two processes, %.0f conflicts", len(holders), n, took.Seconds(), conflicts)
}

// silentHost is an SSHHost that counts as probed, on a port where connections are accepted by the kernel and never served.
func (s *scenario) silentHost(name string) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback, in a test
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = listener.Close() })
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name, Labels: map[string]string{hostLabel: s.name}},
		Spec: v1beta1.SSHHostSpec{
			Address: "127.0.0.1", Port: int32(listener.Addr().(*net.TCPAddr).Port), User: "root", NodeAddress: s.nodeIP(),
			SSHKeySecretRef: v1beta1.SecretReference{Name: s.name},
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")},
		},
	}
	s.create(h)
	base := h.DeepCopy()
	h.Status = v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64", ObservedGeneration: h.Generation, LastProbeTime: new(metav1.Now())}
	if err := s.api.Status().Patch(s.t.Context(), h, client.MergeFrom(base)); err != nil {
		s.t.Fatal(err)
	}
}
