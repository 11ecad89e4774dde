package chaos

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// reconcileClaim is core's nodeclaim.lifecycle.
func (c *core) reconcileClaim(ctx context.Context, name string) (time.Duration, error) {
	claim := &karpv1.NodeClaim{}
	if err := c.p.kube.Get(ctx, types.NamespacedName{Name: name}, claim); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if !claim.DeletionTimestamp.IsZero() {
		return c.finalizeClaim(ctx, claim)
	}
	stored := claim.DeepCopy()
	if controllerutil.AddFinalizer(claim, karpv1.TerminationFinalizer) {
		if err := c.p.kube.Patch(ctx, claim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
			return retried(err)
		}
	}
	stored = claim.DeepCopy()
	err := c.launch(ctx, claim)
	again := time.Duration(0)
	if err == nil && claim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue() {
		err = c.register(ctx, claim)
	}
	if !claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		var timedOut error
		if again, timedOut = c.liveness(ctx, claim); timedOut != nil {
			return 0, timedOut
		}
	}
	if !equality.Semantic.DeepEqual(stored, claim) {
		status := claim.DeepCopy()
		if failed := c.p.kube.Patch(ctx, claim, client.MergeFrom(stored)); failed != nil {
			return 0, client.IgnoreNotFound(failed)
		}
		if failed := c.p.kube.Status().Patch(ctx, status, client.MergeFrom(stored)); failed != nil {
			return 0, client.IgnoreNotFound(failed)
		}
		if c.p.pass(ctx, time.Second) != nil {
			return 0, nil
		}
	}
	if apierrors.IsConflict(err) {
		return time.Second, nil
	}
	return again, err
}

func (c *core) launch(ctx context.Context, claim *karpv1.NodeClaim) error {
	conditions := claim.StatusConditions()
	if conditions.Get(karpv1.ConditionTypeLaunched).IsTrue() {
		c.mu.Lock()
		delete(c.launched, claim.UID)
		c.mu.Unlock()
		return nil
	}
	c.mu.Lock()
	created := c.launched[claim.UID]
	c.mu.Unlock()
	if created == nil {
		var err error
		created, err = c.provider.Create(ctx, claim)
		switch {
		case karpcloud.IsInsufficientCapacityError(err), karpcloud.IsNodeClassNotReadyError(err):
			return client.IgnoreNotFound(c.p.kube.Delete(ctx, claim))
		case err != nil:
			conditions.SetUnknownWithReason(karpv1.ConditionTypeLaunched, "LaunchFailed", "failed")
			return err
		}
		c.mu.Lock()
		c.launched[claim.UID] = created
		c.mu.Unlock()
	}
	merged := maps.Clone(created.Labels)
	maps.Copy(merged, claim.Labels)
	claim.Labels = merged
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	maps.Copy(claim.Annotations, created.Annotations)
	claim.Status.ProviderID, claim.Status.Capacity, claim.Status.Allocatable = created.Status.ProviderID, created.Status.Capacity, created.Status.Allocatable
	conditions.SetTrue(karpv1.ConditionTypeLaunched)
	return nil
}

func (c *core) register(ctx context.Context, claim *karpv1.NodeClaim) error {
	conditions := claim.StatusConditions()
	if !conditions.Get(karpv1.ConditionTypeRegistered).IsUnknown() {
		return nil
	}
	nodes := &corev1.NodeList{}
	if err := c.p.kube.List(ctx, nodes, client.MatchingFields{"spec.providerID": claim.Status.ProviderID}); err != nil {
		return err
	}
	switch len(nodes.Items) {
	case 0:
		conditions.SetUnknownWithReason(karpv1.ConditionTypeRegistered, "NodeNotFound", "Node not registered with cluster")
		return nil
	case 1:
	default:
		conditions.SetFalse(karpv1.ConditionTypeRegistered, "MultipleNodesFound", "matched multiple nodes")
		return nil
	}
	node := &nodes.Items[0]
	stored := node.DeepCopy()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	maps.Copy(node.Labels, claim.Labels)
	node.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	controllerutil.AddFinalizer(node, karpv1.TerminationFinalizer)
	if !equality.Semantic.DeepEqual(stored, node) {
		if err := c.p.kube.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
			return err
		}
	}
	conditions.SetTrue(karpv1.ConditionTypeRegistered)
	claim.Status.NodeName = node.Name
	return nil
}

func (c *core) liveness(ctx context.Context, claim *karpv1.NodeClaim) (time.Duration, error) {
	limit := registrationTimeout
	if !claim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue() {
		limit = launchTimeout
	}
	if left := limit - time.Since(claim.CreationTimestamp.Time); left > 0 {
		return left, nil
	}
	return 0, client.IgnoreNotFound(c.p.kube.Delete(ctx, claim))
}

// finalizeClaim is the other half of nodeclaim.lifecycle.
func (c *core) finalizeClaim(ctx context.Context, claim *karpv1.NodeClaim) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(claim, karpv1.TerminationFinalizer) {
		return 0, nil
	}
	if claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		nodes := &corev1.NodeList{}
		if err := c.p.kube.List(ctx, nodes, client.MatchingFields{"spec.providerID": claim.Status.ProviderID}); err != nil {
			return 0, err
		}
		for i := range nodes.Items {
			if nodes.Items[i].DeletionTimestamp.IsZero() {
				if err := c.p.kube.Delete(ctx, &nodes.Items[i]); client.IgnoreNotFound(err) != nil {
					return 0, err
				}
			}
		}
		if len(nodes.Items) > 0 {
			return 0, nil // its end wakes this claim
		}
	}
	if claim.Status.ProviderID != "" {
		deleted := c.provider.Delete(ctx, claim)
		if karpcloud.IgnoreNodeClaimNotFoundError(deleted) != nil {
			return 0, deleted
		}
		stored := claim.DeepCopy()
		if claim.StatusConditions().SetTrue(karpv1.ConditionTypeInstanceTerminating) {
			if err := c.p.kube.Status().Patch(ctx, claim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})); err != nil {
				return retried(err)
			}
		}
		if !karpcloud.IsNodeClaimNotFoundError(deleted) {
			return 5 * time.Second, nil
		}
	}
	return c.strip(ctx, claim)
}

// reconcileNode is core's node.termination.
func (c *core) reconcileNode(ctx context.Context, name string) (time.Duration, error) {
	node := &corev1.Node{}
	if err := c.p.kube.Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	_, managed := node.Labels[ownership.ClassLabel]
	if node.DeletionTimestamp.IsZero() || !managed || !controllerutil.ContainsFinalizer(node, karpv1.TerminationFinalizer) {
		return 0, nil
	}
	claim := c.claimOf(ctx, node)
	if claim != nil && claim.DeletionTimestamp.IsZero() {
		if err := c.p.kube.Delete(ctx, claim); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	if !isReady(node) {
		switch _, err := c.provider.Get(ctx, node.Spec.ProviderID); {
		case karpcloud.IsNodeClaimNotFoundError(err):
			return c.strip(ctx, node)
		case err != nil:
			return 0, err
		}
	}
	if err := c.taint(ctx, node); err != nil {
		return retried(err)
	}
	if claim == nil {
		return c.strip(ctx, node)
	}
	c.mu.Lock()
	since, begun := c.draining[node.UID]
	if !begun {
		since = time.Now()
		c.draining[node.UID] = since
	}
	c.mu.Unlock()
	if time.Since(since) < minDrainTime {
		return time.Second, nil
	}
	switch err := c.provider.Delete(ctx, claim); {
	case err == nil:
		return 5 * time.Second, nil
	case !karpcloud.IsNodeClaimNotFoundError(err):
		return 0, err
	}
	return c.strip(ctx, node)
}

func (c *core) claimOf(ctx context.Context, node *corev1.Node) *karpv1.NodeClaim {
	var found *karpv1.NodeClaim
	claims := c.listClaims(ctx)
	for i := range claims {
		if node.Spec.ProviderID != "" && claims[i].Status.ProviderID == node.Spec.ProviderID {
			if found != nil {
				return nil // more than one: no single source of truth
			}
			found = &claims[i]
		}
	}
	return found
}
