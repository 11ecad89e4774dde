package owner

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func nodePool(group, owner string) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"user": "kept"}}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: group, Kind: "SSHNodeClass", Name: "c"}
	if owner != "" {
		pool.Annotations[v1beta1.OwnerAnnotation] = owner
	}
	return pool
}

// S6: what the guarded client shows as own gets the instance's name, once; what it shows as another provider's has left this instance.
func TestOwnNodePoolsAreNamed(t *testing.T) {
	ending := nodePool(v1beta1.Group, "")
	ending.Finalizers, ending.DeletionTimestamp = []string{"x/y"}, &metav1.Time{Time: metav1.Now().Time}
	for _, c := range []struct {
		name   string
		pool   *karpv1.NodePool
		owner  string // afterwards
		writes int
	}{
		{"new", nodePool(v1beta1.Group, ""), "seg-a", 1},
		{"named", nodePool(v1beta1.Group, "seg-a"), "seg-a", 0},
		{"taken over after the other instance's end", nodePool(v1beta1.Group, "seg-b"), "seg-a", 1},
		{"moved away while NodeClaims of it are here", nodePool("foreign."+v1beta1.Group, "seg-b"), "seg-b", 0},
		{"going", ending, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			writes := 0
			api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(c.pool).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, api client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					writes++
					return api.Patch(ctx, o, p, opts...)
				},
			}).Build()
			request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pool)}
			for range 2 {
				if _, err := NewController(api, "seg-a").Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			after := &karpv1.NodePool{}
			if err := api.Get(t.Context(), request.NamespacedName, after); err != nil {
				t.Fatal(err)
			}
			if got := after.Annotations[v1beta1.OwnerAnnotation]; got != c.owner || writes != c.writes || after.Annotations["user"] != "kept" {
				t.Errorf("%v after %d writes, want owner %q after %d", after.Annotations, writes, c.owner, c.writes)
			}
		})
	}
}

// S6: a NodePool that was pointed at another instance's class since it was read is not written.
func TestANodePoolThatMovedMeanwhileIsLeftAlone(t *testing.T) {
	pool := nodePool(v1beta1.Group, "")
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(pool).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			moved := &karpv1.NodePool{}
			if err := api.Get(ctx, client.ObjectKeyFromObject(o), moved); err != nil {
				return err
			}
			moved.Spec.Template.Spec.NodeClassRef.Name = "theirs"
			if err := api.Update(ctx, moved); err != nil {
				return err
			}
			return api.Patch(ctx, o, p, opts...)
		},
	}).Build()
	result, err := NewController(api, "seg-a").Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pool)})
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("%v, %v: want another look", result, err)
	}
	after := &karpv1.NodePool{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(pool), after); err != nil {
		t.Fatal(err)
	}
	if owner, written := after.Annotations[v1beta1.OwnerAnnotation]; written {
		t.Errorf("named %s", owner)
	}
}
