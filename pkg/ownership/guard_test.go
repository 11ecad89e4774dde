package ownership

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// guardBench is a guarded client over a fake API server that counts the writes which reach it.
type guardBench struct {
	client *guardedClient
	own    *register
	clock  *testclock.FakeClock
	writes int
	// liveErr is returned by reads of the API server.
	liveErr error
}

// newGuardBench has class "mine" as own class. The objects are on the server, where reads go as well.
func newGuardBench(t *testing.T, objects ...client.Object) *guardBench {
	t.Helper()
	b := &guardBench{own: newRegister(own("mine").names), clock: testclock.NewFakeClock(time.Unix(1700000000, 0))}
	base := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).Build()
	wrote := func() error { b.writes++; return nil }
	counting := interceptor.NewClient(base, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return wrote() },
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return wrote() },
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return wrote() },
		DeleteAllOf: func(context.Context, client.WithWatch, client.Object, ...client.DeleteAllOfOption) error {
			return wrote()
		},
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return wrote()
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return wrote()
		},
		SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
			return wrote()
		},
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			return wrote()
		},
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return wrote()
		},
		SubResourceApply: func(context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption) error {
			return wrote()
		},
	})
	live := interceptor.NewClient(base, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if b.liveErr != nil {
				return b.liveErr
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	seam := newSeam(me, &Classes{own: b.own}, b.clock)
	b.client = &guardedClient{Client: counting, live: live, seam: seam}
	return b
}

var mergePatch = client.RawPatch(types.MergePatchType, []byte(`{}`))

// writesOn are all ways to write an object that exists.
func writesOn(c client.Client, o client.Object) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"update":        func(ctx context.Context) error { return c.Update(ctx, o) },
		"patch":         func(ctx context.Context) error { return c.Patch(ctx, o, mergePatch) },
		"delete":        func(ctx context.Context) error { return c.Delete(ctx, o) },
		"status update": func(ctx context.Context) error { return c.Status().Update(ctx, o) },
		"status patch":  func(ctx context.Context) error { return c.Status().Patch(ctx, o, mergePatch) },
		"sub create":    func(ctx context.Context) error { return c.SubResource("binding").Create(ctx, o, &corev1.Binding{}) },
		"sub update":    func(ctx context.Context) error { return c.SubResource("scale").Update(ctx, o) },
		"sub patch":     func(ctx context.Context) error { return c.SubResource("scale").Patch(ctx, o, mergePatch) },
	}
}

func nodeClass(name, instance string) *v1beta1.SSHNodeClass {
	c := class(name, instance)
	c.UID = types.UID("uid-" + name)
	return c
}

func host(namespace string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "h", UID: "uid-h"}}
}

func buffer(labels map[string]string) *autoscalingv1beta1.CapacityBuffer {
	return &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b", UID: "uid-b", Labels: labels}}
}

// S6: whatever the way, a write goes out for own objects and for kinds that have no owner, and for nothing else.
func TestOnlyOwnObjectsAreWritten(t *testing.T) {
	otherProvider := &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "mine"}
	for _, tc := range []struct {
		name   string
		object client.Object
		ours   bool
	}{
		{"own pool", pool("p", ref("mine")), true},
		{"foreign pool", pool("p", ref("theirs")), false},
		{"another provider's pool", pool("p", otherProvider), false},
		{"A4: pool without a class", pool("p", nil), false},
		{"own claim", claim("c", ref("mine"), ownHost), true},
		{"own claim, not launched", claim("c", ref("mine"), ""), true},
		{"own claim, adopted ID", claim("c", ref("mine"), adoptedID), true},
		{"foreign claim", claim("c", ref("theirs"), foreignHost), false},
		{"own class, foreign host: nobody's", claim("c", ref("mine"), foreignHost), false},
		{"A4: claim without a class", claim("c", nil, ownHost), false},
		{"own node", node("n", "mine", ownHost), true},
		{"own node before core labels it", node("n", "", ownHost), true},
		{"own node, adopted ID", node("n", "mine", adoptedID), true},
		{"foreign node", node("n", "theirs", foreignHost), false},
		{"foreign node before core labels it", node("n", "", foreignHost), false},
		{"node of own class on a foreign host", node("n", "mine", foreignHost), false},
		{"node of a foreign class on an own host", node("n", "theirs", ownHost), false},
		{"node of no provider", node("n", "", ""), true},
		{"own buffer", buffer(map[string]string{HomeInstanceLabel: "a"}), true},
		{"buffer of the default instance", buffer(nil), false},
		{"own class", nodeClass("mine", "a"), true},
		{"foreign class", nodeClass("theirs", "b"), false},
		{"own host", host("segment-a"), true},
		{"foreign host", host("segment-b"), false},
		{"a kind without owner", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects := []client.Object{tc.object.DeepCopyObject().(client.Object)}
			if tc.object.GetName() != "theirs" {
				objects = append(objects, nodeClass("theirs", "b"))
			}
			b := newGuardBench(t, objects...)
			for way, write := range writesOn(b.client, tc.object) {
				expectWrite(t, b, way, tc.ours, write)
			}
			// A name is enough for a patch; then the object on the server decides.
			named := tc.object.DeepCopyObject().(client.Object)
			named.SetUID("")
			named.SetLabels(nil)
			if p, ok := named.(*karpv1.NodePool); ok {
				p.Spec = karpv1.NodePoolSpec{}
			}
			if c, ok := named.(*karpv1.NodeClaim); ok {
				c.Spec, c.Status = karpv1.NodeClaimSpec{}, karpv1.NodeClaimStatus{}
			}
			for way, write := range writesOn(b.client, named) {
				expectWrite(t, b, way+" by name", tc.ours, write)
			}
			for way, write := range writesOn(b.client, untyped(t, tc.object)) {
				expectWrite(t, b, way+" unstructured", tc.ours, write)
			}
			for way, write := range writesOn(b.client, metadataOf(t, tc.object)) {
				expectWrite(t, b, way+" by metadata", tc.ours, write)
			}
			config := client.ApplyConfigurationFromUnstructured(untyped(t, tc.object))
			expectWrite(t, b, "apply", tc.ours, func(ctx context.Context) error { return b.client.Apply(ctx, config) })
			expectWrite(t, b, "status apply", tc.ours, func(ctx context.Context) error { return b.client.Status().Apply(ctx, config) })
		})
	}
}

func TestOnlyOwnObjectsAreCreated(t *testing.T) {
	for _, tc := range []struct {
		name   string
		object client.Object
		ours   bool
	}{
		{"claim of an own class", claim("c", ref("mine"), ""), true},
		{"claim of a foreign class", claim("c", ref("theirs"), ""), false},
		{"A4: claim without a class", claim("c", nil, ""), false},
		{"node of a foreign class", node("n", "theirs", ""), false},
		{"host in a foreign namespace", host("segment-b"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newGuardBench(t)
			tc.object.SetUID("")
			expectWrite(t, b, "create", tc.ours, func(ctx context.Context) error { return b.client.Create(ctx, tc.object) })
			u := untyped(t, tc.object)
			expectWrite(t, b, "create unstructured", tc.ours, func(ctx context.Context) error { return b.client.Create(ctx, u) })
			expectWrite(t, b, "apply what does not exist", tc.ours, func(ctx context.Context) error {
				return b.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u))
			})
		})
	}
}

func TestTypedApplyConfigurationIsJudgedByTheObjectOnTheServer(t *testing.T) {
	b := newGuardBench(t, node("mine", "mine", ownHost), node("theirs", "theirs", foreignHost))
	for name, ours := range map[string]bool{"mine": true, "theirs": false} {
		config := corev1apply.Node(name).WithLabels(map[string]string{ClassLabel: "mine"})
		expectWrite(t, b, "apply "+name, ours, func(ctx context.Context) error { return b.client.Apply(ctx, config) })
	}
}

// A masked Node may carry neither its class nor a provider ID. The guard must not take it for nobody's.
func TestMaskedNodeIsNotWritten(t *testing.T) {
	for _, n := range []*corev1.Node{
		node("n", "theirs", foreignHost, label(karpv1.NodePoolLabelKey, "p")),
		node("n", "theirs", "", label(karpv1.NodePoolLabelKey, "p")),
		node("n", "theirs", adoptedID),
		node("n", "theirs", ownHost), // found by seeds: a machine's leave deleted the Node of a class that had become another instance's
	} {
		b := newGuardBench(t, n.DeepCopy(), nodeClass("theirs", "b"))
		expectSight(t, me.node(b.own.snapshot(), n), masked)
		for way, write := range writesOn(b.client, n) {
			expectWrite(t, b, way, false, write)
		}
		// Core's registration puts the NodeClaim's labels on whatever Node has its provider ID.
		n.Labels[ClassLabel] = "mine"
		for way, write := range writesOn(b.client, n) {
			expectWrite(t, b, way+", relabelled", false, write)
		}
	}
}

// L3: what a kubelet registers after its class has gone would otherwise be nobody's to delete.
func TestNodeOfAClassThatIsGoneIsDeletedByItsHostsOwner(t *testing.T) {
	for providerID, ours := range map[string]bool{ownHost: true, foreignHost: false, adoptedID: false} {
		n := node("n", "gone", providerID)
		b := newGuardBench(t, n.DeepCopy())
		expectSight(t, me.node(b.own.snapshot(), n), masked)
		for way, write := range writesOn(b.client, n) {
			expectWrite(t, b, way+" "+providerID, ours && way == "delete", write)
		}
	}
}

// The moment between a class's loss and its objects' leaving the cache.
func TestGuardFollowsTheLiveClassSet(t *testing.T) {
	b := newGuardBench(t)
	p := pool("p", ref("mine"))
	patch := func(ctx context.Context) error { return b.client.Status().Patch(ctx, p, mergePatch) }
	expectWrite(t, b, "while the class is ours", true, patch)
	b.own.replace(own())
	expectWrite(t, b, "after the class has gone", false, patch)
}

func TestDeletionOfManyIsRefused(t *testing.T) {
	b := newGuardBench(t)
	for kind, empty := range map[string]client.Object{kindPool: &karpv1.NodePool{}, kindNode: &corev1.Node{}, ClassKind: &v1beta1.SSHNodeClass{}} {
		expectWrite(t, b, kind, false, func(ctx context.Context) error { return b.client.DeleteAllOf(ctx, empty) })
	}
	expectWrite(t, b, "Pod", true, func(ctx context.Context) error { return b.client.DeleteAllOf(ctx, &corev1.Pod{}) })
}

// Not knowing is no refusal: it is retried, and blames nobody.
func TestUnreadableOwnerIsAnErrorOfTheCluster(t *testing.T) {
	b := newGuardBench(t)
	b.liveErr = errors.New("connection refused")
	err := b.client.Delete(t.Context(), &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	if !fault.Is(err, fault.Cluster) || errors.Is(err, ErrForeign) || fault.Of(err).Reason != "OwnerUnknown" {
		t.Errorf("got %v, want a cluster fault OwnerUnknown", err)
	}
	if b.writes != 0 {
		t.Error("it was written")
	}
}

func TestRefusalsAreCountedAndLoggedSeldom(t *testing.T) {
	b := newGuardBench(t)
	theirs := pool("p", ref("theirs"))
	var logged []int
	for i := range 25 {
		if err := b.client.Delete(t.Context(), theirs); !errors.Is(err, ErrForeign) {
			t.Fatalf("got %v", err)
		}
		if i == 9 || i == 19 {
			b.clock.Step(refusalLogInterval)
		}
	}
	if got := b.client.seam.Stats()[kindPool].Refused; got != 25 {
		t.Errorf("%d refusals counted, want 25", got)
	}
	g := newGuard(me, &Classes{own: b.own}, b.clock)
	for i := range 25 {
		if n, ok := g.mayLog(); ok {
			logged = append(logged, n)
		}
		if i == 9 || i == 19 {
			b.clock.Step(refusalLogInterval)
		}
	}
	if len(logged) != 3 || logged[0] != 1 || logged[1] != 10 || logged[2] != 10 {
		t.Errorf("messages stand for %v refusals, want [1 10 10]", logged)
	}
}

// F3: core's state fails on each own claim of a pool that it cannot read.
func TestPoolThatMovedAwayCanBeReadWhileOwnClaimsRemain(t *testing.T) {
	moved := pool("moved", ref("theirs"))
	left := claim("c", ref("mine"), ownHost)
	left.Labels = map[string]string{karpv1.NodePoolLabelKey: "moved"}
	b := newGuardBench(t, moved)
	cached := &cacheOf{Client: b.client.Client}
	b.client.Client = cached

	got := &karpv1.NodePool{}
	key := client.ObjectKey{Name: "moved"}
	if err := b.client.Get(t.Context(), key, got); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("without own claims: got %v, want NotFound", err)
	}
	cached.claims = []karpv1.NodeClaim{*left}
	must(t, b.client.Get(t.Context(), key, got))
	if r := got.Spec.Template.Spec.NodeClassRef; r.Group != foreignGroupPrefix+v1beta1.Group || r.Name != "theirs" {
		t.Errorf("the pool names %+v, by which core takes it for its own", r)
	}
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: "deleted"}, got); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a pool that does not exist: got %v, want NotFound", err)
	}
	b.liveErr = errors.New("connection refused")
	if err := b.client.Get(t.Context(), key, got); !errors.Is(err, b.liveErr) {
		t.Errorf("got %v, want the error of the live read", err)
	}
}

// cacheOf is a filtered cache: no pools, and these claims.
type cacheOf struct {
	client.Client
	claims []karpv1.NodeClaim
}

func (c *cacheOf) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "karpenter.sh", Resource: "nodepools"}, key.Name)
}

func (c *cacheOf) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*karpv1.NodeClaimList).Items = c.claims
	return nil
}

func expectWrite(t *testing.T, b *guardBench, way string, ours bool, write func(context.Context) error) {
	t.Helper()
	before := b.writes
	err := write(t.Context())
	switch {
	case ours && (err != nil || b.writes != before+1):
		t.Errorf("%s: %v, and %d writes went out, not 1", way, err, b.writes-before)
	case !ours && (!errors.Is(err, ErrForeign) || !fault.Is(err, fault.Cluster) || client.IgnoreNotFound(err) == nil):
		t.Errorf("%s: got %v, want a refusal", way, err)
	case !ours && b.writes != before:
		t.Errorf("%s: refused, yet written", way)
	}
}

// untyped is an object as unstructured content.
func untyped(t *testing.T, o client.Object) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	must(t, err)
	u := &unstructured.Unstructured{Object: content}
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	must(t, err)
	u.SetGroupVersionKind(gvks[0])
	return u
}

// metadataOf is an object's name and metadata alone.
func metadataOf(t *testing.T, o client.Object) *metav1.PartialObjectMetadata {
	t.Helper()
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}}
	gvks, _, err := scheme.Scheme.ObjectKinds(o)
	must(t, err)
	m.SetGroupVersionKind(gvks[0])
	return m
}
