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
// gets one claim and a claim one host (S1, S2: what a claim is told never changes), and all are served in the end. The hosts are taken for probed, and their machines accept
// connections and say nothing, so that what is tested costs two cores no more than it must: claims are made, joins do not get anywhere.
func TestTwoLeadersFiftyClaimsFiftyHosts(t *testing.T) {
	const n = 50
	env := []string{"PROBE_INTERVAL=1h", "JOIN_CONCURRENCY=1"} // so that joins do not fail before all is seen
	first := shared.newInstance(t, "twins", "kp-twins", env...)
	s := prepare(t, first, "twins", 4*time.Second)
	second := shared.newInstance(t, "twins", "kp-twins", env...)
	t.Cleanup(func() { first.kill(); second.kill() }) // both, before what they would act on
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-twins", Name: "twins"}, Data: s.fleet.LoginSecret("kp-twins", "twins", true).Data})
	for i := range n {
		s.silentHost(fmt.Sprintf("twins-%02d", i))
	}
	made := 0
	for ; made < n; made++ {
		s.create(s.claim(fmt.Sprintf("twins-%02d", made)))
	}
	first.start(t, "")
	second.start(t, "")
	answers := map[string]string{} // what a claim was told is for good
	took := s.eventually(2*time.Minute, "every claim has a host", func() (bool, string) {
		claims, hosts := s.claims(), s.held()
		// In the rush a process may find every host spoken for, by itself, and core ends the claim. It would make another for the pod.
		for range n - len(claims) {
			s.create(s.claim(fmt.Sprintf("twins-%02d", made)))
			made++
		}
		served := 0
		for _, c := range claims {
			if c.Status.ProviderID == "" {
				continue
			}
			if before, told := answers[c.Name]; told && before != c.Status.ProviderID {
				t.Errorf("S2: claim %s was told %s, then %s", c.Name, before, c.Status.ProviderID)
			}
			answers[c.Name] = c.Status.ProviderID
			if held := hosts[c.Name]; len(held) == 1 && c.Status.ProviderID == v1beta1.ProviderIDScheme+"kp-twins/"+held[0] {
				served++
			}
		}
		// A join that gives up meanwhile parks its host, which is nobody's then.
		parked := s.states()[v1beta1.HostUnhealthy]
		return served+parked == n && len(hosts) == served, fmt.Sprintf("%d claims, %d hosts held, %d parked, %d served, %d claims made", len(claims), len(hosts), parked, served, made)
	})
	conflicts := first.metric(t, "kpssh_claim_conflicts_total") + second.metric(t, "kpssh_claim_conflicts_total")
	t.Logf("%d claims on %d hosts in %.1fs by two processes: %.0f conflicts, %d claims made anew", n, n, took.Seconds(), conflicts, made-n)
}

// held are the hosts of each claim. Two processes may each take one for the same claim; both see it before they answer, and give way.
func (s *scenario) held() map[string][]string {
	s.t.Helper()
	hosts := map[string][]string{}
	for _, h := range s.hosts() {
		if ref := h.Status.ClaimRef; ref != nil {
			hosts[ref.Name] = append(hosts[ref.Name], h.Name)
		}
	}
	return hosts
}

// claim is a NodeClaim of the scenario's pool as the provisioner would make it for a pod.
func (s *scenario) claim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: s.name}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: s.name},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
			Resources:    karpv1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}},
		},
	}
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
