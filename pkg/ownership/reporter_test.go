package ownership

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// reporting is an inner controller that notes what it could read.
type reporting struct {
	client client.Client
	object func() client.Object
	saw    []string
}

func (r *reporting) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	err := r.client.Get(ctx, request.NamespacedName, r.object())
	if err == nil {
		r.saw = append(r.saw, request.Name)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// Reports on Nodes and Pods are made once, by the instance that owns them, and not by each instance that sees them.
func TestAReportIsMadeByTheOwnerOnly(t *testing.T) {
	node := func(name, class, providerID string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Spec: corev1.NodeSpec{ProviderID: providerID}}
		if class != "" {
			n.Labels[ClassLabel] = class
		}
		return n
	}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	}
	objects := []client.Object{
		node("own", "mine", me.ProviderIDPrefix()+"h"), node("own-without-label", "", me.ProviderIDPrefix()+"h"),
		node("foreign", "theirs", "kpssh://elsewhere/h"), node("split", "mine", "kpssh://elsewhere/h"),
		node("masked", "", "kpssh://elsewhere/h"), node("nobodys", "", "aws://1"),
		pod("on-own", "own"), pod("on-foreign", "foreign"), pod("on-nobodys", "nobodys"), pod("on-vanished", "gone"), pod("pending", ""),
	}
	b := newGuardBench(t, objects...)
	for _, row := range []struct {
		name   string
		kind   func() client.Object
		prefix string
		want   []string
	}{
		{name: "Nodes", kind: func() client.Object { return &corev1.Node{} }, want: []string{"own", "own-without-label"}},
		{name: "Pods", kind: func() client.Object { return &corev1.Pod{} }, want: []string{"on-own", "pending"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			inner := &reporting{client: b.client, object: row.kind}
			reporter := NewReporter("test", row.kind(), inner, 1)
			for _, o := range objects {
				if _, err := reporter.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(inner.saw, row.want) {
				t.Errorf("reported on %v, want %v", inner.saw, row.want)
			}
		})
	}
	// Everybody else reads what there is: another instance's Node is capacity.
	if err := b.client.Get(t.Context(), types.NamespacedName{Name: "foreign"}, &corev1.Node{}); err != nil || apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
