package conflict

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// lingers is for how long what happened at one moment counts as a conflict that is there.
const lingers = 10 * time.Minute

// versions of the kinds whose writes are guarded.
var versions = map[string]string{
	"NodePool": karpapis.Group + "/v1", "NodeClaim": karpapis.Group + "/v1", "CapacityBuffer": "autoscaling.x-k8s.io/v1beta1",
	"Node": "v1", "SSHNodeClass": v1beta1.GroupVersion.String(), "SSHHost": v1beta1.GroupVersion.String(),
}

// foreignWrites were refused by this instance's own guard.
func foreignWrites(v *view) (found []Finding) {
	for _, r := range v.Refusals {
		if v.Now.Sub(r.Last) >= lingers {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonForeignWrite, Owner: v.Self.Instance, Other: v.Self.Instance,
			Object: corev1.ObjectReference{APIVersion: versions[r.Kind], Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, UID: r.UID},
			Message: fmt.Sprintf("instance %q was about to write this %s (%s), which is not its own, and refused that itself. A few of these come with a class that is created or deleted; report it if they go on",
				v.Self.Instance, r.Kind, r.Verb),
		})
	}
	return found
}

// namesInUse are Nodes of others whose name a NodeClaim of this instance had.
func namesInUse(v *view) (found []Finding) {
	for _, use := range v.NamesInUse {
		if v.Now.Sub(use.Seen) >= lingers {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonNodeNameInUse, Owner: v.Self.Instance, Other: use.ProviderID, Classes: v.ifOwn(use.NodeClass),
			Object: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: use.Node, UID: use.UID},
			Message: fmt.Sprintf("SSHHost %s/%s was to join as Node %s, which is somebody else's (provider ID %q): the NodeClaim was given up for one with another name. If the Node is left over from a machine that is gone, delete it",
				v.Self.PoolNamespace, use.Host, use.Node, use.ProviderID),
		})
	}
	return found
}

// splitClaims have a class of this instance and a host of another.
func splitClaims(v *view) (found []Finding) {
	for _, s := range v.Splits {
		namespace, _, _ := strings.Cut(strings.TrimPrefix(s.ProviderID, v1beta1.ProviderIDScheme), "/")
		other := v.instanceOf(namespace)
		found = append(found, Finding{
			Type: v1beta1.ReasonSplitNodeClaim, Owner: v.Self.Instance, Other: other, Classes: v.ifOwn(s.Class),
			Object: claimRef(s.Name, s.UID),
			Message: fmt.Sprintf("SSHNodeClass %s is instance %q's, but the provider ID %s is a host of instance %s: no instance acts for this NodeClaim and its Node. Drain the Node, make the machine leave, then delete the NodeClaim and remove its finalizer",
				s.Class, v.Self.Instance, s.ProviderID, other),
		})
	}
	return found
}
