package join

import (
	"cmp"
	"context"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// awaitNode ends a join once its Node is there: the bootstrap token has served, so it goes.
func (c *Controller) awaitNode(ctx context.Context, f Facts) (reconcile.Result, error) {
	h := f.Host
	if !f.Registered {
		if err := c.tellAmbiguous(ctx, h, f.Adoption); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{RequeueAfter: max(time.Second, registrationTimeout-f.Waited)}, nil // or sooner, when the Node appears
	}
	if id := h.Status.BootstrapTokenID; id != "" {
		if err := c.Tokens.Delete(ctx, id); err != nil {
			return reconcile.Result{}, err
		}
	}
	revision, err := c.adoptRevision(ctx, h)
	if err != nil {
		return reconcile.Result{}, err
	}
	ref, name := *h.Status.ClaimRef, nodeName(h)
	_, err = c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Holds(h, ref.UID) || h.Status.State != v1beta1.HostInUse {
			return host.ErrFenced
		}
		h.Status.InstalledRevision = cmp.Or(h.Status.InstalledRevision, revision)
		host.MarkRegistered(h, name, c.Clock.Now())
		return nil
	})
	if err == nil {
		metrics.Operations.WithLabelValues(metrics.OperationRegister, metrics.Success).Inc()
		c.readiness.expect(h.Name, ref.UID)
		c.event(h, corev1.EventTypeNormal, "NodeRegistered", "Node %s has joined the cluster", name)
	}
	return reconcile.Result{}, err
}

// adoptRevision keeps the scripts of a machine that the existing provider joined, which kept none, as they are when this controller first
// sees its node, so that a later edit or deletion of the profile does not change how it leaves. It returns the revision's name; none if the
// profile is another version by now, or gone.
func (c *Controller) adoptRevision(ctx context.Context, h *v1beta1.SSHHost) (string, error) {
	name, _, found := strings.Cut(h.Status.InstalledProfile, "@")
	if h.Status.InstalledRevision != "" || !found {
		return "", nil
	}
	current := &v1beta1.SSHJoinProfile{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: name}, current); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if current.Marker() != h.Status.InstalledProfile {
		return "", nil
	}
	revision := profile.RevisionOf(current)
	return revision.Name, c.Revisions.Ensure(ctx, revision)
}

// Reasons for which a join script succeeded and no Node came of it.
const (
	reasonNodeDidNotRegister   = "NodeDidNotRegister"
	reasonClientCSRNotApproved = "ClientCSRNotApproved"
)

// unregistered says why no Node appeared, as far as the cluster can tell: a kubelet whose certificate nobody approves has asked for one
// in the name of this join's bootstrap token; one that cannot reach the API server has not.
func (c *Controller) unregistered(ctx context.Context, h *v1beta1.SSHHost) *fault.Error {
	if taken := c.overtaken(ctx, h); taken != nil {
		return taken
	}
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := c.Live.List(ctx, requests); err != nil {
		log.FromContext(ctx).V(1).Info("certificate requests cannot be listed; the reason why no Node appeared stays vague", "error", err.Error())
	}
	for _, request := range requests.Items {
		if request.Spec.Username == bootstrapapi.BootstrapUserPrefix+h.Status.BootstrapTokenID && len(request.Status.Certificate) == 0 {
			return fault.New(fault.Configuration, reasonClientCSRNotApproved, nil,
				"the kubelet of %s asked for a client certificate (CertificateSigningRequest %s) and nobody approved it within %s: apply the bindings of examples/bootstrap-rbac.yaml for this instance's group, and let kube-controller-manager approve and sign",
				h.Name, request.Name, registrationTimeout)
		}
	}
	return fault.New(fault.Host, reasonNodeDidNotRegister, nil,
		"the join script of %s succeeded but no Node %s with provider ID %s appeared within %s, and no kubelet asked for a certificate with this join's token: look at the kubelet's log on the machine; it may not reach the API server",
		h.Name, h.Status.ClaimRef.Name, h.EffectiveProviderID(), registrationTimeout)
}

// overtaken says that another host's Node has the name, if it has: it came to be while the join ran.
func (c *Controller) overtaken(ctx context.Context, h *v1beta1.SSHHost) *fault.Error {
	claim, err := c.nodeClaim(ctx, h.Status.ClaimRef)
	if err != nil {
		return nil
	}
	node := &corev1.Node{}
	if err := c.Live.Get(ctx, types.NamespacedName{Name: claim.Name}, node); err != nil || !strings.HasPrefix(node.Spec.ProviderID, v1beta1.ProviderIDScheme) ||
		!elses(node, h, claim.CreationTimestamp, false) {
		return nil
	}
	return c.nameTaken(node, h, claim)
}

// giveUp fails a join whose Node did not appear. Where nobody approves certificates, no host is to blame.
func (c *Controller) giveUp(ctx context.Context, facts Facts) error {
	h := facts.Host
	f := c.unregistered(ctx, h)
	if facts.Adoption.wanted && f.Reason != v1beta1.ReasonNodeNameInUse {
		f = notAdopted(h, facts.Adoption)
	}
	countFailure(metrics.OperationRegister, f)
	release := host.Release{State: v1beta1.HostUnhealthy, Reason: f.Reason, Message: f.Message, Failed: f.Blame == fault.Host, Blamed: f.Blame == fault.Host}
	if f.Reason == v1beta1.ReasonNodeNameInUse {
		release = host.Release{State: v1beta1.HostAvailable}
	}
	c.event(h, corev1.EventTypeWarning, f.Reason, "%s", clip(f.Message))
	return c.abandon(ctx, h, f, verdict{release: release})
}
