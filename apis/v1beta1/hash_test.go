package v1beta1_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// The golden values were not made by this code: each is the start of `printf %s JSON | sha256sum`, JSON being what the existing
// provider's recipe gives. A change here makes every node of a drop-in installation drift.
func TestJoinHashIsTheExistingRecipe(t *testing.T) {
	for _, c := range []struct {
		json, want string
		spec       v1beta1.SSHNodeClassSpec
	}{
		{`{}`, "44136fa355b3678a", v1beta1.SSHNodeClassSpec{}},
		{`{"providerIDSource":"Static"}`, "a8a33185d3d9d9ca", v1beta1.SSHNodeClassSpec{ProviderIDSource: "Static"}},
		{`{"vars":{"A":"1","B":"a\u003cb\u0026c"},"providerIDSource":"Static"}`, "9b1692ee2f0e4d0a", v1beta1.SSHNodeClassSpec{
			ProviderIDSource: "Static", Vars: map[string]string{"B": "a<b&c", "A": "1"}}},
		{`{"providerIDSource":"Static","cluster":{"endpoint":"https://10.0.0.1:6443"}}`, "29d8bf41c80cb938", v1beta1.SSHNodeClassSpec{
			ProviderIDSource: "Static", Cluster: &v1beta1.ClusterSpec{Endpoint: "https://10.0.0.1:6443"}}},
		{`{"vars":{"K8S_MINOR":"v1.35","cni":"ptp"},"joinSecretRef":{"name":"join"},"providerIDSource":"Adopt",` +
			`"cluster":{"endpoint":"https://api.example:6443","caBundle":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"}}`, "67739d8099ae58cf",
			v1beta1.SSHNodeClassSpec{
				ProviderIDSource: "Adopt",
				Vars:             map[string]string{"K8S_MINOR": "v1.35", "cni": "ptp"},
				JoinSecretRef:    &v1beta1.SecretReference{Name: "join"},
				Cluster:          &v1beta1.ClusterSpec{Endpoint: "https://api.example:6443", CABundle: []byte("-----BEGIN CERTIFICATE-----")},
			}},
	} {
		t.Run(c.json, func(t *testing.T) {
			if got := (&v1beta1.SSHNodeClass{Spec: c.spec}).JoinHash(); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestJoinHashLeavesOutWhatTheMachineNeverSees(t *testing.T) {
	base := v1beta1.SSHNodeClassSpec{ProviderIDSource: "Static"}
	want := (&v1beta1.SSHNodeClass{Spec: base}).JoinHash()
	for name, change := range map[string]func(*v1beta1.SSHNodeClassSpec){
		"instance":        func(s *v1beta1.SSHNodeClassSpec) { s.Instance = "seg-a" },
		"hostSelector":    func(s *v1beta1.SSHNodeClassSpec) { s.HostSelector = &metav1.LabelSelector{} },
		"joinProfileRef":  func(s *v1beta1.SSHNodeClassSpec) { s.JoinProfileRef.Name = "p" },
		"pricePerCPUHour": func(s *v1beta1.SSHNodeClassSpec) { s.PricePerCPUHour = "1" },
		"kubeReserved": func(s *v1beta1.SSHNodeClassSpec) {
			s.KubeReserved = corev1.ResourceList{"cpu": resource.MustParse("1")}
		},
		"maxPods":           func(s *v1beta1.SSHNodeClassSpec) { s.MaxPods = ptr.To[int32](5) },
		"zone":              func(s *v1beta1.SSHNodeClassSpec) { s.Zone = "z" },
		"startupTaintGates": func(s *v1beta1.SSHNodeClassSpec) { s.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: "a"}} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := base
			change(&spec)
			if got := (&v1beta1.SSHNodeClass{Spec: spec}).JoinHash(); got != want {
				t.Errorf("%s changes the hash", name)
			}
		})
	}
}

func TestHostAccessors(t *testing.T) {
	host := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: "seg-a", Name: "host-a1"},
		Spec: v1beta1.SSHHostSpec{Address: "host-a1.example"}}
	if got := host.HostClass(); got != "default" {
		t.Errorf("class of an unlabelled host: %s", got)
	}
	if got := host.EffectiveProviderID(); got != "kpssh://seg-a/host-a1" {
		t.Errorf("static provider ID: %s", got)
	}
	host.Status.ProviderID = "eks-hybrid:///r/c/mi-1"
	if got := host.EffectiveProviderID(); got != "eks-hybrid:///r/c/mi-1" {
		t.Errorf("adopted provider ID: %s", got)
	}
	if got := host.NodeIP(); got != "host-a1.example" {
		t.Errorf("node IP without nodeAddress: %s", got)
	}
	host.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""}
	if !host.InMaintenance() {
		t.Error("the annotation's presence counts, not its value")
	}
}

// Section 2 #18: a name alone must not resume the claim of a NodeClaim that is gone.
func TestClaimedByComparesNameAndUID(t *testing.T) {
	for _, c := range []struct {
		name, claimUID, refUID string
		claimName              string
		want                   bool
	}{
		{"same name and UID", "u1", "u1", "c", true},
		{"same name, other UID", "u2", "u1", "c", false},
		{"claim without UID, as garbage collection builds it", "", "u1", "c", true},
		{"recorded without UID", "u1", "", "c", true},
		{"other name", "u1", "u1", "d", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			host := &v1beta1.SSHHost{Status: v1beta1.SSHHostStatus{ClaimRef: &v1beta1.ClaimReference{Name: "c", UID: types.UID(c.refUID)}}}
			if got := host.ClaimedBy(c.claimName, types.UID(c.claimUID)); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	if (&v1beta1.SSHHost{}).ClaimedBy("", "") {
		t.Error("an unclaimed host is nobody's")
	}
}
