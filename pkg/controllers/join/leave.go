package join

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// leave is one attempt to make a machine leave the cluster, and what follows if it fails.
func (c *Controller) leave(ctx context.Context, h *v1beta1.SSHHost, attempt int32) error {
	err := c.runLeave(ctx, h, attempt)
	var stale *ssh.StaleEpoch
	switch {
	case err == nil:
		metrics.Operations.WithLabelValues(metrics.OperationLeave, metrics.Success).Inc()
		c.runner.forget(h.Name)
		return nil
	case errors.Is(err, host.ErrFenced), ctx.Err() != nil:
		return nil
	case errors.As(err, &stale):
		return c.catchUp(ctx, h, stale.Stored)
	}
	f := fault.Of(err)
	countFailure(metrics.OperationLeave, f)
	attempts, first := c.runner.failed(h.Name, task{v1beta1.OperationLeave, claimUID(h)}, pause)
	log.FromContext(ctx).Info("leave failed", "blame", f.Blame, "reason", f.Reason, "error", f.Error(), "attempt", attempts)
	reason := v1beta1.ReasonLeaveFailed
	if zombie(h) {
		reason = eventZombieLeaveFailed
		metrics.ZombieActions.WithLabelValues("leave_failed").Inc()
	}
	c.event(h, corev1.EventTypeWarning, reason, "attempt %d: %s: %s", attempts, f.Reason, clip(f.Error()))
	if h.Status.ClaimRef != nil && !giveUpLeave(f, attempts, c.Clock.Since(first)) {
		return nil
	}
	if f.Blame == fault.Cluster {
		return nil
	}
	return c.letGo(ctx, h, f)
}

// letGo ends a claim whose machine did not leave. The host is not offered again before its leave script ran; a probe that reaches the
// machine brings it back here.
func (c *Controller) letGo(ctx context.Context, h *v1beta1.SSHHost, f *fault.Error) error {
	if err := c.Tokens.Delete(ctx, h.Status.BootstrapTokenID); err != nil {
		return err
	}
	uid := claimUID(h)
	updated, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Leaves(h, uid) {
			return host.ErrFenced
		}
		host.MarkReleased(h, host.Release{
			State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeaveFailed, LeavePending: true, Blamed: f.Blame == fault.Host,
			Message: "the leave script has not run yet: " + f.Error(),
		}, c.Clock.Now())
		return nil
	})
	if err == nil {
		c.runner.forget(h.Name)
		c.tellQuarantine(h, updated)
	}
	return err
}

func (c *Controller) runLeave(ctx context.Context, h *v1beta1.SSHHost, attempt int32) error {
	revision, err := c.installedRevision(ctx, h)
	if err != nil {
		return err
	}
	rendered, err := profile.Render(revision, profile.Leave, profile.Inputs{HostAddress: h.Spec.Address, NodeAddress: h.NodeIP()})
	if err != nil {
		return err
	}
	if _, err := c.verified(h, revision, profile.Leave); err != nil {
		return err
	}
	conn, err := c.dial(ctx, h, "leave")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	uid := claimUID(h)
	if _, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Leaves(h, uid) {
			return host.ErrFenced
		}
		now := c.Clock.Now()
		host.MarkLeaveRunning(h, attempt, now.Add(rendered.Timeout), now)
		return nil
	}); err != nil {
		return err
	}
	c.event(h, corev1.EventTypeNormal, "Leaving", "running leave of %s", revision.Marker())
	if err := c.run(ctx, conn, h, revision, profile.Leave, rendered, profile.NewRedactor()); err != nil {
		return err
	}
	return c.left(ctx, h)
}

// left ends the claim once the machine is out: its token and the Node that a kubelet may have re-created go first, because nobody
// would look for them afterwards.
func (c *Controller) left(ctx context.Context, h *v1beta1.SSHHost) error {
	if err := c.Tokens.Delete(ctx, c.recorded(h).Status.BootstrapTokenID); err != nil {
		return err
	}
	if err := c.deleteNode(ctx, h); err != nil {
		return err
	}
	uid := claimUID(h)
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Leaves(h, uid) {
			return host.ErrFenced
		}
		host.MarkReleased(h, restState(h, c.Clock.Now()), c.Clock.Now())
		return nil
	})
	if err != nil {
		return err
	}
	reason := v1beta1.ReasonLeft
	if zombie(h) {
		reason = eventZombieLeft
		metrics.ZombieActions.WithLabelValues("left").Inc()
	}
	c.event(h, corev1.EventTypeNormal, reason, "the machine has left the cluster")
	return nil
}

// Events about a kubelet that ran on a host which nobody held.
const (
	eventZombieLeft        = "ZombieLeft"
	eventZombieLeaveFailed = "ZombieLeaveFailed"
)

// zombie tells whether a host that leaves was found in the cluster by a probe, with no claim to explain it.
func zombie(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil && !host.LeavePending(h) }

// deleteNode deletes the Node that this host's machine registered: the one that carries a provider ID of this host, and no other. Karpenter
// has done so already, unless its NodeClaim went before it was known to be registered, or a kubelet registered again while it left. One
// whose class has become another instance's is nobody's, and is left for a person to delete.
func (c *Controller) deleteNode(ctx context.Context, h *v1beta1.SSHHost) error {
	nodes, err := c.nodesOf(ctx, h)
	if err != nil {
		return err
	}
	for index := range nodes {
		node := &nodes[index]
		if !node.DeletionTimestamp.IsZero() {
			continue // karpenter is at it
		}
		err := c.Client.Delete(ctx, node, client.Preconditions{UID: &node.UID})
		switch {
		case errors.Is(err, ownership.ErrForeign):
			log.FromContext(ctx).Info("the Node of the machine that left names another instance's class, so it is not deleted", "Node", node.Name, "class", node.Labels[ownership.ClassLabel])
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			return err
		}
	}
	return nil
}

// nodesOf are the Nodes with one of the host's provider IDs. The cache may not show yet what registered just before the machine left, and nobody looks
// for it later: the Node of the claim's name is read from the API server.
func (c *Controller) nodesOf(ctx context.Context, h *v1beta1.SSHHost) ([]corev1.Node, error) {
	nodes := &corev1.NodeList{}
	ids := h.ProviderIDs()
	for _, id := range ids {
		some := &corev1.NodeList{}
		if err := c.Client.List(ctx, some, client.MatchingFields{"spec.providerID": id}); err != nil {
			return nil, err
		}
		nodes.Items = append(nodes.Items, some.Items...)
	}
	ref := h.Status.ClaimRef
	if ref == nil || slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == ref.Name }) {
		return nodes.Items, nil
	}
	node := &corev1.Node{}
	err := c.Live.Get(ctx, types.NamespacedName{Name: ref.Name}, node)
	if err == nil && slices.Contains(ids, node.Spec.ProviderID) {
		nodes.Items = append(nodes.Items, *node)
	}
	return nodes.Items, client.IgnoreNotFound(err)
}

// installedRevision is the profile whose install is on the machine: the recorded revision, else, for a host that was installed before
// revisions were kept, the profile of that name as it is now.
func (c *Controller) installedRevision(ctx context.Context, h *v1beta1.SSHHost) (profile.Revision, error) {
	if h.Status.InstalledRevision != "" {
		return c.Revisions.Get(ctx, h.Status.InstalledRevision)
	}
	name, _, found := strings.Cut(h.Status.InstalledProfile, "@")
	if !found {
		return profile.Revision{}, fault.New(fault.Configuration, reasonNothingInstalled, nil,
			"SSHHost %s is to leave, but its status does not say which profile was installed: make the machine leave by hand, then set the annotation %s and remove it again",
			h.Name, v1beta1.MaintenanceAnnotation)
	}
	current := &v1beta1.SSHJoinProfile{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, current); err != nil {
		return profile.Revision{}, notFoundIs(err, v1beta1.ReasonProfileNotFound, "SSHJoinProfile %s, which is installed on SSHHost %s, does not exist any more: create it again so that the host can leave", name, h.Name)
	}
	return profile.RevisionOf(current), nil
}

const reasonNothingInstalled = "NothingInstalled"
