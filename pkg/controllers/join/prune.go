package join

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// pruneInterval suits objects that come with new profile versions and weigh a few kilobytes.
const pruneInterval = time.Hour

// pruneRevisions keeps revisions from piling up for as long as this process leads.
func (c *Controller) pruneRevisions(ctx context.Context) error {
	for {
		if err := c.prune(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("revisions that no host has installed were not all deleted; it is tried again in an hour", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.Clock.After(pruneInterval):
		}
	}
}

// prune deletes the revisions that no host has installed. The hosts are read from the API server: what a cache does not show yet may
// be all that a machine's leave script is kept for.
func (c *Controller) prune(ctx context.Context) error {
	hosts := &v1beta1.SSHHostList{}
	if err := c.Live.List(ctx, hosts, client.InNamespace(c.Inventory.Namespace())); err != nil {
		return err
	}
	installed := sets.New[string]()
	for i := range hosts.Items {
		installed.Insert(hosts.Items[i].Status.InstalledRevision)
	}
	return c.Revisions.Prune(ctx, installed)
}
