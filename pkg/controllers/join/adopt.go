package join

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

const (
	// newNode is how young a Node must be to wake hosts that wait for one: it saves looking at each heartbeat of the rest of the cluster.
	newNode = 3 * registrationTimeout
	// lookupTimeout bounds the resolution of a host's DNS name. Its Node may match by name without.
	lookupTimeout = 2 * time.Second
	// maxCandidates bounds how many names a message about an ambiguity has.
	maxCandidates = 5
)

// adoption is what the Nodes say about a machine whose agent chooses its identity.
type adoption struct {
	// wanted: the class leaves the identity to an agent, and the claim's Node is not known yet.
	wanted bool
	// pending: this identity is the machine's, and the host or its NodeClaim does not have it yet.
	pending  bool
	identity v1beta1.AdoptedIdentity
	// why no Node is taken over although some might be this host's; empty if none might.
	why string
}

// adoption finds out whether there is an identity to take over. Nothing is taken from a cache's word alone.
func (c *Controller) adoption(ctx context.Context, h *v1beta1.SSHHost, registered bool) (adoption, error) {
	claim, err := c.nodeClaim(ctx, h.Status.ClaimRef)
	if err != nil {
		if apierrors.IsNotFound(err) || errors.Is(err, host.ErrFenced) {
			return adoption{}, nil // a cache that lags behind: news of the NodeClaim brings this host back
		}
		return adoption{}, err
	}
	if registered || joined(h) {
		c.awaiting.Delete(h.Name)
		return followed(h, claim), nil
	}
	class := &v1beta1.SSHNodeClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return adoption{}, client.IgnoreNotFound(err)
	}
	if class.Spec.ProviderIDSource != v1beta1.ProviderIDAdopt {
		return adoption{}, nil
	}
	c.awaiting.Store(h.Name, struct{}{}) // before the Nodes are listed, so that none slips through
	nodes := &corev1.NodeList{}
	if err := c.Client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return adoption{}, fmt.Errorf("listing Nodes: %w", err)
	}
	w := wanted{host: h, claim: claim, addresses: c.addressesOf(ctx, h), inventory: c.Inventory.All()}
	shown, why := w.match(nodes.Items)
	if shown == nil {
		return adoption{wanted: true, why: why}, nil
	}
	node := &corev1.Node{}
	if err := c.Live.Get(ctx, types.NamespacedName{Name: shown.Name}, node); err != nil {
		return adoption{wanted: true}, client.IgnoreNotFound(err)
	}
	if node.UID != shown.UID || node.Spec.ProviderID != shown.Spec.ProviderID || !w.eligible(node) {
		return adoption{wanted: true}, nil
	}
	return adoption{wanted: true, pending: true, identity: v1beta1.AdoptedIdentity{ProviderID: node.Spec.ProviderID, NodeName: node.Name}}, nil
}

// followed tells whether a NodeClaim has yet to get the identity that its host has taken over. One without any is still being launched, and is
// given the host's then.
func followed(h *v1beta1.SSHHost, claim *karpv1.NodeClaim) adoption {
	adopted := h.Status.Adopted
	if adopted == nil || adopted.ProviderID != h.Status.ProviderID || claim.Status.ProviderID == "" || claim.Status.ProviderID == adopted.ProviderID {
		return adoption{}
	}
	return adoption{pending: true, identity: *adopted}
}

// addressesOf are the addresses by which a host's Node may be known: those of its spec, and what a DNS name among them stands for.
func (c *Controller) addressesOf(ctx context.Context, h *v1beta1.SSHHost) []string {
	addresses := []string{h.Spec.Address}
	if h.Spec.NodeAddress != "" {
		return append(addresses, h.Spec.NodeAddress)
	}
	if _, err := netip.ParseAddr(h.Spec.Address); err == nil {
		return addresses
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := c.lookup(ctx, h.Spec.Address)
	if err != nil {
		log.FromContext(ctx).V(1).Info("the host's address does not resolve here; its Node is looked for by name", "address", h.Spec.Address, "error", err.Error())
	}
	return append(addresses, found...)
}

// wanted is a Node that is looked for.
type wanted struct {
	host      *v1beta1.SSHHost
	claim     *karpv1.NodeClaim
	addresses []string
	inventory []*v1beta1.SSHHost
}

// match is the Node of the wanted host, or nil; then why says which Nodes or hosts make it undecidable, if any do. A name tells more than an
// address, which hosts and Nodes may share.
func (w wanted) match(nodes []corev1.Node) (node *corev1.Node, why string) {
	var named, there []*corev1.Node
	for index := range nodes {
		n := &nodes[index]
		switch {
		case !w.eligible(n):
		case w.named(n):
			named = append(named, n)
		case !n.CreationTimestamp.Before(&w.claim.CreationTimestamp) && len(w.shared(n)) > 0:
			there = append(there, n)
		}
	}
	switch {
	case len(named) == 1:
		return named[0], ""
	case len(named) > 1:
		return nil, "Nodes " + list(named) + " have names that this host's Node may have: delete those that are left over"
	case len(there) > 1:
		return nil, "Nodes " + list(there) + " have the address of this host and names that do not tell which is its own: delete those that are left over, or let the agent take KPSSH_NODE_NAME"
	case len(there) == 0:
		return nil, ""
	}
	if rivals := w.rivals(w.shared(there[0])); len(rivals) > 0 {
		return nil, fmt.Sprintf("Node %s has the address of SSHHosts %s and %s, and a name that does not tell whose it is: give each its own spec.nodeAddress, or let the agent take KPSSH_NODE_NAME",
			there[0].Name, w.host.Name, strings.Join(rivals, ", "))
	}
	return there[0], ""
}

// eligible tells whether a Node may be the wanted one at all: an agent chose its identity, and nothing on it says that it is another's.
func (w wanted) eligible(n *corev1.Node) bool {
	id := n.Spec.ProviderID
	if id == "" || strings.HasPrefix(id, v1beta1.ProviderIDScheme) || !n.DeletionTimestamp.IsZero() || ownership.Masked(n) {
		return false
	}
	for label, own := range map[string]string{ownership.ClassLabel: w.claim.Spec.NodeClassRef.Name, karpv1.NodePoolLabelKey: w.claim.Labels[karpv1.NodePoolLabelKey]} {
		if value, found := n.Labels[label]; found && value != own {
			return false
		}
	}
	if slices.ContainsFunc(n.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == "NodeClaim" && r.UID != w.claim.UID }) {
		return false
	}
	return !takenBy(w.inventory, w.host.Name, id)
}

// takenBy tells whether another host than name has taken over an identity, now or before.
func takenBy(inventory []*v1beta1.SSHHost, name, id string) bool {
	return slices.ContainsFunc(inventory, func(h *v1beta1.SSHHost) bool { return h.Name != name && slices.Contains(h.ProviderIDs(), id) })
}

// named tells whether a Node has the name that the claim gives it, or the one that the machine's Node had before, and nothing against it.
func (w wanted) named(n *corev1.Node) bool {
	before := w.host.Status.Adopted
	return (n.Name == w.claim.Name || before != nil && before.NodeName == n.Name) && !elses(n, w.host, w.claim.CreationTimestamp, true)
}

// shared are the wanted host's addresses that a Node has.
func (w wanted) shared(n *corev1.Node) []string {
	return slices.DeleteFunc(slices.Clone(w.addresses), func(address string) bool {
		return !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			return (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeHostName) && same(a.Address, address)
		})
	})
}

// rivals are other hosts that have one of the addresses too; none if one of the addresses is the wanted host's alone.
func (w wanted) rivals(addresses []string) []string {
	var all []string
	for _, address := range addresses {
		var some []string
		for _, h := range w.inventory {
			if h.Name != w.host.Name && same(h.NodeIP(), address) {
				some = append(some, h.Name)
			}
		}
		if len(some) == 0 {
			return nil
		}
		all = append(all, some...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxCandidates)]
}

func list(nodes []*corev1.Node) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	if more := len(names) - maxCandidates; more > 0 {
		names = append(names[:maxCandidates], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// adopt records an identity on the host, then on its NodeClaim: cut short in between, the next look finds the NodeClaim behind and goes on.
// Karpenter asks about either ID meanwhile, and hears of the same host.
func (c *Controller) adopt(ctx context.Context, h *v1beta1.SSHHost, a adoption) error {
	ref := *h.Status.ClaimRef
	if err := c.recordAdopted(ctx, h, a.identity); err != nil {
		return err
	}
	claim, err := c.nodeClaim(ctx, &ref)
	if err != nil {
		return err
	}
	if claim.Status.ProviderID == "" || claim.Status.ProviderID == a.identity.ProviderID {
		return nil
	}
	changed := claim.DeepCopy()
	changed.Status.ProviderID = a.identity.ProviderID
	err = c.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(claim, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return host.ErrFenced // karpenter writes it too: look again
	}
	return err
}

func (c *Controller) recordAdopted(ctx context.Context, h *v1beta1.SSHHost, identity v1beta1.AdoptedIdentity) error {
	if h.Status.ProviderID == identity.ProviderID && h.Status.Adopted != nil && *h.Status.Adopted == identity {
		return nil
	}
	c.adopting.Lock()
	defer c.adopting.Unlock()
	uid := claimUID(h)
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Holds(h, uid) || h.Status.State != v1beta1.HostInUse || takenBy(c.Inventory.All(), h.Name, identity.ProviderID) {
			return host.ErrFenced
		}
		host.MarkAdopted(h, identity)
		return nil
	})
	if err == nil {
		c.event(h, corev1.EventTypeNormal, "NodeAdopted", "Node %s with provider ID %s is this host's", identity.NodeName, clip(identity.ProviderID))
	}
	return err
}

// tellAmbiguous tells people, once, why no Node is taken over.
func (c *Controller) tellAmbiguous(ctx context.Context, h *v1beta1.SSHHost, a adoption) error {
	known := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionJoined)
	if a.why == "" || joined(h) || known != nil && known.Message == a.why {
		return nil
	}
	uid := claimUID(h)
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Holds(h, uid) || h.Status.State != v1beta1.HostInUse {
			return host.ErrFenced
		}
		host.SetCondition(h, c.Clock.Now(), v1beta1.ConditionJoined, metav1.ConditionFalse, v1beta1.ReasonAdoptAmbiguous, a.why)
		return nil
	})
	if err == nil {
		c.event(h, corev1.EventTypeWarning, v1beta1.ReasonAdoptAmbiguous, "%s", clip(a.why))
	}
	return err
}

// notAdopted is the fault of a join whose script succeeded and whose Node was not found.
func notAdopted(h *v1beta1.SSHHost, a adoption) *fault.Error {
	if a.why != "" {
		return fault.New(fault.Host, v1beta1.ReasonAdoptFailed, nil, "the join script of %s succeeded, but which Node is its own could not be told within %s: %s", h.Name, registrationTimeout, a.why)
	}
	return fault.New(fault.Host, v1beta1.ReasonAdoptFailed, nil,
		"the join script of %s succeeded, but within %s no Node with a provider ID appeared that has the name %s or the address %s: look at the agent's log on the machine",
		h.Name, registrationTimeout, h.Status.ClaimRef.Name, h.NodeIP())
}

// nodeName is the name of a claim's Node: the NodeClaim's, unless an agent chose another.
func nodeName(h *v1beta1.SSHHost) string {
	if a := h.Status.Adopted; a != nil && a.NodeName != "" && a.ProviderID == h.Status.ProviderID {
		return a.NodeName
	}
	return h.Status.ClaimRef.Name
}
