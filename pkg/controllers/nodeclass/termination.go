package nodeclass

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// settle is how long a class is NotReady before the last look at its NodeClaims: karpenter may be about to create one that it decided on
// when the class was Ready. A claim whose class is gone belongs to nobody, and nobody would ever end it.
const settle = 3 * time.Second

// terminate lets a class go once no NodeClaim and no Node of this instance names it, and says which do until then (A9). A Node whose class is
// gone is nobody's: nobody would take karpenter's finalizer off it.
func (c *Controller) terminate(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(class, v1beta1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	claims, err := c.claimsOf(ctx, class.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	nodes, err := c.nodesOf(ctx, class.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	users := len(claims) + len(nodes)
	ending := finding{reason: v1beta1.ReasonDeleting, message: waitingFor(claims, nodes), hosts: class.Status.Hosts, free: class.Status.Free}
	if ready := readyOf(class); users > 0 || ready == nil || ready.Reason != v1beta1.ReasonDeleting {
		wait := settle
		if users > 0 {
			wait = recheck // or sooner, when one of them ends
		}
		return reconcile.Result{RequeueAfter: wait}, c.write(ctx, class, ending)
	}
	freed := class.DeepCopy()
	controllerutil.RemoveFinalizer(freed, v1beta1.TerminationFinalizer)
	return reconcile.Result{}, client.IgnoreNotFound(c.Client.Patch(ctx, freed, client.MergeFromWithOptions(class, client.MergeFromWithOptimisticLock{})))
}

func readyOf(class *v1beta1.SSHNodeClass) *status.Condition {
	for i := range class.Status.Conditions {
		if class.Status.Conditions[i].Type == status.ConditionReady {
			return &class.Status.Conditions[i]
		}
	}
	return nil
}

// claimsOf lists, from the API server, the NodeClaims that name a class. A cache would not do: that a claim is not in it does not
// mean that there is none.
func (c *Controller) claimsOf(ctx context.Context, class string) ([]string, error) {
	var names []string
	page := &karpv1.NodeClaimList{}
	for {
		if err := c.Live.List(ctx, page, client.Limit(500), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("listing the NodeClaims that name SSHNodeClass %s: %w", class, err)
		}
		for i := range page.Items {
			if name, named := classOf(&page.Items[i]); named && name == class {
				names = append(names, page.Items[i].Name)
			}
		}
		if page.Continue == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}

// nodesOf lists, from the API server too, the Nodes of a class on machines of this pool. Those on others' are not this instance's.
func (c *Controller) nodesOf(ctx context.Context, class string) ([]string, error) {
	var names []string
	page := &corev1.NodeList{}
	for {
		err := c.Live.List(ctx, page, client.MatchingLabels{ownership.ClassLabel: class}, client.Limit(500), client.Continue(page.Continue))
		if err != nil {
			return nil, fmt.Errorf("listing the Nodes of SSHNodeClass %s: %w", class, err)
		}
		for i := range page.Items {
			if strings.HasPrefix(page.Items[i].Spec.ProviderID, v1beta1.ProviderIDScheme+c.Inventory.Namespace()+"/") {
				names = append(names, page.Items[i].Name)
			}
		}
		if page.Continue == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}

// classOf is the SSHNodeClass that a NodeClaim names, if it names one.
func classOf(claim *karpv1.NodeClaim) (string, bool) {
	ref := claim.Spec.NodeClassRef
	if ref == nil || ref.Group != v1beta1.Group || ref.Kind != ownership.ClassKind {
		return "", false
	}
	return ref.Name, true
}

// waitingFor names a few of the users, so that a person can look at them.
func waitingFor(claims, nodes []string) string {
	switch {
	case len(claims) > 0:
		return fmt.Sprintf("waiting for the end of NodeClaims that use this class: %s. Delete the NodePools that name it, or these NodeClaims", profile.Few(claims))
	case len(nodes) > 0:
		return fmt.Sprintf("waiting for the end of Nodes that use this class: %s. They have no NodeClaim any more: delete them", profile.Few(nodes))
	}
	return "no NodeClaim uses this class any more"
}
