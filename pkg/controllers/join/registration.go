package join

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// awaitNode ends a join once its Node is there: the bootstrap token has served, so it goes.
func (c *Controller) awaitNode(ctx context.Context, f Facts) (reconcile.Result, error) {
	h := f.Host
	if !f.Registered {
		return reconcile.Result{RequeueAfter: max(time.Second, registrationTimeout-f.Waited)}, nil // or sooner, when the Node appears
	}
	if id := h.Status.BootstrapTokenID; id != "" {
		if err := c.Tokens.Delete(ctx, id); err != nil {
			return reconcile.Result{}, err
		}
	}
	ref := *h.Status.ClaimRef
	_, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		if !host.Holds(h, ref.UID) || h.Status.State != v1beta1.HostInUse {
			return host.ErrFenced
		}
		host.MarkRegistered(h, ref.Name, c.Clock.Now())
		return nil
	})
	if err == nil {
		c.event(h, corev1.EventTypeNormal, "NodeRegistered", "Node %s has joined the cluster", ref.Name)
	}
	return reconcile.Result{}, err
}

// reasonNodeDidNotRegister: the join script succeeded but no Node came of it.
const reasonNodeDidNotRegister = "NodeDidNotRegister"

func unregistered(h *v1beta1.SSHHost) *fault.Error {
	return fault.New(fault.Host, reasonNodeDidNotRegister, nil,
		"the join script of %s succeeded but no Node %s appeared within %s: look at the kubelet's log on the machine (its certificate request may await approval, or it cannot reach the API server)",
		h.Name, h.Status.ClaimRef.Name, registrationTimeout)
}

func unregisteredRelease(h *v1beta1.SSHHost) host.Release {
	f := unregistered(h)
	return host.Release{State: v1beta1.HostUnhealthy, Reason: f.Reason, Message: f.Message, Failed: true}
}
