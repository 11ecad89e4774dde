package ownership

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// ClassKind is the kind that own NodePools and NodeClaims name in nodeClassRef.
const ClassKind = "SSHNodeClass"

// ClassLabel is the label by which karpenter core marks a Node with its class's name.
var ClassLabel = karpv1.NodeClassLabelKey(schema.GroupKind{Group: v1beta1.Group, Kind: ClassKind})

// HomeInstanceLabel on an object that names no class says whose it is; absent means v1beta1.DefaultInstance. The instance provides the
// capacity of its CapacityBuffers, and writes the status of its NodeOverlays.
const HomeInstanceLabel = v1beta1.Group + "/home-instance"

// maskAnnotation is on masked Nodes in memory, and on none on the server, where the guard refuses to write them.
const maskAnnotation = v1beta1.Group + "/masked"

// Masked tells whether a Node was read through a view that shows it as another provider's: it is another instance's, or nobody's.
func Masked(n *corev1.Node) bool {
	_, masked := n.Annotations[maskAnnotation]
	return masked
}

// sight is how core sees an object.
type sight int

const (
	// hidden: to core the object does not exist. The zero value, so that what is undecided stays hidden.
	hidden sight = iota
	// split: hidden too, and a person should know: class and provider ID name different instances, so nobody acts for it.
	split
	// plain: as it is.
	plain
	// masked: changed in place so that it looks like another provider's.
	masked
)

func (s sight) visible() bool { return s == plain || s == masked }

// The views. Each is a pure function of (identity, set of own classes, object). They may change only the object they are given,
// which therefore must be freshly decoded; a view of its own result is that result.

// pool: own NodePools are seen. One that names no class, or another kind of class, is another provider's.
func (id Identity) pool(own *Set, p *karpv1.NodePool) sight {
	if !ownRef(own, p.Spec.Template.Spec.NodeClassRef) {
		return hidden
	}
	return plain
}

// claim: own NodeClaims are seen. One of an own class on another instance's host is nobody's: its Node is foreign to all, and core
// would try for ever to mend a claim whose Node it cannot see.
func (id Identity) claim(own *Set, c *karpv1.NodeClaim) sight {
	switch {
	case !ownRef(own, c.Spec.NodeClassRef):
		return hidden
	case id.foreignProviderID(c.Status.ProviderID):
		return split
	}
	return plain
}

// node: all Nodes are seen, for their capacity is real. Another instance's looks like another provider's.
func (id Identity) node(own *Set, n *corev1.Node) sight {
	if !id.foreignNode(own, n) {
		return plain
	}
	delete(n.Labels, ClassLabel)
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[maskAnnotation] = "true"
	// Core launches replacements for the pods of a Node that is being deleted; the owner does that already.
	n.DeletionTimestamp, n.DeletionGracePeriodSeconds = nil, nil
	// Core's state does not sync while a Node of a NodePool lacks an identity or an instance type; that is the owner's to wait for.
	if n.Spec.ProviderID == "" || (n.Labels[corev1.LabelInstanceTypeStable] == "" && n.Labels[karpv1.NodeInitializedLabelKey] == "") {
		delete(n.Labels, karpv1.NodePoolLabelKey)
	}
	return masked
}

// buffer: each CapacityBuffer is seen by exactly one instance, whatever its classes.
func (id Identity) buffer(b *autoscalingv1beta1.CapacityBuffer) sight {
	if homeOf(b) != id.Instance {
		return hidden
	}
	return plain
}

// homeOf is the instance that an object without a class belongs to.
func homeOf(o client.Object) string {
	return cmp.Or(o.GetLabels()[HomeInstanceLabel], v1beta1.DefaultInstance)
}

// foreignNode: class and provider ID must both be ours, as far as the Node has them.
func (id Identity) foreignNode(own *Set, n *corev1.Node) bool {
	if class, ok := n.Labels[ClassLabel]; ok && !own.Has(class) {
		return true
	}
	return id.foreignProviderID(n.Spec.ProviderID)
}

// ownRef tells whether a reference names one of our classes.
func ownRef(own *Set, ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group == v1beta1.Group && ref.Kind == ClassKind && own.Has(ref.Name)
}
