package startuptaint

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// nodeChanges passes Nodes with taints, and of their updates those that may decide something: a kubelet's heartbeat does not.
func nodeChanges() predicate.Predicate {
	tainted := func(o client.Object) bool { return len(o.(*corev1.Node).Spec.Taints) > 0 }
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return tainted(e.Object) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			return tainted(after) && (!slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, same) ||
				!maps.Equal(statuses(before), statuses(after)) || len(before.OwnerReferences) != len(after.OwnerReferences))
		},
	}
}

func statuses(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	all := make(map[corev1.NodeConditionType]corev1.ConditionStatus, len(node.Status.Conditions))
	for _, c := range node.Status.Conditions {
		all[c.Type] = c.Status
	}
	return all
}

// podChanges passes pods on a Node that are ready, or were: nothing else changes a count.
func podChanges() predicate.Predicate {
	counted := func(o client.Object) bool { pod := o.(*corev1.Pod); return pod.Spec.NodeName != "" && counts(pod) }
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return counted(e.Object) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false }, // fewer pods open no gate
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return counted(e.ObjectNew) && !counted(e.ObjectOld) },
	}
}

// nodeOfPod wakes the pod's Node if it has a taint left. Most Nodes have none.
func (c *Controller) nodeOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: o.(*corev1.Pod).Spec.NodeName}}
	node := &corev1.Node{}
	if err := c.client.Get(ctx, request.NamespacedName, node); err != nil || len(node.Spec.Taints) == 0 {
		return nil // a Node that comes later is looked at when it comes
	}
	return []reconcile.Request{request}
}

// nodesOfClass wakes the Nodes of a class whose gates may have been edited.
func (c *Controller) nodesOfClass(ctx context.Context, o client.Object) []reconcile.Request {
	claims := &karpv1.NodeClaimList{}
	if err := c.client.List(ctx, claims, client.MatchingFields{"spec.nodeClassRef.name": o.GetName()}); err != nil {
		log.FromContext(ctx).Error(err, "listing the NodeClaims of a class whose gates changed; its Nodes are looked at again in "+recheck.String())
		return nil
	}
	var requests []reconcile.Request
	for index := range claims.Items {
		if name := claims.Items[index].Status.NodeName; name != "" {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
	}
	return requests
}

// claimOf is the NodeClaim that karpenter made the Node's owner; nil if there is none, or none of ours.
func (c *Controller) claimOf(ctx context.Context, node *corev1.Node) (*karpv1.NodeClaim, error) {
	for _, ref := range node.OwnerReferences {
		if ref.Kind != "NodeClaim" || !strings.HasPrefix(ref.APIVersion, apis.Group+"/") {
			continue
		}
		claim := &karpv1.NodeClaim{}
		if err := c.client.Get(ctx, types.NamespacedName{Name: ref.Name}, claim); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		if claim.UID == ref.UID && claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Group == v1beta1.Group {
			return claim, nil
		}
	}
	return nil, nil
}
