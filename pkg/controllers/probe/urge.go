package probe

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// answers are the annotations by which a person answers what a probe reported.
var answers = []string{v1beta1.TrustHostKeyAnnotation, v1beta1.TakeOverAnnotation, v1beta1.ClearFailuresAnnotation}

// answered tells whether a person answered between two forms of a host. Edits of the spec show in its generation.
func answered(was, is *v1beta1.SSHHost) bool {
	if was == nil {
		return false
	}
	for _, key := range answers {
		if was.Annotations[key] != is.Annotations[key] {
			return true
		}
	}
	return false
}

// urge makes a host that is not well be probed at once, however long it failed: somebody mended something and wants to see. c.mu is held.
func (c *Controller) urge(h *v1beta1.SSHHost) {
	if host.State(h) != v1beta1.HostUnhealthy && host.Blocked(h) == nil {
		return
	}
	m := c.memories[h.Name]
	m.urged = true
	c.memories[h.Name] = m
}

// followSecrets urges the hosts whose login Secret was made or changed.
func (c *Controller) followSecrets(ctx context.Context, mgr manager.Manager) error {
	informer, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return fmt.Errorf("watching login Secrets: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if secret, ok := o.(*corev1.Secret); ok && !initial {
				c.secretChanged(secret)
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok := was.(*corev1.Secret)
			after, also := is.(*corev1.Secret)
			if ok && also && !maps.EqualFunc(before.Data, after.Data, func(a, b []byte) bool { return equality.Semantic.DeepEqual(a, b) }) {
				c.secretChanged(after)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching login Secrets: %w", err)
	}
	return nil
}

func (c *Controller) secretChanged(secret *corev1.Secret) {
	for _, h := range c.Inventory.All() {
		if h.Namespace != secret.Namespace || !usesSecret(h, secret.Name) {
			continue
		}
		c.mu.Lock()
		c.urge(h)
		c.plan(h)
		c.mu.Unlock()
	}
	c.rouse()
}

// usesSecret tells whether a Secret holds what the way to a host needs.
func usesSecret(h *v1beta1.SSHHost, name string) bool {
	return h.Spec.SSHKeySecretRef.Name == name ||
		slices.ContainsFunc(h.Spec.JumpHosts, func(j v1beta1.JumpHost) bool { return j.SSHKeySecretRef.Name == name })
}
