package cloudprovider

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

var webPool = nodePool(ref(v1beta1.Group, "SSHNodeClass", "web"))

// offeredNow is `name zone,zone` of every type, an unavailable zone in brackets.
func offeredNow(types []*karpcloud.InstanceType) []string {
	lines := []string{}
	for _, t := range types {
		line := t.Name
		for _, offering := range t.Offerings {
			switch zone := offering.Requirements.Get(corev1.LabelTopologyZone); {
			case zone.Operator() == corev1.NodeSelectorOpExists:
				line += " [*]"
			case offering.Available:
				line += " " + zone.Any()
			default:
				line += " [" + zone.Any() + "]"
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func TestGetInstanceTypes(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{}, "web")
	for _, test := range []struct {
		name    string
		objects []client.Object
		change  func(*env)
		want    []string
		verdict string
	}{
		{"a free host", []client.Object{webClass(), freeHost("a")}, nil, []string{"big pool"}, "ok"},
		{"the class's zone", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.Zone = "hall-1" }), freeHost("a"), freeHost("b", inZone("hall-2"))}, nil, []string{"big hall-1 hall-2"}, "ok"},
		{"A7: two hosts, one in use and both put into maintenance", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), maintenance), freeHost("b", maintenance)}, nil, []string{"big [pool] [*]"}, "ok"},
		{"A7: two hosts, one in use and both probes failed", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c")), freeHost("b", inState(v1beta1.HostUnhealthy))}, nil, []string{"big [pool] [*]"}, "ok"},
		{"A7: the node's host is relabelled out of the class (section 3 #21)", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
		}), freeHost("a", usedBy("c", "uid-c"))}, nil, []string{"big [*]"}, "ok"},
		{"a claim that recorded no class", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), sized("0", "1Gi"), func(h *v1beta1.SSHHost) { h.Status.ClaimRef.NodeClass = "" })}, nil, []string{"big [*]"}, "ok"},
		{"another class's claim", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), func(h *v1beta1.SSHHost) { h.Status.ClaimRef.NodeClass = "db" })}, nil, []string{"big [pool]"}, "ok"},
		{"section 3 #50: an empty selector selects all", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.HostSelector = &metav1.LabelSelector{} }), freeHost("a")}, nil, []string{"big pool"}, "ok"},
		{"an unready class still says what its nodes are", []client.Object{webClass(setReady(metav1.ConditionFalse, "ProfileInvalid")), freeHost("a")}, nil, []string{"big pool"}, "ok"},
		{"a class that is being deleted too", []client.Object{webClass(deleting), freeHost("a")}, nil, []string{"big pool"}, "ok"},
		{"no hosts", []client.Object{webClass()}, nil, []string{}, "ok"},
		{"no class", []client.Object{freeHost("a")}, nil, []string{}, "ok"},
		{"a class that vanished under its nodes", []client.Object{freeHost("a", usedBy("c", "uid-c"))}, nil, nil, "retry"},
		{"a class of another instance", []client.Object{webClass(ofInstance("seg-b")), freeHost("a")}, nil, []string{}, "ok"},
		{"a class that cannot be read", []client.Object{webClass(), freeHost("a")}, func(e *env) { e.cached = failing[*v1beta1.SSHNodeClass](errBlip) }, nil, "retry"},
		{"a class that the cache lost, with nodes", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, func(e *env) { e.cached = failing[*v1beta1.SSHNodeClass](notFound) }, nil, "retry"},
		{"the inventory is not complete", []client.Object{webClass(), freeHost("a")}, func(e *env) { e.hosts = unsynced{e.inventory} }, nil, "retry"},
		{"an invalid selector", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Resembles"}}}
		}), freeHost("a")}, nil, nil, "retry"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, test.objects...)
			if test.change != nil {
				test.change(e)
			}
			got, err := e.GetInstanceTypes(t.Context(), webPool)
			g.Expect(verdict(err)).To(Equal(test.verdict), "%v", err)
			if test.want != nil {
				g.Expect(offeredNow(got)).To(Equal(test.want))
			}
		})
	}
}

// A4, A5, section 2 #23: karpenter asks about every NodePool of the cluster, and logs what errors come.
func TestGetInstanceTypesOfForeignPoolsIsEmptyAndQuiet(t *testing.T) {
	for name, foreign := range foreignRefs() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, webClass(), freeHost("a", usedBy("c", "uid-c")))
			got, err := e.GetInstanceTypes(t.Context(), nodePool(foreign))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(BeEmpty())
		})
	}
	got, err := newEnv(t).GetInstanceTypes(t.Context(), nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(got).To(BeEmpty())
}

// B3: what is exhausted is unavailable as soon as the claim is written, so karpenter's next round goes to the next pool.
func TestAClaimEndsTheOfferAtOnce(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(), freeHost("a"), freeHost("b"))
	for _, step := range []struct{ claim, want string }{{"c", "big pool [*]"}, {"d", "big [pool] [*]"}} {
		_, err := e.Create(t.Context(), claim(step.claim))
		g.Expect(err).NotTo(HaveOccurred())
		types, err := e.GetInstanceTypes(t.Context(), webPool)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(offeredNow(types)).To(Equal([]string{step.want}))
	}
}

// Section 3 #10: a question costs no look at every host.
func TestTypesAreComputedOnceForAsLongAsNothingChanges(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(), freeHost("a"))
	first, err := e.GetInstanceTypes(t.Context(), webPool)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := e.GetInstanceTypes(t.Context(), webPool)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second[0]).To(BeIdenticalTo(first[0]))
	first[0] = nil // karpenter sorts and filters in place
	g.Expect(second[0]).NotTo(BeNil())

	class := webClass()
	g.Expect(e.api.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(Succeed())
	class.Spec.Zone = "hall-1"
	class.Generation++ // the in-memory API server leaves it to us
	g.Expect(e.api.Update(t.Context(), class)).To(Succeed())
	third, err := e.GetInstanceTypes(t.Context(), webPool)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offeredNow(third)).To(Equal([]string{"big hall-1"}), "a change of the class")

	inEurope := nodePool(webPool.Spec.Template.Spec.NodeClassRef)
	inEurope.Spec.Template.Labels = map[string]string{corev1.LabelTopologyRegion: "eu"}
	fourth, err := e.GetInstanceTypes(t.Context(), inEurope)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fourth[0].Requirements.Get(corev1.LabelTopologyRegion).Values()).To(ConsistOf("eu"))
	g.Expect(third[0].Requirements.Get(corev1.LabelTopologyRegion).Values()).To(BeEmpty(), "another NodePool's labels are its own")
}

func BenchmarkGetInstanceTypesWhenNothingChanged(b *testing.B) {
	e := benchProvider(1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.GetInstanceTypes(b.Context(), webPool); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetInstanceTypesAfterEveryClaim(b *testing.B) {
	e := benchProvider(1000)
	hosts := e.hosts.All()
	b.ReportAllocs()
	for round := 0; b.Loop(); round++ {
		h := hosts[round%len(hosts)].DeepCopy()
		h.ResourceVersion = fmt.Sprint(10_000 + round)
		if round/len(hosts)%2 == 0 {
			usedBy(fmt.Sprint("c-", h.Name), types.UID("uid-c-"+h.Name))(h)
		} else {
			h.Status.State, h.Status.ClaimRef = v1beta1.HostAvailable, nil
		}
		e.hosts.(*host.Inventory).Observe(h)
		if _, err := e.GetInstanceTypes(b.Context(), webPool); err != nil {
			b.Fatal(err)
		}
	}
}

// benchProvider is a provider over n hosts whose class comes without an API server's cost.
func benchProvider(n int) *CloudProvider {
	inventory := host.NewInventory("pool", nil, nil, clocktesting.NewFakeClock(now))
	for index := range n {
		h := freeHost(fmt.Sprintf("host-%04d", index))
		h.ResourceVersion = fmt.Sprint(index + 1)
		inventory.Observe(h)
	}
	return New("default", oneClass{class: webClass()}, nil, inventory, func(string) bool { return true }, &recorder{}, clocktesting.NewFakeClock(now))
}
