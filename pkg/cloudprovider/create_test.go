package cloudprovider

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// Which error Create answers decides whether karpenter deletes the NodeClaim: every row of the contract's table that Create can reach.
func TestCreateErrors(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Group: v1beta1.Group, Resource: "sshhosts"}, "a", nil)
	for _, test := range []struct {
		name    string
		objects []client.Object
		change  func(*env)
		claim   *karpv1.NodeClaim
		want    string
		events  int // CreateFailed events on the NodeClaim: only for what the inventory answered
	}{
		{"a free host", []client.Object{webClass(), freeHost("a")}, nil, claim("c"), "ok", 0},
		{"no host at all", []client.Object{webClass()}, nil, claim("c"), "InsufficientCapacity", 1},
		{"no host is free", []client.Object{webClass(), freeHost("a", usedBy("other", "uid-other"))}, nil, claim("c"), "InsufficientCapacity", 1},
		{"the only host is in maintenance (section 3 #37)", []client.Object{webClass(), freeHost("a", maintenance)}, nil, claim("c"), "InsufficientCapacity", 1},
		{"the only host failed a join and was not probed since (B3)", []client.Object{webClass(), freeHost("a", inState(v1beta1.HostUnhealthy))}, nil, claim("c"), "InsufficientCapacity", 1},
		{"no type fits the requests", []client.Object{webClass(), freeHost("a")}, nil, claim("c", requesting("cpu", "4")), "InsufficientCapacity", 1},
		{"no type fits the requirements", []client.Object{webClass(), freeHost("a")}, nil, claim("c", requiring(corev1.LabelArchStable, "arm64")), "InsufficientCapacity", 1},
		{"another segment is required", []client.Object{webClass(), freeHost("a")}, nil, claim("c", requiring(v1beta1.InstanceLabel, "seg-b")), "InsufficientCapacity", 1},
		{"a region that no node will have is required (section 2 #60)", []client.Object{webClass(), freeHost("a")}, nil, claim("c", requiring(corev1.LabelTopologyRegion, "eu")), "InsufficientCapacity", 1},
		{"class not found, the API server agrees", []client.Object{freeHost("a")}, nil, claim("c"), "InsufficientCapacity", 0},
		{"class not found in the cache only", []client.Object{webClass(), freeHost("a")},
			func(e *env) {
				e.cached = failing[*v1beta1.SSHNodeClass](apierrors.NewNotFound(schema.GroupResource{}, "web"))
			}, claim("c"), "ok", 0},
		{"class not found in the cache, the API server does not answer (section 2 #20)", []client.Object{webClass(), freeHost("a")},
			func(e *env) {
				e.cached = failing[*v1beta1.SSHNodeClass](apierrors.NewNotFound(schema.GroupResource{}, "web"))
				e.uncached = failing[*v1beta1.SSHNodeClass](errBlip)
			}, claim("c"), "retry", 0},
		{"class cannot be read (section 2 #20)", []client.Object{webClass(), freeHost("a")}, func(e *env) { e.cached = failing[*v1beta1.SSHNodeClass](errBlip) }, claim("c"), "retry", 0},
		{"class not ready", []client.Object{webClass(setReady(metav1.ConditionFalse, "ProfileInvalid")), freeHost("a")}, nil, claim("c"), "NodeClassNotReady", 0},
		{"class being deleted", []client.Object{webClass(deleting), freeHost("a")}, nil, claim("c"), "NodeClassNotReady", 0},
		{"class ready unknown", []client.Object{webClass(setReady(metav1.ConditionUnknown, "Waiting")), freeHost("a")}, nil, claim("c"), "CreateError NodeClassReadinessUnknown", 0},
		{"class never checked", []client.Object{webClass(setReady("", "")), freeHost("a")}, nil, claim("c"), "CreateError NodeClassReadinessUnknown", 0},
		{"class made again for another instance", []client.Object{webClass(ofInstance("seg-b")), freeHost("a")}, nil, claim("c"), "retry", 0},
		{"the claim names a machine of another instance", []client.Object{webClass(), freeHost("a")}, nil, claim("c", providerID("kpssh://elsewhere/a")), "retry", 0},
		{"hosts held by the claim cannot be read", []client.Object{webClass(), freeHost("a")},
			func(e *env) {
				e.uncached.List = func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return errBlip }
			}, claim("c"), "retry", 1},
		{"the claim cannot be written", []client.Object{webClass(), freeHost("a")},
			func(e *env) {
				e.cached.SubResourcePatch = func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					return errBlip
				}
			}, claim("c"), "retry", 1},
		{"every write conflicts: the next host, then none", []client.Object{webClass(), freeHost("a")},
			func(e *env) {
				e.cached.SubResourcePatch = func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
					return conflict
				}
			}, claim("c"), "InsufficientCapacity", 1},
		{"a NodeClaim without a UID", []client.Object{webClass(), freeHost("a")}, nil, claim("c", noUID), "retry", 1},
		{"the inventory is not complete", []client.Object{webClass(), freeHost("a")}, func(e *env) { e.hosts = unsynced{e.inventory} }, claim("c"), "retry", 0},
		{"the claim's host is leaving", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), inState(v1beta1.HostLeaving)), freeHost("b")}, nil, claim("c"), "InsufficientCapacity", 1},
		{"an invalid selector", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Resembles"}}}
		}), freeHost("a")}, nil, claim("c"), "retry", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, test.objects...)
			before := e.claimedHosts(t)
			if test.change != nil {
				test.change(e)
			}
			created, err := e.Create(t.Context(), test.claim)
			g.Expect(verdict(err)).To(Equal(test.want), "%v", err)
			g.Expect(e.events.lines()).To(HaveLen(test.events))
			if test.want == "ok" {
				g.Expect(created.Status.ProviderID).To(Equal("kpssh://pool/a"))
			} else {
				g.Expect(created).To(BeNil())
				g.Expect(e.claimedHosts(t)).To(Equal(before), "a refusal claims nothing")
			}
		})
	}
}

// unsynced is an inventory that has not seen every host yet.
type unsynced struct{ *host.Inventory }

func (unsynced) Synced() bool { return false }

// A4, A13: about a claim that is not ours, Create has no opinion that karpenter would act on.
func TestCreateRefusesForeignClaimsWithARetryableError(t *testing.T) {
	for name, foreign := range foreignRefs() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, webClass(), freeHost("a"))
			_, err := e.Create(t.Context(), claim("c", classRef(foreign)))
			g.Expect(verdict(err)).To(Equal("retry"))
			g.Expect(err).To(MatchError(errNotOurs))
			g.Expect(e.claimedHosts(t)).To(BeEmpty())
			g.Expect(e.events.lines()).To(BeEmpty())
		})
	}
	_, err := newEnv(t).Create(t.Context(), nil)
	NewWithT(t).Expect(verdict(err)).To(Equal("retry"))
}

// Section 2 #22: whatever is missing here, karpenter launches a second node for.
func TestCreateReturnsEverythingKarpenterSchedulesOn(t *testing.T) {
	g := NewWithT(t)
	class := webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"a": "b"} })
	e := newEnv(t, class, freeHost("a", inZone("hall-1"), arch("arm64"), with("nvidia.com/gpu", "2"), with("pods", "40")))
	e.clock.SetTime(now)
	created, err := e.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created.Name).To(Equal("c"))
	g.Expect(created.Labels).To(Equal(map[string]string{
		corev1.LabelInstanceTypeStable: "big", corev1.LabelArchStable: "arm64", corev1.LabelOSStable: "linux",
		corev1.LabelTopologyZone: "hall-1", karpv1.CapacityTypeLabelKey: "on-demand",
		v1beta1.InstanceLabel: "default", v1beta1.HostClassLabel: "big",
	}))
	g.Expect(created.Annotations).To(Equal(map[string]string{v1beta1.NodeClassHashAnnotation: class.JoinHash(), v1beta1.NodeClassHashVersionAnnotation: "v1"}))
	g.Expect(created.Status.ProviderID).To(Equal("kpssh://pool/a"))
	g.Expect(created.CreationTimestamp.Time).To(BeTemporally("==", now), "section 3 #38: the claim's age, not the host's")
	for name, quantity := range map[corev1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "40", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "2"} {
		got := created.Status.Capacity[name]
		g.Expect(got.Cmp(resource.MustParse(quantity))).To(BeZero(), "%s is %s", name, got.String())
		g.Expect(created.Status.Allocatable).To(HaveKey(name))
	}
	g.Expect(created.Status.Allocatable.Cpu().String()).To(Equal("3920m"))
	types, err := e.GetInstanceTypes(t.Context(), nodePool(ref(v1beta1.Group, "SSHNodeClass", "web")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(types[0].Allocatable()).To(Equal(created.Status.Allocatable), "as promised is as launched")

	h := e.host(t, "a")
	g.Expect(h.Status.State).To(Equal(v1beta1.HostClaimed))
	g.Expect(h.Status.ClaimRef.UID).To(BeEquivalentTo("uid-c"))
	g.Expect(h.Status.ClaimRef.NodeClass).To(Equal("web"))
	g.Expect(h.Status.ClaimRef.InstanceType).To(Equal("big"))
	g.Expect(e.events.lines()).To(BeEmpty())
}

func TestCreatePicksTheCheapestMachineThatFits(t *testing.T) {
	fleet := []client.Object{
		webClass(), profile("2"),
		freeHost("small-gpu", sized("2", "6Gi"), with("nvidia.com/gpu", "1")),
		freeHost("small-more-memory", sized("2", "8Gi")),
		freeHost("small-b", sized("2", "4Gi"), inZone("east")),
		freeHost("small-installed", sized("2", "4Gi"), inZone("west"), marked("kubelet@2")),
		freeHost("medium-arm", sized("4", "16Gi"), arch("arm64")),
		freeHost("large", sized("16", "64Gi")),
	}
	for _, test := range []struct {
		name  string
		claim *karpv1.NodeClaim
		want  string
	}{
		{"the smallest, and of those one that is installed", claim("c"), "small-installed"},
		{"a zone", claim("c", requiring(corev1.LabelTopologyZone, "east")), "small-b"},
		{"more memory before a GPU", claim("c", requesting("memory", "5Gi")), "small-more-memory"},
		{"a GPU where one is asked for", claim("c", requesting("nvidia.com/gpu", "1")), "small-gpu"},
		{"an architecture", claim("c", requiring(corev1.LabelArchStable, "arm64")), "medium-arm"},
		{"the type karpenter chose", claim("c", requesting("cpu", "10"), requiring(v1beta1.HostClassLabel, "big")), "large"},
		{"the class name is the smallest shape", claim("c", requiring(corev1.LabelInstanceTypeStable, "big")), "small-installed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, fleet...)
			created, err := e.Create(t.Context(), test.claim)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(created.Status.ProviderID).To(Equal("kpssh://pool/" + test.want))
		})
	}
}

func TestCreateIsIdempotentPerClaim(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(), freeHost("a"), freeHost("b"))
	first, err := e.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	second, err := e.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second).To(Equal(first))
	g.Expect(e.claimedHosts(t)).To(HaveLen(1))
}

// S4, found by seeds: karpenter, still ending a host's former NodeClaim, deleted the Node of its next one, for both have one provider ID.
func TestAHostIsNotClaimedWhileItsFormerNodeClaimExists(t *testing.T) {
	former := claim("former", providerID("kpssh://pool/a"))
	e := newEnv(t, webClass(), freeHost("a"), freeHost("b"), former)
	created, err := e.Create(t.Context(), claim("c"))
	if err != nil || created.Status.ProviderID != "kpssh://pool/b" {
		t.Fatalf("got %v, %v; want host b", created, err)
	}
	if _, err := e.Create(t.Context(), claim("d")); verdict(err) != "InsufficientCapacity" || !strings.Contains(err.Error(), "NodeClaim former") {
		t.Errorf("got %v, want one that names the former NodeClaim", err)
	}
	if err := e.api.Delete(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "former"}, Spec: corev1.NodeSpec{ProviderID: "kpssh://pool/a"}}
	if err := e.api.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), claim("d")); verdict(err) != "InsufficientCapacity" || !strings.Contains(err.Error(), "Node former") {
		t.Errorf("got %v, want one that names the former Node", err)
	}
	if err := e.api.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if created, err := e.Create(t.Context(), claim("d")); err != nil || created.Status.ProviderID != "kpssh://pool/a" {
		t.Errorf("got %v, %v; want host a", created, err)
	}
}

// A claim that has its host must not be told that there is no capacity or that its class is not ready: karpenter would drop it, and
// the machine would join for nobody.
func TestCreateKeepsTheHostWhateverBecameOfTheClass(t *testing.T) {
	for name, class := range map[string]*v1beta1.SSHNodeClass{
		"not ready": webClass(setReady(metav1.ConditionFalse, "ProfileInvalid")),
		"deleting":  webClass(deleting),
		"selects it no longer": webClass(func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "where"}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, class, freeHost("a", usedBy("c", "uid-c")))
			created, err := e.Create(t.Context(), claim("c"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(created.Status.ProviderID).To(Equal("kpssh://pool/a"))
		})
	}
}

func TestAdoptedIdentityIsReturnedIfKnown(t *testing.T) {
	g := NewWithT(t)
	adopt := webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt })
	e := newEnv(t, adopt, freeHost("a", usedBy("c", "uid-c"), withID("eks-hybrid:///mi-0123")), freeHost("b"))
	created, err := e.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created.Status.ProviderID).To(Equal("eks-hybrid:///mi-0123"))
	created, err = e.Create(t.Context(), claim("d"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created.Status.ProviderID).To(Equal("kpssh://pool/b"), "the static ID until the Node appears")
}

func TestRememberedIdentityIsReturnedWhereItIsAdopted(t *testing.T) {
	for source, want := range map[v1beta1.ProviderIDSource]string{v1beta1.ProviderIDAdopt: "eks-hybrid:///mi-0123", v1beta1.ProviderIDStatic: "kpssh://pool/a"} {
		g := NewWithT(t)
		class := webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.ProviderIDSource = source })
		e := newEnv(t, class, freeHost("a", func(h *v1beta1.SSHHost) {
			h.Status.Adopted = &v1beta1.AdoptedIdentity{ProviderID: "eks-hybrid:///mi-0123"}
		}))
		created, err := e.Create(t.Context(), claim("c"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(created.Status.ProviderID).To(Equal(want), string(source))
		for _, id := range []string{want, "kpssh://pool/a"} {
			got, err := e.Get(t.Context(), id)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got.Name).To(Equal("c"))
		}
		listed, err := e.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		ids := map[string]bool{}
		for _, nodeClaim := range listed {
			ids[nodeClaim.Status.ProviderID] = true
		}
		g.Expect(ids).To(And(HaveKey(want), HaveKey("kpssh://pool/a")), "to karpenter's garbage collection both stand for the machine")
	}
}

// D16, section 3 #13: the cache has not shown the claim's own host yet, and there is another free one.
func TestD16OneClaimOneHostOnALaggingCache(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(), freeHost("a"), freeHost("b"))
	// Another process of this instance claimed, and this one has not heard of it.
	ahead := newProvider(e)
	first, err := ahead.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	second, err := e.Create(t.Context(), claim("c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.Status.ProviderID).To(Equal(first.Status.ProviderID))
	g.Expect(e.claimedHosts(t)).To(HaveLen(1))
}

// newProvider is a second process over the same API server, with a cache of its own that holds what there is now.
func newProvider(e *env) *CloudProvider {
	inventory := host.NewInventory("pool", intercepted(e.api, &e.cached), intercepted(e.api, &e.uncached), e.clock)
	list := &v1beta1.SSHHostList{}
	if err := e.api.List(context.Background(), list); err != nil {
		panic(err)
	}
	for index := range list.Items {
		inventory.Observe(&list.Items[index])
	}
	return New("default", e.kube, e.live, inventory, e.mine, e.events, e.clock)
}

// D16, second half: 50 claims, 50 hosts, two processes that both believe to lead. Safety: a host has one claim, a claim one host.
// Liveness: with both retrying as karpenter does, all are served.
func TestD16FiftyClaimsFiftyHostsTwoProcesses(t *testing.T) {
	g := NewWithT(t)
	const n = 50
	objects := []client.Object{webClass()}
	for index := range n {
		objects = append(objects, freeHost(fmt.Sprintf("host-%02d", index)))
	}
	e := newEnv(t, objects...)
	providers := []*CloudProvider{e.CloudProvider, newProvider(e)}
	got := make([]string, n)
	var wg sync.WaitGroup
	for index := range n {
		wg.Go(func() {
			for attempt := 0; got[index] == "" && attempt < 1000; attempt++ {
				created, err := providers[(index+attempt)%2].Create(t.Context(), claim(fmt.Sprintf("c-%02d", index)))
				if err == nil {
					got[index] = created.Status.ProviderID
				}
			}
		})
	}
	wg.Wait()
	served := map[string]bool{}
	for _, id := range got {
		served[id] = true
	}
	g.Expect(served).To(HaveLen(n))
	g.Expect(served).NotTo(HaveKey(""))
	g.Expect(e.claimedHosts(t)).To(HaveLen(n))
}

func TestNoHostSaysWhatWasLookedFor(t *testing.T) {
	for _, test := range []struct {
		name    string
		objects []client.Object
		claim   *karpv1.NodeClaim
		want    string
	}{
		{"nothing selected", []client.Object{webClass()}, claim("c"), "the class selects no SSHHost that could be offered"},
		{"nothing fits", []client.Object{webClass(), freeHost("a")}, claim("c", requesting("cpu", "64")), "none of the 1 instance types meets its requirements and requests"},
		{"nothing free", []client.Object{webClass(), freeHost("a", usedBy("o", "uid-o"))}, claim("c"), "no SSHHost is free among those of big"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, test.objects...)
			_, err := e.Create(t.Context(), test.claim)
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			g.Expect(e.events.lines()).To(ConsistOf(And(HavePrefix("Warning CreateFailed "), ContainSubstring(test.want))))
		})
	}
}
