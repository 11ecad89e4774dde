// Package startuptaint removes startup taints from Nodes once what they wait for is there: pods that are ready on the Node, or a condition of it.
// The class says which (spec.startupTaintGates), the NodeClaim which taints are startup taints; a taint goes only if both name it.
//
// It writes the taints of own Nodes, and events about them, and nothing else. A taint that has gone is never put back.
package startuptaint

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

const (
	// recheck is how soon a Node with a closed gate is looked at again, should news have been lost.
	recheck = 30 * time.Second
	// glance is how soon a Node is looked at again that somebody else wrote meanwhile.
	glance = time.Second

	eventTaintRemoved = "StartupTaintRemoved"
	actionGateOpened  = "GateOpened"
)

// Controller removes startup taints.
type Controller struct {
	// client reads from caches that show own NodeClaims and classes only, and refuses to write foreign Nodes.
	client   client.Client
	recorder events.EventRecorder
	clock    clock.PassiveClock
}

// NewController makes a Controller. Its client must be the guarded one, with karpenter's indexes.
func NewController(c client.Client, recorder events.EventRecorder, clk clock.PassiveClock) *Controller {
	return &Controller{client: c, recorder: recorder, clock: clk}
}

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "node.startuptaint" }

// Register adds the controller to a manager.
func (c *Controller) Register(_ context.Context, mgr manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(mgr).
		Named(c.Name()).
		For(&corev1.Node{}, builder.WithPredicates(nodeChanges())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.nodeOfPod), builder.WithPredicates(podChanges())).
		Watches(&v1beta1.SSHNodeClass{}, handler.EnqueueRequestsFromMapFunc(c.nodesOfClass), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 8}).
		Complete(c)
}

// Reconcile looks at one Node.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := c.client.Get(ctx, request.NamespacedName, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	waiting, err := c.waiting(ctx, node)
	if err != nil || len(waiting) == 0 {
		return reconcile.Result{}, err
	}
	var going []gated
	for _, w := range waiting {
		open, err := c.open(ctx, node, w.gate.RemoveWhen)
		if err != nil {
			return reconcile.Result{}, err
		}
		if open {
			going = append(going, w)
		}
	}
	result := reconcile.Result{}
	if len(going) < len(waiting) {
		result.RequeueAfter = recheck
	}
	if len(going) == 0 {
		log.FromContext(ctx).V(1).Info("startup taints wait for their gates", "taints", len(waiting))
		return result, nil
	}
	switch err := c.remove(ctx, node, going); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: glance}, nil // the newer Node is on its way here
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return result, nil
}

// waiting are the taints of a Node that gates decide about; none if the Node is not ours.
func (c *Controller) waiting(ctx context.Context, node *corev1.Node) ([]gated, error) {
	if !node.DeletionTimestamp.IsZero() || len(node.Spec.Taints) == 0 {
		return nil, nil
	}
	claim, err := c.claimOf(ctx, node)
	if err != nil || claim == nil || len(claim.Spec.StartupTaints) == 0 {
		return nil, err
	}
	class := &v1beta1.SSHNodeClass{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return gatedTaints(class.Spec.StartupTaintGates, claim.Spec.StartupTaints, node.Spec.Taints), nil
}

// open tells whether what a gate waits for is there.
func (c *Controller) open(ctx context.Context, node *corev1.Node, when v1beta1.RemoveWhen) (bool, error) {
	switch {
	case when.NodeCondition != nil:
		return conditionOpens(*when.NodeCondition, node.Status.Conditions), nil
	case when.PodsReady == nil:
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&when.PodsReady.Selector)
	if err != nil {
		return false, reconcile.TerminalError(fmt.Errorf("selector of a startup taint gate: %w", err)) // an edit of the class wakes the Node
	}
	if selector.Empty() {
		return false, nil // the API server refuses it; it would count every pod
	}
	pods := &corev1.PodList{}
	if err := c.client.List(ctx, pods, client.InNamespace(when.PodsReady.Namespace), client.MatchingLabelsSelector{Selector: selector},
		client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
		return false, fmt.Errorf("listing the pods on Node %s: %w", node.Name, err)
	}
	return podsOpen(*when.PodsReady, pods.Items), nil
}

// remove takes taints off a Node, in one write that fails if the Node has changed since it was judged.
func (c *Controller) remove(ctx context.Context, node *corev1.Node, going []gated) error {
	freed := node.DeepCopy()
	freed.Spec.Taints = without(node.Spec.Taints, going)
	if err := c.client.Patch(ctx, freed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	for _, g := range going {
		metrics.TaintGates.WithLabelValues(g.taint.Key).Observe(c.clock.Since(node.CreationTimestamp.Time).Seconds())
		c.recorder.Eventf(node, nil, corev1.EventTypeNormal, eventTaintRemoved, actionGateOpened,
			"removed the startup taint %s: %s", g.taint.ToString(), reasonOf(g.gate.RemoveWhen))
	}
	return nil
}

// reasonOf says what opened a gate.
func reasonOf(when v1beta1.RemoveWhen) string {
	if when.NodeCondition != nil {
		return "condition " + when.NodeCondition.Type + " is as the class asks"
	}
	return fmt.Sprintf("%d or more of the pods that the class selects in namespace %s are ready here", max(when.PodsReady.MinReady, 1), when.PodsReady.Namespace)
}
