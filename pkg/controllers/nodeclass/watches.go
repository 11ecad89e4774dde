package nodeclass

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// gather is how long changes of hosts are collected before the class is looked at: claims and releases come in bursts, and the queue
// merges what waits in it.
const gather = 500 * time.Millisecond

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// watch adds what a class's status depends on.
func (c *Controller) watch(b *builder.Builder) *builder.Builder {
	return b.
		// Own status writes come back as events that find nothing to do; only spec and metadata matter.
		For(&v1beta1.SSHNodeClass{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, finalizersChanged))).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			c.Inventory.Subscribe(func(was, is *v1beta1.SSHHost) { c.hostChanged(q, was, is) })
			return nil
		})).
		Watches(&v1beta1.SSHJoinProfile{}, handler.EnqueueRequestsFromMapFunc(c.ofProfile), builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, finalizersChanged))).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.ofSecret)).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(c.ofClaim), builder.WithPredicates(gone)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.ofNode), builder.WithPredicates(gone))
}

var (
	finalizersChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return len(e.ObjectOld.GetFinalizers()) != len(e.ObjectNew.GetFinalizers()) ||
			e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	}}
	gone = predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
)

// hostChanged wakes the classes that select a host, when that changes a count. A probe's heartbeat changes none (section 2 #37).
func (c *Controller) hostChanged(q queue, was, is *v1beta1.SSHHost) {
	if !counts(was, is) {
		return
	}
	for _, name := range c.index.matching(func(_ string, r references) bool { return selects(r.hosts, was) || selects(r.hosts, is) }) {
		q.AddAfter(request(name), gather)
	}
}

// counts tells whether a host's change changes how many hosts, free hosts, or nodes of which version some class has, or which scripts may run on
// them.
func counts(was, is *v1beta1.SSHHost) bool {
	if was == nil || is == nil || was.UID != is.UID || !maps.Equal(was.Labels, is.Labels) {
		return true
	}
	if was.Spec.ExecMode != is.Spec.ExecMode || !slices.Equal(was.Spec.TrustedSigners, is.Spec.TrustedSigners) {
		return true
	}
	wasFree, _ := host.Claimable(was)
	isFree, _ := host.Claimable(is)
	return wasFree != isFree || (was.Status.State == v1beta1.HostInUse) != (is.Status.State == v1beta1.HostInUse) ||
		was.Status.InstalledProfile != is.Status.InstalledProfile
}

func selects(selector labels.Selector, h *v1beta1.SSHHost) bool {
	return h != nil && selector != nil && selector.Matches(labels.Set(h.Labels))
}

func (c *Controller) ofProfile(_ context.Context, o client.Object) []reconcile.Request {
	return requests(c.index.matching(func(_ string, r references) bool { return r.profile == o.GetName() }))
}

func (c *Controller) ofSecret(_ context.Context, o client.Object) []reconcile.Request {
	if o.GetNamespace() != c.Inventory.Namespace() {
		return nil
	}
	return requests(c.index.matching(func(_ string, r references) bool { return r.secret == o.GetName() }))
}

// ofClaim wakes a class that waits for the end of its claims.
func (c *Controller) ofClaim(_ context.Context, o client.Object) []reconcile.Request {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return nil
	}
	named, _ := classOf(claim)
	return c.ending(named)
}

// ofNode wakes a class that waits for the end of its Nodes.
func (c *Controller) ofNode(_ context.Context, o client.Object) []reconcile.Request {
	return c.ending(o.GetLabels()[ownership.ClassLabel])
}

func (c *Controller) ending(class string) []reconcile.Request {
	return requests(c.index.matching(func(name string, r references) bool { return r.deleting && name == class }))
}

func requests(names []string) []reconcile.Request {
	all := make([]reconcile.Request, 0, len(names))
	for _, name := range names {
		all = append(all, request(name))
	}
	return all
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}
