package chaos

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// unrest is what is not at rest yet (L3), or not served although it could be (L1).
func (w *world) unrest() []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	claims, hosts, classes := map[string]*karpv1.NodeClaim{}, map[string]*v1beta1.SSHHost{}, map[string]*v1beta1.SSHNodeClass{}
	free, served := map[string]int{}, map[string]int{}
	for _, o := range w.api.list(kindClass) {
		class := o.(*v1beta1.SSHNodeClass)
		classes[class.Name] = class
		if class.DeletionTimestamp != nil {
			say("class %s is still being deleted", class.Name)
		}
	}
	for _, o := range w.api.list(kindHost) {
		h := o.(*v1beta1.SSHHost)
		hosts[h.StaticProviderID()] = h
		if claimable(h) {
			free[h.Namespace]++
		}
	}
	for _, o := range w.api.list(kindClaim) {
		claim := o.(*karpv1.NodeClaim)
		claims[string(claim.UID)] = claim
		switch h := hosts[claim.Status.ProviderID]; {
		case w.rules.orphan(claim.UID) && classes[claim.Spec.NodeClassRef.Name] == nil && claim.Status.ProviderID == "":
			// DanglingNodeClaim: it holds nothing, and a person deletes it
		case claim.DeletionTimestamp != nil:
			say("claim %s is still being deleted", claim.Name)
		case classes[claim.Spec.NodeClassRef.Name] == nil:
			say("claim %s is nobody's: class %s is gone", claim.Name, claim.Spec.NodeClassRef.Name)
		case h == nil || h.Status.ClaimRef == nil || h.Status.ClaimRef.UID != claim.UID:
			say("claim %s, %q, has no host", claim.Name, claim.Status.ProviderID)
		case !claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
			say("claim %s has not registered", claim.Name)
		default:
			served[claim.Labels[karpv1.NodePoolLabelKey]]++
		}
	}
	for _, h := range hosts {
		if trouble := w.restless(h, claims); trouble != "" {
			say("host %s/%s is %s: %s", h.Namespace, h.Name, host.State(h), trouble)
		}
	}
	for _, o := range w.api.list(kindNode) {
		node := o.(*corev1.Node)
		h := hosts[node.Spec.ProviderID]
		if node.DeletionTimestamp != nil || h == nil || h.Status.State != v1beta1.HostInUse {
			say("node %s (%s) is left over", node.Name, node.Spec.ProviderID)
		}
	}
	for _, o := range w.api.list(kindPool) {
		pool := o.(*karpv1.NodePool)
		class := classes[pool.Spec.Template.Spec.NodeClassRef.Name]
		if class == nil {
			say("pool %s has no class", pool.Name)
			continue
		}
		for _, inst := range w.instances {
			if inst.id.Instance == class.Spec.Instance && served[pool.Name] < w.demandOf(pool.Name) && free[inst.id.PoolNamespace] > 0 {
				say("pool %s has %d nodes of %d, and %s has %d free hosts", pool.Name, served[pool.Name], w.demandOf(pool.Name), inst.id.PoolNamespace, free[inst.id.PoolNamespace])
			}
		}
	}
	return out
}

func (w *world) restless(h *v1beta1.SSHHost, claims map[string]*karpv1.NodeClaim) string {
	m := w.machines[h.Spec.Address]
	m.mu.Lock()
	member := m.kubelet != nil && m.kubelet.host == string(h.UID)
	m.mu.Unlock()
	if h.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	switch host.State(h) {
	case v1beta1.HostAvailable:
		if h.Status.ClaimRef != nil || member {
			return fmt.Sprintf("its claim is %v, its kubelet runs: %t", h.Status.ClaimRef, member)
		}
	case v1beta1.HostInUse:
		claim := claims[string(h.Status.ClaimRef.UID)]
		if claim == nil || !member {
			return fmt.Sprintf("its claim exists: %t, its kubelet runs: %t", claim != nil, member)
		}
	case v1beta1.HostUnhealthy:
		ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason == "" || ready.Message == "" {
			return "it does not say why"
		}
	case v1beta1.HostMaintenance:
	default:
		return "not a state of rest"
	}
	return ""
}
