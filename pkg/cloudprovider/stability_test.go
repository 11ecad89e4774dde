package cloudprovider

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
)

// A7, section 3 #21, as a property: whatever people and machines do to hosts and to the class,
//   - no node is taken for one whose instance type is gone,
//   - the bare name of a host class is there while the class has a host that could be offered,
//   - what is offered can be claimed, and what is not offered cannot (section 2 #24).
func TestInstanceTypesAreStableUnderRandomChange(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := &world{WithT: NewWithT(t), t: t, env: newEnv(t, webClass()), random: rand.New(rand.NewPCG(seed, 0)), live: map[string]*karpv1.NodeClaim{}}
			for range 60 {
				w.step()
				w.observe(t)
				w.check()
			}
		})
	}
}

// world is a fleet that changes at random, and the NodeClaims that live in it as karpenter knows them.
type world struct {
	*WithT
	*env
	t      *testing.T
	random *rand.Rand
	live   map[string]*karpv1.NodeClaim
	made   int
	log    []string
}

func (w *world) check() {
	w.t.Helper()
	types, err := w.GetInstanceTypes(w.t.Context(), webPool)
	w.Expect(err).NotTo(HaveOccurred())
	names := map[string]bool{}
	for _, each := range types {
		w.Expect(names).NotTo(HaveKey(each.Name), "two types of one name")
		names[each.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(w.live)) {
		w.Expect(instanceTypeFound(types, w.live[name])).To(BeTrue(), "NodeClaim %s (%v) would drift: %v\nafter %v", name, w.live[name].Labels, offeredNow(types), w.log)
	}
	class := w.class()
	selected, err := w.inventory.Selected(class)
	w.Expect(err).NotTo(HaveOccurred())
	rejected := map[string]bool{}
	for _, each := range instancetype.Rejected(class, selected) {
		rejected[each.Host] = true
	}
	for _, h := range selected {
		if !rejected[h.Name] {
			w.Expect(names).To(HaveKey(h.HostClass()), "%s has host %s\nafter %v", h.HostClass(), h.Name, w.log)
		}
	}
}

// instanceTypeFound is the negation of karpenter's InstanceTypeNotFound drift (pkg/controllers/nodeclaim/disruption/drift.go).
func instanceTypeFound(types []*karpcloud.InstanceType, nodeClaim *karpv1.NodeClaim) bool {
	for _, each := range types {
		if each.Name == nodeClaim.Labels[corev1.LabelInstanceTypeStable] {
			return each.Offerings.HasCompatible(scheduling.NewLabelRequirements(nodeClaim.Labels))
		}
	}
	return false
}

func (w *world) step() {
	steps := []func(){w.addHost, w.addHost, w.removeHost, w.relabel, w.relabel, w.resize, w.reprobe, w.toggleMaintenance, w.claim, w.claim, w.claim, w.release, w.editClass}
	steps[w.random.IntN(len(steps))]()
}

func oneOf[T any](w *world, of ...T) T { return of[w.random.IntN(len(of))] }

func (w *world) did(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// any is one host, or nil.
func (w *world) any(fits func(*v1beta1.SSHHost) bool) *v1beta1.SSHHost {
	var hosts []*v1beta1.SSHHost
	for _, h := range w.inventory.All() {
		if fits == nil || fits(h) {
			hosts = append(hosts, h)
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	slices.SortFunc(hosts, func(a, b *v1beta1.SSHHost) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) })
	return oneOf(w, hosts...).DeepCopy()
}

func unclaimed(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil }

func (w *world) addHost() {
	w.made++
	h := freeHost(fmt.Sprintf("host-%02d", w.made), sized(oneOf(w, "2", "4", "8", "0"), oneOf(w, "4Gi", "16Gi", "350Mi")), arch(oneOf(w, "amd64", "amd64", "arm64", "")), inState(oneOf(w, v1beta1.HostAvailable, v1beta1.HostAvailable, v1beta1.HostUnhealthy)))
	w.setLabels(h)
	w.Expect(w.api.Create(w.t.Context(), h)).To(Succeed())
	w.did("add %s %v %v %s", h.Name, h.Labels, h.Spec.Capacity.Cpu(), h.Status.ObservedArch)
}

func (w *world) setLabels(h *v1beta1.SSHHost) {
	h.Labels = map[string]string{v1beta1.HostClassLabel: oneOf(w, "big", "small", "")}
	if zone := oneOf(w, "", "east", "west"); zone != "" {
		h.Labels[corev1.LabelTopologyZone] = zone
	}
	if rack := oneOf(w, "", "1"); rack != "" {
		h.Labels["rack"] = rack
	}
}

func (w *world) removeHost() {
	if h := w.any(unclaimed); h != nil { // a finalizer keeps claimed ones
		w.Expect(w.api.Delete(w.t.Context(), h)).To(Succeed())
		w.inventory.Forget(h)
		w.did("remove %s", h.Name)
	}
}

func (w *world) relabel() {
	if h := w.any(nil); h != nil {
		w.setLabels(h)
		w.update(h)
		w.did("relabel %s %v", h.Name, h.Labels)
	}
}

func (w *world) resize() {
	if h := w.any(nil); h != nil {
		sized(oneOf(w, "1", "2", "8", "0", "-1"), oneOf(w, "1Gi", "16Gi", "100Mi"))(h)
		w.update(h)
		w.did("resize %s %v", h.Name, h.Spec.Capacity)
	}
}

func (w *world) toggleMaintenance() {
	if h := w.any(nil); h != nil {
		if h.InMaintenance() {
			h.Annotations = nil
		} else {
			maintenance(h)
		}
		w.update(h)
		w.did("maintenance %s %t", h.Name, h.InMaintenance())
	}
}

func (w *world) reprobe() {
	if h := w.any(unclaimed); h != nil { // claimed ones are not probed
		h.Status.ObservedArch, h.Status.State = oneOf(w, "amd64", "arm64", ""), oneOf(w, v1beta1.HostAvailable, v1beta1.HostUnhealthy)
		w.Expect(w.api.Status().Update(w.t.Context(), h)).To(Succeed())
		w.did("probe %s %s %s", h.Name, h.Status.ObservedArch, h.Status.State)
	}
}

func (w *world) update(h *v1beta1.SSHHost) {
	w.Expect(w.api.Update(w.t.Context(), h)).To(Succeed())
}

func (w *world) class() *v1beta1.SSHNodeClass {
	class := webClass()
	w.Expect(w.api.Get(w.t.Context(), client.ObjectKeyFromObject(class), class)).To(Succeed())
	return class
}

func (w *world) editClass() {
	class := w.class()
	class.Generation++
	class.Spec.Zone = oneOf(w, "", "hall-1")
	class.Spec.HostSelector = oneOf(w, nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}})
	class.Spec.KubeReserved = oneOf(w, nil, corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")})
	w.Expect(w.api.Update(w.t.Context(), class)).To(Succeed())
	w.did("class zone %q selector %v reserved %v", class.Spec.Zone, class.Spec.HostSelector, class.Spec.KubeReserved)
}

// claim asks for one offering, as karpenter would, and holds the provider to what it offered.
func (w *world) claim() {
	types, err := w.GetInstanceTypes(w.t.Context(), webPool)
	w.Expect(err).NotTo(HaveOccurred())
	if len(types) == 0 {
		return
	}
	wanted := oneOf(w, types...)
	offering := oneOf(w, wanted.Offerings...)
	w.made++
	nodeClaim := claim(fmt.Sprintf("claim-%02d", w.made), requiring(corev1.LabelInstanceTypeStable, wanted.Name))
	available := len(wanted.Offerings.Available()) > 0
	if zone := offering.Requirements.Get(corev1.LabelTopologyZone); zone.Operator() == corev1.NodeSelectorOpIn {
		requiring(corev1.LabelTopologyZone, zone.Any())(nodeClaim)
		available = offering.Available
	}
	created, err := w.Create(w.t.Context(), nodeClaim)
	if !available {
		w.Expect(verdict(err)).To(Equal("InsufficientCapacity"), "%v\nafter %v", err, w.log)
		return
	}
	w.Expect(err).NotTo(HaveOccurred(), "%s %s was offered\nafter %v", wanted.Name, offering.Zone(), w.log)
	w.Expect(created.Labels[corev1.LabelInstanceTypeStable]).To(Equal(wanted.Name))
	w.Expect(created.Status.Allocatable).To(Equal(wanted.Allocatable()))
	w.live[created.Name] = created
	w.did("claim %s %s", created.Status.ProviderID, wanted.Name)
}

func (w *world) release() {
	h := w.any(func(h *v1beta1.SSHHost) bool { return !unclaimed(h) })
	if h == nil {
		return
	}
	nodeClaim := claim(h.Status.ClaimRef.Name, providerID(h.EffectiveProviderID()))
	w.Expect(w.Delete(w.t.Context(), nodeClaim)).To(Succeed())
	w.check() // leaving, it still is a node
	_, err := w.inventory.Update(w.t.Context(), h.Name, func(h *v1beta1.SSHHost) error {
		host.MarkReleased(h, host.Release{State: v1beta1.HostAvailable}, w.clock.Now())
		return nil
	})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(verdict(w.Delete(w.t.Context(), nodeClaim))).To(Equal("NodeClaimNotFound"))
	delete(w.live, nodeClaim.Name)
	w.did("release %s", h.Name)
}
