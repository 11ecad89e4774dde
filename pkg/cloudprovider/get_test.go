package cloudprovider

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func TestGet(t *testing.T) {
	for _, test := range []struct {
		name    string
		objects []client.Object
		change  func(*testing.T, *env)
		id      string
		want    string
		claim   string // the NodeClaim's name
	}{
		{"a claimed host", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, nil, "kpssh://pool/a", "ok", "c"},
		{"a leaving host is still there", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), inState(v1beta1.HostLeaving))}, nil, "kpssh://pool/a", "ok", "c"},
		{"an unhealthy machine is still there", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), func(h *v1beta1.SSHHost) { h.Status.LastProbeError = "no route to host" })}, nil, "kpssh://pool/a", "ok", "c"},
		{"an adopted ID", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"), withID("eks-hybrid:///mi-1"))}, nil, "eks-hybrid:///mi-1", "ok", "c"},
		{"a claim whose class is gone", []client.Object{freeHost("a", usedBy("c", "uid-c"))}, nil, "kpssh://pool/a", "ok", "c"},
		{"a free host", []client.Object{webClass(), freeHost("a")}, nil, "kpssh://pool/a", "NodeClaimNotFound", ""},
		{"no host", []client.Object{webClass()}, nil, "kpssh://pool/a", "NodeClaimNotFound", ""},
		{"section 2 #19: an empty ID", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, nil, "", "NodeClaimNotFound", ""},
		{"an ID that is cut short", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, nil, "kpssh://pool/", "NodeClaimNotFound", ""},
		{"another instance's machine", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, nil, "kpssh://elsewhere/a", "retry", ""},
		{"not complete", []client.Object{webClass()}, func(_ *testing.T, e *env) { e.hosts = unsynced{e.inventory} }, "kpssh://pool/a", "retry", ""},
		{"claimed, but the cache does not show it", []client.Object{webClass(), freeHost("a")}, func(t *testing.T, e *env) { e.claimBehindItsBack(t, "a", "c", "uid-c") }, "kpssh://pool/a", "ok", "c"},
		{"absence that cannot be confirmed", []client.Object{webClass(), freeHost("a")}, func(_ *testing.T, e *env) { e.uncached = failing[*v1beta1.SSHHost](errBlip) }, "kpssh://pool/a", "retry", ""},
		{"class cannot be read", []client.Object{webClass(), freeHost("a", usedBy("c", "uid-c"))}, func(_ *testing.T, e *env) { e.cached = failing[*v1beta1.SSHNodeClass](errBlip) }, "kpssh://pool/a", "retry", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, test.objects...)
			if test.change != nil {
				test.change(t, e)
			}
			got, err := e.Get(t.Context(), test.id)
			g.Expect(verdict(err)).To(Equal(test.want), "%v", err)
			if test.want == "ok" {
				g.Expect(got.Name).To(Equal(test.claim))
				g.Expect(got.Status.ProviderID).To(Equal(test.id))
			}
		})
	}
}

func TestListIsEveryClaimedHost(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(),
		freeHost("free"), freeHost("broken", inState(v1beta1.HostUnhealthy)),
		freeHost("used", usedBy("c", "uid-c")), freeHost("claimed", usedBy("d", "uid-d"), inState(v1beta1.HostClaimed)),
		freeHost("leaving", usedBy("e", "uid-e"), inState(v1beta1.HostLeaving)),
		freeHost("adopted", usedBy("f", "uid-f"), withID("eks-hybrid:///mi-1")),
		freeHost("old", usedBy("g", "uid-g"), func(h *v1beta1.SSHHost) {
			h.Status.ClaimRef = &v1beta1.ClaimReference{Name: "g"} // as recorded before classes, types and times were
		}),
		freeHost("classless", usedBy("h", "uid-h"), func(h *v1beta1.SSHHost) { h.Status.ClaimRef.NodeClass = "gone" }),
		freeHost("moved", usedBy("i", "uid-i"), func(h *v1beta1.SSHHost) { h.Status.ClaimRef.NodeClass = "seg-b" }),
		func() client.Object {
			class := webClass(ofInstance("seg-b"))
			class.Name, class.UID = "seg-b", "class-seg-b"
			return class
		}(),
	)
	listed, err := e.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	ids := map[string]string{}
	for _, nodeClaim := range listed {
		ids[nodeClaim.Name] = nodeClaim.Status.ProviderID
		g.Expect(nodeClaim.DeletionTimestamp.IsZero()).To(Equal(nodeClaim.Name != "e"), nodeClaim.Name)
		g.Expect(nodeClaim.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "big"))
		g.Expect(nodeClaim.Status.Allocatable.Cpu().IsZero()).To(BeFalse())
		if nodeClaim.Name == "c" {
			g.Expect(nodeClaim.CreationTimestamp.Time).To(BeTemporally("==", now.Add(-time.Hour)))
			g.Expect(nodeClaim.UID).To(BeEquivalentTo("uid-c"))
			g.Expect(nodeClaim.Spec.NodeClassRef.Name).To(Equal("web"), "so that Delete takes it for ours")
		}
	}
	g.Expect(ids).To(Equal(map[string]string{
		"c": "kpssh://pool/used", "d": "kpssh://pool/claimed", "e": "kpssh://pool/leaving", "f": "eks-hybrid:///mi-1",
		"g": "kpssh://pool/old", "h": "kpssh://pool/classless", "i": "kpssh://pool/moved",
	}))
}

// A2: karpenter deletes the claims of NotReady nodes that a List leaves out.
func TestListIsCompleteOrFails(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t, webClass(), freeHost("a", usedBy("c", "uid-c")))
	e.cached = failing[*v1beta1.SSHNodeClass](errBlip)
	_, err := e.List(t.Context())
	g.Expect(err).To(MatchError(errBlip))
	e.cached.Get = nil
	e.hosts = unsynced{e.inventory}
	_, err = e.List(t.Context())
	g.Expect(err).To(MatchError(errNotSynced))
}
