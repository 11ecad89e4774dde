package join

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// nameFree returns a fault if the Node that this claim's machine would register as is somebody else's: the kubelet would take it over,
// with its pods. The API server is asked: a cache may be late, and it shows foreign Nodes in another form.
func (c *Controller) nameFree(ctx context.Context, h *v1beta1.SSHHost, claim *karpv1.NodeClaim, source v1beta1.ProviderIDSource) error {
	node := &corev1.Node{}
	err := c.Live.Get(ctx, types.NamespacedName{Name: claim.Name}, node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading Node %s: %w", claim.Name, err)
	}
	if !elses(node, h, claim.CreationTimestamp, source == v1beta1.ProviderIDAdopt) {
		return nil
	}
	return c.nameTaken(node, h, claim)
}

// nameTaken makes the fault, and remembers it for NamesInUse.
func (c *Controller) nameTaken(node *corev1.Node, h *v1beta1.SSHHost, claim *karpv1.NodeClaim) *fault.Error {
	c.names.note(NameInUse{
		Node: node.Name, UID: node.UID, ProviderID: node.Spec.ProviderID, Host: h.Name, NodeClass: claim.Spec.NodeClassRef.Name, Seen: c.Clock.Now(),
	})
	identity := "has no provider ID and addresses that are not this host's"
	if node.Spec.ProviderID != "" {
		identity = "has provider ID " + node.Spec.ProviderID
	}
	return fault.New(fault.Cluster, v1beta1.ReasonNodeNameInUse, nil,
		"Node %s exists and %s, so SSHHost %s cannot join under that name: NodeClaim %s is given up for one with another name. If the Node is left over from a machine that is gone, delete it",
		node.Name, identity, h.Name, claim.Name)
}

// elses tells whether a Node is not the one of this host and claim. Where an agent on the machine chooses the provider ID, and where there is
// none yet, addresses decide; where they cannot be compared, the Node's age does: both times are the API server's.
func elses(node *corev1.Node, h *v1beta1.SSHHost, claimed metav1.Time, adopt bool) bool {
	id := node.Spec.ProviderID
	switch {
	case id == h.EffectiveProviderID(), id == h.StaticProviderID():
		return false
	case id != "" && (!adopt || strings.HasPrefix(id, v1beta1.ProviderIDScheme)):
		return true
	}
	var others bool
	for _, address := range node.Status.Addresses {
		if same(address.Address, h.NodeIP()) || same(address.Address, h.Spec.Address) {
			return false
		}
		others = others || address.Type == corev1.NodeInternalIP || address.Type == corev1.NodeExternalIP
	}
	if _, err := netip.ParseAddr(h.NodeIP()); err == nil && others {
		return true
	}
	return node.CreationTimestamp.Before(&claimed)
}

// same compares addresses as what they mean: an IPv6 address has many spellings.
func same(a, b string) bool {
	first, errFirst := netip.ParseAddr(a)
	second, errSecond := netip.ParseAddr(b)
	if errFirst == nil && errSecond == nil {
		return first == second
	}
	return strings.EqualFold(a, b)
}

// NameInUse is a join that did not take place because of the name.
type NameInUse struct {
	// Node that has the name, its UID, and its provider ID, which may be empty.
	Node       string
	UID        types.UID
	ProviderID string
	// Host that was to join, and the class of its claim.
	Host, NodeClass string
	// Seen is when.
	Seen time.Time
}

// NamesInUse are the latest names that could not be used, at most a few dozen, ordered by name.
func (c *Controller) NamesInUse() []NameInUse { return c.names.all() }

// maxNames bounds what is kept to tell people.
const maxNames = 64

type names struct {
	mu    sync.Mutex
	known map[string]NameInUse
}

func (n *names) note(use NameInUse) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[string]NameInUse{}
	}
	if _, found := n.known[use.Node]; !found && len(n.known) >= maxNames {
		delete(n.known, slices.MinFunc(slices.Collect(maps.Keys(n.known)), func(a, b string) int { return n.known[a].Seen.Compare(n.known[b].Seen) }))
	}
	n.known[use.Node] = use
}

func (n *names) all() []NameInUse {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.known), func(a, b NameInUse) int { return strings.Compare(a.Node, b.Node) })
}
