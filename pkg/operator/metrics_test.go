package operator

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// Nodes of other instances, which core sees as another provider's, are not counted as own.
func TestOwnedCountsNoForeignNode(t *testing.T) {
	node := func(name, class, providerID string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Spec: corev1.NodeSpec{ProviderID: providerID}}
		if class != "" {
			n.Labels[ownership.ClassLabel] = class
		}
		return n
	}
	cached := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
		&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c2"}},
		node("registered", "mine", "kpssh://kp-a/h1"), node("adopted", "mine", "aws:///i-1"), node("young", "", "kpssh://kp-a/h2"),
		node("masked", "", "kpssh://kp-b/h1"), node("cloud", "", "aws:///i-2"),
	).Build()
	got := countOwned(cached, "kpssh://kp-a/")
	if want := map[string]int{"NodePool": 1, "NodeClaim": 2, "Node": 3}; !maps.Equal(got, want) {
		t.Errorf("owned: %v, want %v", got, want)
	}
}
