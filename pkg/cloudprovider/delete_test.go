package cloudprovider

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func TestDelete(t *testing.T) {
	const id = "kpssh://pool/a"
	for _, test := range []struct {
		name   string
		host   *v1beta1.SSHHost // nil: none
		change func(*testing.T, *env)
		claim  *karpv1.NodeClaim
		want   string
		state  v1beta1.HostState // of host a afterwards
	}{
		{"the claim's host begins to leave (section 3 #14)", freeHost("a", usedBy("c", "uid-c")), nil, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"a host that has not joined yet leaves too", freeHost("a", usedBy("c", "uid-c"), inState(v1beta1.HostClaimed)), nil, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"nil while it leaves", freeHost("a", usedBy("c", "uid-c"), inState(v1beta1.HostLeaving)), nil, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"not found when it has left", freeHost("a"), nil, claim("c", providerID(id)), "NodeClaimNotFound", v1beta1.HostAvailable},
		{"not found when the host is gone", nil, nil, claim("c", providerID(id)), "NodeClaimNotFound", ""},
		{"section 2 #17: the host serves a successor", freeHost("a", usedBy("d", "uid-d")), nil, claim("c", providerID(id)), "NodeClaimNotFound", v1beta1.HostInUse},
		{"section 2 #18: a successor of the same name", freeHost("a", usedBy("c", "uid-later")), nil, claim("c", providerID(id)), "NodeClaimNotFound", v1beta1.HostInUse},
		{"section 2 #21: no provider ID, no host", freeHost("a"), nil, claim("c"), "NodeClaimNotFound", v1beta1.HostAvailable},
		{"section 2 #19: no provider ID matches no host without one", freeHost("a", usedBy("d", "uid-d")), nil, claim("c", noUID), "NodeClaimNotFound", v1beta1.HostInUse},
		{"no provider ID, but the claim holds a host", freeHost("a", usedBy("c", "uid-c")), nil, claim("c"), "ok", v1beta1.HostLeaving},
		{"no UID, as List makes them: provider ID and name", freeHost("a", usedBy("c", "uid-c")), nil, claim("c", noUID, providerID(id)), "ok", v1beta1.HostLeaving},
		{"no UID, another claim's name", freeHost("a", usedBy("d", "uid-d")), nil, claim("c", noUID, providerID(id)), "NodeClaimNotFound", v1beta1.HostInUse},
		{"a claim recorded without a UID matches by name", freeHost("a", usedBy("c", "")), nil, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"an adopted ID", freeHost("a", usedBy("c", "uid-c"), withID("eks-hybrid:///mi-1")), nil, claim("c", providerID("eks-hybrid:///mi-1")), "ok", v1beta1.HostLeaving},
		{"the static ID of a host that adopted another", freeHost("a", usedBy("c", "uid-c"), withID("eks-hybrid:///mi-1")), nil, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"a machine of another instance", freeHost("a"), nil, claim("c", providerID("kpssh://elsewhere/a")), "retry", v1beta1.HostAvailable},
		{"a pool namespace whose name starts with ours", freeHost("a"), nil, claim("c", providerID("kpssh://pool-2/a")), "retry", v1beta1.HostAvailable},
		{"the inventory is not complete", freeHost("a"), func(_ *testing.T, e *env) { e.hosts = unsynced{e.inventory} }, claim("c", providerID(id)), "retry", v1beta1.HostAvailable},
		{"the claim is in the API server only", freeHost("a"), func(t *testing.T, e *env) { e.claimBehindItsBack(t, "a", "c", "uid-c") }, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
		{"the claim is in the API server only, no UID", freeHost("a"), func(t *testing.T, e *env) { e.claimBehindItsBack(t, "a", "c", "uid-c") }, claim("c", noUID, providerID(id)), "retry", v1beta1.HostInUse},
		{"a release that the cache has not shown", freeHost("a", usedBy("c", "uid-c")), func(t *testing.T, e *env) { e.claimBehindItsBack(t, "a", "d", "uid-d") }, claim("c", providerID(id)), "NodeClaimNotFound", v1beta1.HostInUse},
		{"absence that cannot be confirmed", freeHost("a"), func(_ *testing.T, e *env) {
			e.uncached.List = func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return errBlip }
		}, claim("c", providerID(id)), "retry", v1beta1.HostAvailable},
		{"absence that cannot be confirmed, no UID", nil, func(_ *testing.T, e *env) { e.uncached = failing[*v1beta1.SSHHost](errBlip) }, claim("c", noUID, providerID(id)), "retry", ""},
		{"the write fails", freeHost("a", usedBy("c", "uid-c")), func(_ *testing.T, e *env) {
			e.cached.SubResourcePatch = func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
				return errBlip
			}
		}, claim("c", providerID(id)), "retry", v1beta1.HostInUse},
		{"a release conflict is tried again", freeHost("a", usedBy("c", "uid-c")), func(_ *testing.T, e *env) {
			conflicts := 1
			e.cached.SubResourcePatch = func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
				if conflicts--; conflicts >= 0 {
					return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), nil)
				}
				return c.SubResource(sub).Patch(ctx, o, p, options...)
			}
		}, claim("c", providerID(id)), "ok", v1beta1.HostLeaving},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			objects := []client.Object{webClass()}
			if test.host != nil {
				objects = append(objects, test.host)
			}
			e := newEnv(t, objects...)
			if test.change != nil {
				test.change(t, e)
			}
			err := e.Delete(t.Context(), test.claim)
			g.Expect(verdict(err)).To(Equal(test.want), "%v", err)
			if test.host == nil {
				return
			}
			h := e.host(t, "a")
			g.Expect(h.Status.State).To(Equal(test.state))
			if test.state == v1beta1.HostLeaving {
				g.Expect(h.Status.ClaimRef).NotTo(BeNil(), "the claim is kept until the machine has left")
			}
		})
	}
}

// claimBehindItsBack gives a host to a claim without the inventory's knowledge.
func (e *env) claimBehindItsBack(t *testing.T, name, nodeClaim, uid string) {
	t.Helper()
	h := e.host(t, name)
	usedBy(nodeClaim, "")(h)
	h.Status.ClaimRef.UID = claim(nodeClaim).UID
	if uid != string(h.Status.ClaimRef.UID) {
		t.Fatalf("%s is not the UID of %s", uid, nodeClaim)
	}
	if err := e.api.Status().Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
}

// A3: a NotFound here strips the finalizer of another instance's claim, and its machine never leaves.
func TestDeleteNeverDisownsForeignClaims(t *testing.T) {
	for name, foreign := range foreignRefs() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, webClass(), freeHost("a", usedBy("c", "uid-c")))
			g.Expect(verdict(e.Delete(t.Context(), claim("c", classRef(foreign), providerID("kpssh://pool/a"))))).To(Equal("retry"))
			g.Expect(e.host(t, "a").Status.State).To(Equal(v1beta1.HostInUse))
		})
	}
	NewWithT(t).Expect(verdict(newEnv(t).Delete(t.Context(), nil))).To(Equal("retry"))
}
