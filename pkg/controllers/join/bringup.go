package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// writeTimeout bounds writes that must outlive the operation they belong to.
const writeTimeout = 30 * time.Second

// hostOnly marks a failure that concerns one host alone, whoever is to blame.
type hostOnly struct{ error }

func (e hostOnly) Unwrap() error { return e.error }

// bringUp is one attempt to make a claimed machine a node, and what follows if it fails.
func (c *Controller) bringUp(ctx context.Context, h *v1beta1.SSHHost, attempt int32) error {
	err := c.join(ctx, h, attempt)
	var stale *ssh.StaleEpoch
	switch {
	case err == nil:
		metrics.Operations.WithLabelValues(metrics.OperationJoin, metrics.Success).Inc()
		c.runner.forget(h.Name)
		return nil
	case errors.Is(err, host.ErrFenced), ctx.Err() != nil:
		return nil // the claim ended, or this process does: the next reconcile, or the next process, decides
	case errors.As(err, &stale):
		return c.catchUp(ctx, h, stale.Stored)
	}
	f := fault.Of(err)
	countFailure(metrics.OperationJoin, f)
	attempts, first := c.runner.failed(h.Name, task{v1beta1.OperationJoin, claimUID(h)}, pause)
	v := judgeJoin(f, errors.As(err, &hostOnly{}), attempts, c.Clock.Since(first))
	log.FromContext(ctx).Info("join failed", "blame", f.Blame, "reason", f.Reason, "error", f.Error(), "attempt", attempts, "again", v.again)
	c.event(h, corev1.EventTypeWarning, v1beta1.ReasonJoinFailed, "attempt %d for NodeClaim %s: %s: %s", attempts, h.Status.ClaimRef.Name, f.Reason, clip(f.Error()))
	if v.again {
		return nil
	}
	return c.abandon(ctx, h, f, v)
}

// abandon ends a claim whose join failed for good: the NodeClaim goes, so that karpenter tries elsewhere at once, and the host
// rests, or leaves first if it may have joined. If this process ends in between, the NodeClaim's end alone leads to the same.
func (c *Controller) abandon(ctx context.Context, h *v1beta1.SSHHost, f *fault.Error, v verdict) error {
	// Deleting the NodeClaim makes karpenter end the claim, which cancels this operation: the host's memory of the failure must survive that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	ref := *h.Status.ClaimRef
	v.release.Operation = host.FailedOperation(c.recorded(h)) // karpenter, told of the end of the NodeClaim, makes the host leave
	if claim, err := c.nodeClaim(ctx, &ref); err == nil {
		reason := v1beta1.ReasonJoinFailed
		if f.Reason == v1beta1.ReasonAdoptFailed {
			reason = f.Reason
		}
		c.Recorder.Eventf(claim, h, corev1.EventTypeWarning, reason, reason, "SSHHost %s: %s: %s", h.Name, f.Reason, clip(f.Error()))
	}
	if err := c.deleteNodeClaim(ctx, &ref); err != nil {
		return err
	}
	if err := c.Tokens.Delete(ctx, h.Status.BootstrapTokenID); err != nil {
		return err
	}
	updated, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if h.Status.ClaimRef == nil || h.Status.ClaimRef.UID != ref.UID {
			return host.ErrFenced
		}
		if host.Touched(h) {
			host.MarkFailed(h, v.release, c.Clock.Now())
			host.MarkLeaving(h)
			return nil
		}
		host.MarkReleased(h, v.release, c.Clock.Now())
		return nil
	})
	if err == nil {
		c.tellQuarantine(h, updated)
	}
	return err
}

// tellQuarantine says that a host was put in quarantine, if it was between these two forms of it.
func (c *Controller) tellQuarantine(was, is *v1beta1.SSHHost) {
	before := int32(0)
	if was.Status.Failures != nil {
		before = was.Status.Failures.Quarantines
	}
	if f := is.Status.Failures; f != nil && f.Quarantines > before {
		c.event(is, corev1.EventTypeWarning, v1beta1.ReasonQuarantined, "%s", clip(host.Quarantine(f, "")))
	}
}

// catchUp lifts the claim's epoch over the one the machine remembers. The claim is this instance's by the API server's word, so the
// machine's memory is that of an SSHHost whose status was lost. A stale process fails on the compare-and-swap here.
func (c *Controller) catchUp(ctx context.Context, h *v1beta1.SSHHost, stored int64) error {
	uid, epoch := claimUID(h), h.Status.ClaimEpoch
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if claimUID(h) != uid || h.Status.ClaimEpoch != epoch {
			return host.ErrFenced
		}
		h.Status.ClaimEpoch = stored + 1
		return nil
	})
	return err
}

// plan is everything a join needs, gathered before the machine is touched, so that a mistake in it costs no host anything.
type plan struct {
	inputs   profile.Inputs
	profile  *v1beta1.SSHJoinProfile
	revision profile.Revision
	// adopt says that an agent on the machine chooses the provider ID.
	adopt bool
}

func (c *Controller) join(ctx context.Context, h *v1beta1.SSHHost, attempt int32) error {
	if err := c.Inventory.Alone(ctx, h); err != nil {
		return err
	}
	p, err := c.plan(ctx, h)
	if err != nil {
		return err
	}
	done, err := c.Holds.Take(ctx, p.profile)
	if err != nil {
		return err
	}
	defer done()
	if err := c.Revisions.Ensure(ctx, p.revision); err != nil {
		return err
	}
	conn, err := c.dial(ctx, h, "join")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if h.Status.InstalledProfile != p.revision.Marker() {
		if err := c.install(ctx, conn, h, p, attempt); err != nil {
			return err
		}
	}
	return c.joinOver(ctx, conn, h, p, attempt)
}

// plan reads the class, the profile, the Secret and the cluster's address, and renders both scripts once to see that they do.
func (c *Controller) plan(ctx context.Context, h *v1beta1.SSHHost) (*plan, error) {
	ref := h.Status.ClaimRef
	claim, err := c.nodeClaim(ctx, ref)
	if err != nil {
		return nil, err
	}
	class := &v1beta1.SSHNodeClass{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return nil, notFoundIs(err, v1beta1.ReasonProfileNotFound, "SSHNodeClass %s does not exist: create it, or delete NodeClaim %s", claim.Spec.NodeClassRef.Name, ref.Name)
	}
	if err := c.nameFree(ctx, h, claim, class.Spec.ProviderIDSource); err != nil {
		return nil, err
	}
	of, err := c.contextOf(ctx, class)
	if err != nil {
		return nil, err
	}
	p := &plan{adopt: class.Spec.ProviderIDSource == v1beta1.ProviderIDAdopt, profile: of.profile, revision: of.revision, inputs: of.inputs(h)}
	p.inputs.NodeName, p.inputs.NodeLabels, p.inputs.Taints = claim.Name, claim.Labels, claim.Spec.Taints
	for _, phase := range []profile.Phase{profile.Install, profile.Join} {
		if _, err := profile.Render(p.revision, phase, p.inputs); err != nil {
			return nil, err
		}
	}
	// The leave's too: what joined must be able to leave.
	for _, phase := range profile.Phases {
		if _, err := c.verified(h, p.revision, phase); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// classContext is what a class passes to any machine.
type classContext struct {
	class    *v1beta1.SSHNodeClass
	profile  *v1beta1.SSHJoinProfile
	revision profile.Revision
	cluster  bootstrap.Cluster
	secrets  map[string][]byte
}

// contextOf reads the profile, the Secret and the cluster's address.
func (c *Controller) contextOf(ctx context.Context, class *v1beta1.SSHNodeClass) (*classContext, error) {
	joinProfile := &v1beta1.SSHJoinProfile{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, joinProfile); err != nil {
		return nil, notFoundIs(err, v1beta1.ReasonProfileNotFound, "SSHJoinProfile %s, named by SSHNodeClass %s, does not exist: create it", class.Spec.JoinProfileRef.Name, class.Name)
	}
	secrets := map[string][]byte{}
	if from := class.Spec.JoinSecretRef; from != nil {
		secret := &corev1.Secret{}
		if err := c.Client.Get(ctx, types.NamespacedName{Namespace: c.Inventory.Namespace(), Name: from.Name}, secret); err != nil {
			return nil, notFoundIs(err, v1beta1.ReasonJoinSecretNotFound, "Secret %s/%s, named by SSHNodeClass %s, does not exist: create it", c.Inventory.Namespace(), from.Name, class.Name)
		}
		secrets = secret.Data
	}
	cluster, err := c.Discovery.Resolve(ctx, class)
	if err != nil {
		return nil, err
	}
	return &classContext{class: class, profile: joinProfile, revision: profile.RevisionOf(joinProfile), cluster: cluster, secrets: secrets}, nil
}

// of names all that an install depends on.
func (o *classContext) of() string { return fmt.Sprintf("%s/%d", o.revision.Name, o.class.Generation) }

// inputs of a machine that is not known yet to become a node, and which.
func (o *classContext) inputs(h *v1beta1.SSHHost) profile.Inputs {
	in := profile.Inputs{
		ClusterEndpoint: o.cluster.Endpoint, ClusterCA: o.cluster.CA, ProviderID: h.StaticProviderID(),
		HostAddress: h.Spec.Address, NodeAddress: h.NodeIP(),
		Vars: o.class.Spec.Vars, Secrets: o.secrets,
	}
	if o.class.Spec.ProviderIDSource == v1beta1.ProviderIDAdopt {
		in.ProviderID = ""
	}
	return in
}

func (c *Controller) install(ctx context.Context, conn ssh.Session, h *v1beta1.SSHHost, p *plan, attempt int32) error {
	rendered, err := profile.Render(p.revision, profile.Install, p.inputs)
	if err != nil {
		return err
	}
	if err := c.record(ctx, h, func(h *v1beta1.SSHHost, now time.Time) {
		host.MarkInstalling(h, attempt, now.Add(rendered.Timeout), now)
	}); err != nil {
		return err
	}
	c.event(h, corev1.EventTypeNormal, "Installing", "running install of %s for NodeClaim %s", p.revision.Marker(), h.Status.ClaimRef.Name)
	return c.run(ctx, conn, h, p.revision, profile.Install, rendered, p.inputs.Redactor())
}

func (c *Controller) joinOver(ctx context.Context, conn ssh.Session, h *v1beta1.SSHHost, p *plan, attempt int32) error {
	// A token recorded by an attempt before this one has served nobody: its ID is all that is known of it, so it is replaced.
	if err := c.Tokens.Delete(ctx, c.recorded(h).Status.BootstrapTokenID); err != nil {
		return err
	}
	id, timeout := "", profile.Timeout(&p.revision.Spec, profile.Join)
	if !p.adopt || p.revision.UsesBootstrapToken() { // an agent such as nodeadm brings credentials of its own
		id = bootstrap.NewTokenID()
	}
	if err := c.record(ctx, h, func(h *v1beta1.SSHHost, now time.Time) {
		host.MarkJoining(h, p.revision.Marker(), p.revision.Name, id, conn.HostKeyFingerprint(), attempt, now.Add(timeout), now)
	}); err != nil {
		return err
	}
	if id != "" {
		token, err := c.Tokens.Mint(ctx, id, h.Status.ClaimRef.Name)
		if err != nil {
			return err
		}
		p.inputs.BootstrapToken = token
	}
	rendered, err := profile.Render(p.revision, profile.Join, p.inputs)
	if err != nil {
		return err
	}
	c.event(h, corev1.EventTypeNormal, "Joining", "running join of %s for NodeClaim %s", p.revision.Marker(), h.Status.ClaimRef.Name)
	if err := c.run(ctx, conn, h, p.revision, profile.Join, rendered, p.inputs.Redactor()); err != nil {
		return err
	}
	if err := c.record(ctx, h, func(h *v1beta1.SSHHost, now time.Time) {
		providerID := h.StaticProviderID()
		if p.adopt {
			providerID = h.EffectiveProviderID() // what is remembered, until the Node says otherwise
		}
		host.MarkJoined(h, providerID, now)
	}); err != nil {
		return err
	}
	if since := h.Status.ClaimRef.ClaimedAt; since != nil { // a claim of the existing provider does not say since when
		metrics.ClaimToJoined.Observe(c.Clock.Since(since.Time).Seconds())
	}
	return nil
}

// record writes a step of this claim's join, and refuses once the claim has ended.
func (c *Controller) record(ctx context.Context, h *v1beta1.SSHHost, change func(h *v1beta1.SSHHost, now time.Time)) error {
	uid, epoch := claimUID(h), h.Status.ClaimEpoch
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Holds(h, uid) || h.Status.State != v1beta1.HostClaimed || h.Status.ClaimEpoch != epoch {
			return host.ErrFenced
		}
		change(h, c.Clock.Now())
		return nil
	})
	return err
}

// recorded is the newest known form of a host that an operation began with.
func (c *Controller) recorded(h *v1beta1.SSHHost) *v1beta1.SSHHost {
	if newest := c.Inventory.Get(h.Name); newest != nil && newest.UID == h.UID {
		return newest
	}
	return h
}

func (c *Controller) nodeClaim(ctx context.Context, ref *v1beta1.ClaimReference) (*karpv1.NodeClaim, error) {
	claim := &karpv1.NodeClaim{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: ref.Name}, claim); err != nil {
		return nil, fmt.Errorf("reading NodeClaim %s: %w", ref.Name, err)
	}
	if ref.UID != "" && claim.UID != ref.UID {
		return nil, host.ErrFenced
	}
	if claim.Spec.NodeClassRef == nil {
		return nil, fmt.Errorf("NodeClaim %s names no node class", ref.Name)
	}
	return claim, nil
}

// notFoundIs turns a missing object into the configuration's fault and leaves other errors to be retried.
func notFoundIs(err error, reason, format string, args ...any) error {
	if apierrors.IsNotFound(err) {
		return fault.New(fault.Configuration, reason, nil, format, args...)
	}
	return err
}
