package ownership

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// verdict on the owner of an object that shall be written.
type verdict int

const (
	// unknown: the object at hand does not say; the one on the server must be asked.
	unknown verdict = iota
	ours
	foreign
)

// Kinds of this project whose writes are guarded, besides the kinds that core sees through a view.
const kindHost = "SSHHost"

// guardedKinds have writes that are checked.
var guardedKinds = map[schema.GroupKind]func() client.Object{
	{Group: karpapis.Group, Kind: kindPool}:             func() client.Object { return &karpv1.NodePool{} },
	{Group: karpapis.Group, Kind: kindClaim}:            func() client.Object { return &karpv1.NodeClaim{} },
	{Group: corev1.GroupName, Kind: kindNode}:           func() client.Object { return &corev1.Node{} },
	{Group: autoscalingv1beta1.Group, Kind: kindBuffer}: func() client.Object { return &autoscalingv1beta1.CapacityBuffer{} },
	{Group: v1beta1.Group, Kind: ClassKind}:             func() client.Object { return &v1beta1.SSHNodeClass{} },
	{Group: v1beta1.Group, Kind: kindHost}:              func() client.Object { return &v1beta1.SSHHost{} },
}

// guardedKind names the kind of an object in any of its forms; false when its writes are not checked.
func guardedKind(o runtime.Object) (schema.GroupKind, bool) {
	switch o.(type) {
	case *karpv1.NodePool:
		return schema.GroupKind{Group: karpapis.Group, Kind: kindPool}, true
	case *karpv1.NodeClaim:
		return schema.GroupKind{Group: karpapis.Group, Kind: kindClaim}, true
	case *corev1.Node:
		return schema.GroupKind{Group: corev1.GroupName, Kind: kindNode}, true
	case *autoscalingv1beta1.CapacityBuffer:
		return schema.GroupKind{Group: autoscalingv1beta1.Group, Kind: kindBuffer}, true
	case *v1beta1.SSHNodeClass:
		return schema.GroupKind{Group: v1beta1.Group, Kind: ClassKind}, true
	case *v1beta1.SSHHost:
		return schema.GroupKind{Group: v1beta1.Group, Kind: kindHost}, true
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		gk := o.GetObjectKind().GroupVersionKind().GroupKind()
		_, ok := guardedKinds[gk]
		return gk, ok
	}
	return schema.GroupKind{}, false
}

// judge says who owns an object, as far as the object tells. A typed object that was never read, such as one made of a name to
// carry a patch, tells nothing; neither does one without its type. What is not provably ours is foreign, except a Node, which may
// be nobody's: a masked one looks like that too.
func (id Identity) judge(own *Set, o client.Object, creating bool) verdict {
	if o.GetUID() == "" && !creating {
		return unknown
	}
	switch o := o.(type) {
	case *karpv1.NodePool:
		return oursIf(id.pool(own, o) == plain)
	case *karpv1.NodeClaim:
		return oursIf(id.claim(own, o) == plain)
	case *corev1.Node:
		return id.judgeNode(own, o)
	case *autoscalingv1beta1.CapacityBuffer:
		return oursIf(id.buffer(o) == plain)
	case *v1beta1.SSHNodeClass:
		return oursIf(o.Spec.Instance == id.Instance)
	case *v1beta1.SSHHost:
		return oursIf(o.Namespace == id.PoolNamespace)
	}
	return unknown
}

// judgeNode does not use the Node's view, which would change the object. What came out of that view is not to be believed, for core puts
// the labels of its NodeClaim on it before it writes: a masked Node with an own provider ID would become an own one.
func (id Identity) judgeNode(own *Set, n *corev1.Node) verdict {
	if _, masked := n.Annotations[maskAnnotation]; masked {
		return unknown
	}
	if id.foreignNode(own, n) {
		return foreign
	}
	if _, ok := n.Labels[ClassLabel]; ok || id.ownProviderID(n.Spec.ProviderID) {
		return ours
	}
	return unknown
}

func oursIf(yes bool) verdict {
	if yes {
		return ours
	}
	return foreign
}
