package ownership

import (
	"context"

	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// othersStatus tells whether a status is another instance's to write although core here has computed it, rightly, for itself: that of a
// NodeOverlay whose home is elsewhere. The write is left out and not refused, for core would try again for ever. What the status cannot
// tell then, that an overlay does not apply to NodePools of this instance, is logged.
func (c *guardedClient) othersStatus(ctx context.Context, o client.Object) bool {
	overlay, ok := o.(*v1alpha1.NodeOverlay)
	if !ok || homeOf(overlay) == c.seam.id.Instance {
		return false
	}
	if found := overlay.StatusConditions().Get(v1alpha1.ConditionTypeValidationSucceeded); found.IsFalse() {
		log.FromContext(ctx).Info("a NodeOverlay does not apply to this instance's NodePools; its status is written by another instance",
			"NodeOverlay", overlay.Name, "home", homeOf(overlay), "reason", found.Reason, "message", found.Message)
	}
	return true
}
