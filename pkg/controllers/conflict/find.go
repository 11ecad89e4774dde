package conflict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Finding is one conflict about who owns what. There is at most one of a type on an object.
type Finding struct {
	// Type is the reason that events, conditions and metrics show.
	Type   string
	Object corev1.ObjectReference
	// Message says what is the matter, who the other party is, and what to do about it.
	Message string
	// Other party, in short; may be empty. Of several, the first.
	Other string
	// Classes of this instance whose condition shows it. None of a finding about nobody's, or another's, objects.
	Classes []string
	// Owner is the instance that reports it; empty if the object has none.
	Owner string
}

// severity orders the types, the worst first.
var severity = []string{
	v1beta1.ReasonDuplicateInstance, v1beta1.ReasonSharedPoolNamespace, v1beta1.ReasonSplitNodeClaim, v1beta1.ReasonSharedMachine,
	v1beta1.ReasonHostOwnedElsewhere, v1beta1.ReasonMovedNodePool, v1beta1.ReasonForeignWrite, v1beta1.ReasonNodeNameInUse,
	v1beta1.ReasonUnownedNodeClass, v1beta1.ReasonDanglingNodePool, v1beta1.ReasonUnownedNodePool, v1beta1.ReasonDanglingNodeClaim,
	v1beta1.ReasonOverlappingPools, v1beta1.ReasonMissingManagedLabel,
}

// Find derives the findings from a snapshot, the worst first. It is a pure function.
func Find(s Snapshot) []Finding {
	v := newView(s)
	var all []Finding
	for _, find := range []func(*view) []Finding{
		duplicateInstance, sharedPoolNamespaces, unownedClasses, danglingPools, danglingClaims, unownedPools, movedPools, unmanagedPools,
		sharedMachines, ownedElsewhere, foreignWrites, namesInUse, splitClaims, overlappingPools,
	} {
		all = append(all, find(v)...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severity, a.Type), slices.Index(severity, b.Type)),
			strings.Compare(a.Object.Kind, b.Object.Kind), strings.Compare(a.Object.Namespace, b.Object.Namespace), strings.Compare(a.Object.Name, b.Object.Name),
		)
	})
	return all
}

// key identifies a finding from one survey to the next. An object of the same name with another UID is another one.
type key struct {
	kind      string
	object    types.NamespacedName
	uid       types.UID
	groupKind schema.GroupKind
}

func (f Finding) key() key {
	return key{
		kind: f.Type, object: types.NamespacedName{Namespace: f.Object.Namespace, Name: f.Object.Name}, uid: f.Object.UID,
		groupKind: f.Object.GroupVersionKind().GroupKind(),
	}
}

// reporter is the one instance that reports a finding: the owner of the object if it is alive, else the first of those that are. It is
// nobody as long as the owner may yet turn out to be alive.
func (s Snapshot) reporter(f Finding) string {
	life := s.Lives[f.Owner]
	switch {
	case f.Owner == s.Self.Instance, life == Alive:
		return f.Owner
	case f.Owner != "" && life == Unsure:
		return ""
	}
	first := s.Self.Instance
	for name, life := range s.Lives {
		if life == Alive && name < first {
			first = name
		}
	}
	return first
}

func poolRef(p *karpv1.NodePool) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: karpapis.Group + "/v1", Kind: "NodePool", Name: p.Name, UID: p.UID}
}

func claimRef(name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: karpapis.Group + "/v1", Kind: "NodeClaim", Name: name, UID: uid}
}

func classRef(c *v1beta1.SSHNodeClass) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "SSHNodeClass", Name: c.Name, UID: c.UID}
}

func hostRef(h Host) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: v1beta1.GroupVersion.String(), Kind: "SSHHost", Namespace: h.Namespace, Name: h.Name, UID: h.UID}
}

// some lists a few names and counts the rest.
func some(names []string) string {
	const shown = 3
	list := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
