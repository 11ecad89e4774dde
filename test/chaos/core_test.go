package chaos

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// Time-outs of karpenter core.
const (
	launchTimeout       = 5 * time.Minute
	registrationTimeout = 15 * time.Minute
	collectEvery        = 2 * time.Minute
	minDrainTime        = 5 * time.Second
)

// core stands in for karpenter core: it does to NodePools, NodeClaims and Nodes what core's controllers of the same names do, reading
// the same caches and writing through the same client. A pool's demand is a number of nodes, instead of pods.
type core struct {
	p        *process
	provider karpcloud.CloudProvider
	claims   *queue
	nodes    *queue

	mu       sync.Mutex
	launched map[types.UID]*karpv1.NodeClaim // what Create said, until the status has it
	made     map[string]time.Time            // created, and maybe not in the cache yet
	draining map[types.UID]time.Time
	count    int
}

func newCore(p *process, provider karpcloud.CloudProvider) *core {
	c := &core{p: p, provider: provider, launched: map[types.UID]*karpv1.NodeClaim{}, made: map[string]time.Time{}, draining: map[types.UID]time.Time{}}
	c.claims = newQueue(p, "claim", c.reconcileClaim)
	c.nodes = newQueue(p, "node", c.reconcileNode)
	return c
}

// run is the singleton controllers: provisioner, disruption, garbage collection, NodePool counter.
func (c *core) run(ctx context.Context) {
	for tick := 0; ; tick++ {
		if c.p.pass(ctx, c.p.w.dice.roll(c.p.name+"tick").between(4*time.Second, 6*time.Second)) != nil {
			return
		}
		c.provision(ctx)
		if tick%4 == 2 {
			c.disrupt(ctx)
		}
		if tick%4 == 0 {
			c.tally(ctx)
		}
		if tick%int(collectEvery/(5*time.Second)) == 1 {
			c.collect(ctx)
		}
	}
}

func (c *core) pools(ctx context.Context) []karpv1.NodePool {
	list := &karpv1.NodePoolList{}
	if c.p.kube.List(ctx, list) != nil {
		return nil
	}
	return list.Items
}

func (c *core) listClaims(ctx context.Context) []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	if c.p.kube.List(ctx, list) != nil {
		return nil
	}
	return list.Items
}

// foreign is how many nodes serve a pool that are not this instance's, and run pods.
func (c *core) foreign(ctx context.Context, pool string) int {
	list := &corev1.NodeList{}
	if c.p.kube.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}) != nil {
		return 0
	}
	n := 0
	for i := range list.Items {
		if _, own := list.Items[i].Labels[ownership.ClassLabel]; !own && isReady(&list.Items[i]) {
			n++
		}
	}
	return n
}

// provision makes NodeClaims for what is in demand. Like core, it waits while a NodeClaim has no provider ID.
func (c *core) provision(ctx context.Context) {
	claims := c.listClaims(ctx)
	alive := map[string]int{}
	c.mu.Lock()
	for i := range claims {
		delete(c.made, claims[i].Name)
	}
	for name, at := range c.made {
		if time.Since(at) > time.Minute {
			delete(c.made, name)
		}
	}
	inFlight := len(c.made)
	c.mu.Unlock()
	if inFlight > 0 {
		return
	}
	for i := range claims {
		if claims[i].DeletionTimestamp.IsZero() {
			if claims[i].Status.ProviderID == "" {
				return
			}
			alive[claims[i].Labels[karpv1.NodePoolLabelKey]]++
		}
	}
	for _, pool := range c.pools(ctx) {
		missing := c.p.w.demandOf(pool.Name) - alive[pool.Name] - c.foreign(ctx, pool.Name)
		if missing <= 0 || !pool.DeletionTimestamp.IsZero() {
			continue
		}
		if !c.ready(ctx, &pool) {
			continue
		}
		offered, err := c.provider.GetInstanceTypes(ctx, &pool)
		if err != nil || !slices.ContainsFunc(offered, func(t *karpcloud.InstanceType) bool { return len(t.Offerings.Available()) > 0 }) {
			continue
		}
		for range min(missing, 2) {
			c.create(ctx, &pool)
		}
	}
}

// ready is core's nodepool.readiness: a pool is not used while its class is not ready, or goes.
func (c *core) ready(ctx context.Context, pool *karpv1.NodePool) bool {
	class := &v1beta1.SSHNodeClass{}
	if c.p.kube.Get(ctx, types.NamespacedName{Name: pool.Spec.Template.Spec.NodeClassRef.Name}, class) != nil {
		return false
	}
	return class.DeletionTimestamp.IsZero() && class.StatusConditions().Get(status.ConditionReady).IsTrue()
}

func (c *core) create(ctx context.Context, pool *karpv1.NodePool) {
	c.mu.Lock()
	c.count++
	name := pool.Name + "-" + c.p.name + "-" + number(c.count)
	c.mu.Unlock()
	ref := *pool.Spec.Template.Spec.NodeClassRef
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool.Name, ownership.ClassLabel: ref.Name}},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: &ref},
	}
	if c.p.kube.Create(ctx, claim) == nil {
		c.mu.Lock()
		c.made[name] = time.Now()
		c.mu.Unlock()
	}
}

// disrupt deletes a NodeClaim more than is in demand, after it tainted its Node.
func (c *core) disrupt(ctx context.Context) {
	claims, nodes := c.listClaims(ctx), &corev1.NodeList{}
	for _, pool := range c.pools(ctx) {
		var ours []*karpv1.NodeClaim
		for i := range claims {
			if claims[i].Labels[karpv1.NodePoolLabelKey] == pool.Name && claims[i].DeletionTimestamp.IsZero() &&
				claims[i].StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
				ours = append(ours, &claims[i])
			}
		}
		if len(ours) == 0 || len(ours)+c.foreign(ctx, pool.Name) <= c.p.w.demandOf(pool.Name) {
			continue
		}
		victim := ours[len(ours)-1]
		if c.p.kube.List(ctx, nodes, client.MatchingFields{"spec.providerID": victim.Status.ProviderID}) != nil || len(nodes.Items) != 1 {
			continue
		}
		if c.taint(ctx, &nodes.Items[0]) == nil {
			_ = c.p.kube.Delete(ctx, victim)
		}
		return
	}
}

func (c *core) taint(ctx context.Context, node *corev1.Node) error {
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.DisruptedNoScheduleTaint) }) {
		return nil
	}
	stored := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, karpv1.DisruptedNoScheduleTaint)
	return c.p.kube.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
}

// tally writes the NodePools' status, as several of core's controllers do.
func (c *core) tally(ctx context.Context) {
	for _, pool := range c.pools(ctx) {
		stored := pool.DeepCopy()
		n := int64(0)
		for _, claim := range c.listClaims(ctx) {
			if claim.Labels[karpv1.NodePoolLabelKey] == pool.Name {
				n++
			}
		}
		pool.Status.Nodes = &n
		if stored.Status.Nodes == nil || *stored.Status.Nodes != n {
			_ = c.p.kube.Status().Patch(ctx, &pool, client.MergeFrom(stored))
		}
	}
}

// collect deletes registered NodeClaims whose machine the provider does not list, if their Node is not Ready.
func (c *core) collect(ctx context.Context) {
	claims := c.listClaims(ctx)
	listed, err := c.provider.List(ctx)
	if err != nil {
		return
	}
	known := map[string]bool{}
	for _, l := range listed {
		if l.DeletionTimestamp.IsZero() {
			known[l.Status.ProviderID] = true
		}
	}
	for i := range claims {
		claim := &claims[i]
		if !claim.DeletionTimestamp.IsZero() || known[claim.Status.ProviderID] || !claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
			continue
		}
		nodes := &corev1.NodeList{}
		if c.p.kube.List(ctx, nodes, client.MatchingFields{"spec.providerID": claim.Status.ProviderID}) != nil {
			continue
		}
		if len(nodes.Items) == 1 && isReady(&nodes.Items[0]) {
			continue
		}
		c.p.w.rules.collected.Add(1)
		_ = c.p.kube.Delete(ctx, claim)
	}
}

func isReady(n *corev1.Node) bool {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *core) nodeChanged(n *corev1.Node) {
	c.nodes.add(n.Name)
	for _, o := range contents(c.p.stores[kindClaim]) {
		if n.Spec.ProviderID != "" && o.(*karpv1.NodeClaim).Status.ProviderID == n.Spec.ProviderID {
			c.claims.add(o.GetName())
		}
	}
}

func retried(err error) (time.Duration, error) {
	switch {
	case apierrors.IsConflict(err):
		return time.Second, nil
	case apierrors.IsNotFound(err):
		return 0, nil
	}
	return 0, err
}

// strip removes the termination finalizer.
func (c *core) strip(ctx context.Context, o client.Object) (time.Duration, error) {
	stored := o.DeepCopyObject().(client.Object)
	controllerutil.RemoveFinalizer(o, karpv1.TerminationFinalizer)
	return retried(c.p.kube.Patch(ctx, o, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{})))
}
