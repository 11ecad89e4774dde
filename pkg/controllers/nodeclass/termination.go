package nodeclass

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// settle is how long a class is NotReady before the last look at its NodeClaims: karpenter may be about to create one that it decided on
// when the class was Ready. A claim whose class is gone belongs to nobody, and nobody would ever end it.
const settle = 3 * time.Second

// terminate lets a class go once no NodeClaim names it, and says which do until then (A9).
func (c *Controller) terminate(ctx context.Context, class *v1beta1.SSHNodeClass) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(class, v1beta1.TerminationFinalizer) {
		return reconcile.Result{}, nil
	}
	claims, err := c.claimsOf(ctx, class.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	ending := finding{reason: v1beta1.ReasonDeleting, message: waitingFor(claims), hosts: class.Status.Hosts, free: class.Status.Free}
	if ready := readyOf(class); len(claims) > 0 || ready == nil || ready.Reason != v1beta1.ReasonDeleting {
		wait := settle
		if len(claims) > 0 {
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

// classOf is the SSHNodeClass that a NodeClaim names, if it names one.
func classOf(claim *karpv1.NodeClaim) (string, bool) {
	ref := claim.Spec.NodeClassRef
	if ref == nil || ref.Group != v1beta1.Group || ref.Kind != "SSHNodeClass" {
		return "", false
	}
	return ref.Name, true
}

// waitingFor names a few of the claims, so that a person can look at them.
func waitingFor(claims []string) string {
	if len(claims) == 0 {
		return "no NodeClaim uses this class any more"
	}
	const shown = 5
	list := strings.Join(claims[:min(len(claims), shown)], ", ")
	if more := len(claims) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("waiting for the end of NodeClaims that use this class: %s. Delete the NodePools that name it, or these NodeClaims", list)
}
