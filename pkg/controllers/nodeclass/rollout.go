package nodeclass

import (
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// rollout is how far a class's nodes are behind its profile. Karpenter replaces a node that drifted only when there is a host for its pods; in a full
// pool it waits without a word (section 3 #39).
type rollout struct {
	// profile is the version that nodes join with now, as SSHHost.status.installedProfile spells it; empty while there is none.
	profile string
	// nodes of the class, and those hosts of them that joined with something else, sorted.
	nodes  int
	behind []string
	// replacing counts those of behind that karpenter has begun to replace: their pods have somewhere to go.
	replacing int
	// free hosts of the class.
	free int32
}

// rolloutOf compares hosts with the profile that a class names. claims are the class's NodeClaims by name, and whether karpenter has begun to
// replace or end them.
func rolloutOf(present *v1beta1.SSHJoinProfile, hosts []*v1beta1.SSHHost, claims map[string]bool, free int32) rollout {
	r := rollout{free: free}
	if present != nil {
		r.profile = present.Marker()
	}
	for _, h := range hosts {
		if h.Status.State != v1beta1.HostInUse || h.Status.ClaimRef == nil {
			continue
		}
		replacing, ours := claims[h.Status.ClaimRef.Name]
		if !ours {
			continue
		}
		r.nodes++
		if h.Status.InstalledProfile != "" && h.Status.InstalledProfile != r.profile {
			r.behind = append(r.behind, h.Name)
			if replacing {
				r.replacing++
			}
		}
	}
	slices.Sort(r.behind)
	return r
}

// stuck tells whether no node is replaced. The replacement of one holds the last spare host while it joins, and is no reason to add another.
func (r rollout) stuck() bool { return r.free == 0 && r.replacing == 0 }

// passing tells whether what is said may change without a change of a host: karpenter gives a replacement up that does not come.
func (r rollout) passing() bool { return r.free == 0 && r.replacing > 0 }

// condition says how far the class's nodes are; nil while there is no profile, which is Ready's to say.
func (r rollout) condition() *status.Condition {
	if r.profile == "" {
		return nil
	}
	if len(r.behind) == 0 {
		return &status.Condition{Type: v1beta1.ConditionNodesCurrent, Status: metav1.ConditionTrue, Reason: v1beta1.ConditionNodesCurrent}
	}
	message := fmt.Sprintf("%d of %d nodes did not join with %s: %s", len(r.behind), r.nodes, r.profile, profile.Few(r.behind))
	behind := &status.Condition{Type: v1beta1.ConditionNodesCurrent, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonRolling,
		Message: message + ". They are replaced as their NodePools' disruption budgets allow"}
	if r.stuck() {
		behind.Reason = v1beta1.ReasonNoSpareHost
		behind.Message = message + ". A node is replaced when another host is free for its pods, and none is: add a host, or delete a NodeClaim to do without its node for a while"
	}
	return behind
}

// claimed are the NodeClaims of a class by name, as the cache shows them, and whether karpenter has begun to replace or end each.
func (c *Controller) claimed(ctx context.Context, class string) (map[string]bool, error) {
	claims := &karpv1.NodeClaimList{}
	if err := c.Client.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil { // only read
		return nil, fmt.Errorf("listing the NodeClaims of SSHNodeClass %s: %w", class, err)
	}
	found := map[string]bool{}
	for index := range claims.Items {
		claim := &claims.Items[index]
		if named, _ := classOf(claim); named == class {
			found[claim.Name] = !claim.DeletionTimestamp.IsZero() || disrupted(claim)
		}
	}
	return found, nil
}

// disrupted tells whether karpenter is carrying out a decision to disrupt a NodeClaim; it says so before it makes the replacement.
func disrupted(claim *karpv1.NodeClaim) bool {
	return slices.ContainsFunc(claim.Status.Conditions, func(c status.Condition) bool {
		return c.Type == karpv1.ConditionTypeDisruptionReason && c.Status == metav1.ConditionTrue
	})
}
