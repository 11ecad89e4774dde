package ownership

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// me is the instance under test; its classes are own(...), its hosts are in segment-a.
var me = Identity{Instance: "a", PoolNamespace: "segment-a"}

const (
	ownHost     = "kpssh://segment-a/host-1"
	foreignHost = "kpssh://segment-b/host-1"
	adoptedID   = "aws:///eu-west-1a/i-0123"
)

func own(names ...string) *Set {
	r := newRegister(nil)
	r.change(func(set map[string]struct{}) {
		for _, n := range names {
			set[n] = struct{}{}
		}
	})
	return r.snapshot()
}

// ref is a reference to a class of this provider.
func ref(class string) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ClassKind, Name: class}
}

func pool(name string, class *karpv1.NodeClassReference) *karpv1.NodePool {
	return &karpv1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{NodeClassRef: class}}},
	}
}

func claim(name string, class *karpv1.NodeClassReference, providerID string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: class},
		Status:     karpv1.NodeClaimStatus{ProviderID: providerID},
	}
}

// node has no class label when class is empty.
func node(name, class, providerID string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
	}
	if class != "" {
		n.Labels[ClassLabel] = class
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}
