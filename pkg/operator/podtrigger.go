package operator

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/utils/pod"
)

const (
	// hiddenRecheck is how soon a hidden pod is looked at again: core's own interval for the pods it knows.
	hiddenRecheck = 10 * time.Second
	// podTriggers run at once; each takes microseconds.
	podTriggers = 10
)

// podTrigger stands before core's controller of pending pods, and registers in its place: those that core is not shown must not wake
// its provisioner.
type podTrigger struct {
	name    string
	trigger reconcile.ObjectReconciler[*corev1.Pod]
	hidden  func(*corev1.Pod) bool
}

func newPodTrigger(core *provisioning.PodController, hidden func(*corev1.Pod) bool) *podTrigger {
	return &podTrigger{name: core.Name(), trigger: core, hidden: hidden}
}

func (t *podTrigger) Reconcile(ctx context.Context, p *corev1.Pod) (reconcile.Result, error) {
	if pod.IsProvisionable(p) && t.hidden(p) {
		// NodePools and hosts change; nothing but time brings this pod back here.
		return reconcile.Result{RequeueAfter: hiddenRecheck}, nil
	}
	return t.trigger.Reconcile(ctx, p)
}

// Register implements operatorpkg's Controller.
func (t *podTrigger) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(t.name).
		For(&corev1.Pod{}).
		WithOptions(crcontroller.Options{MaxConcurrentReconciles: podTriggers}).
		Complete(reconcile.AsReconciler(m.GetClient(), t))
}
