package nodeclass

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

func aClaim(name, group, kind, class string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: group, Kind: kind, Name: class},
	}}
}

func (w *world) gone(class string) bool {
	err := w.Client.Get(w.t.Context(), client.ObjectKey{Name: class}, &v1beta1.SSHNodeClass{})
	return apierrors.IsNotFound(err)
}

// A9: the class waits for its claims, says which, and goes when they have gone.
func TestClassStaysWhileClaimsNameIt(t *testing.T) {
	objects := []client.Object{
		aClass(), aProfile(), aHost("h1", true, nil),
		aClaim("other-provider", "karpenter.k8s.aws", "EC2NodeClass", "c1"),
		aClaim("other-class", v1beta1.Group, "SSHNodeClass", "c2"),
		&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "no-ref"}},
	}
	for i := range 7 {
		objects = append(objects, aClaim(fmt.Sprintf("mine-%d", i), v1beta1.Group, "SSHNodeClass", "c1"))
	}
	w := newWorld(t, objects...)
	w.must("c1")
	if class := w.class("c1"); len(class.Finalizers) != 1 || class.Finalizers[0] != v1beta1.TerminationFinalizer {
		t.Fatalf("finalizers %v", class.Finalizers)
	}
	if err := w.Client.Delete(t.Context(), aClass()); err != nil {
		t.Fatal(err)
	}

	if result := w.must("c1"); result.RequeueAfter != recheck {
		t.Errorf("looks again after %s", result.RequeueAfter)
	}
	ready := readyOf(w.class("c1"))
	if ready.Status != metav1.ConditionFalse || ready.Reason != v1beta1.ReasonDeleting ||
		!strings.Contains(ready.Message, "mine-0, mine-1, mine-2, mine-3, mine-4 and 2 more") || strings.Contains(ready.Message, "other") {
		t.Fatalf("got %+v", ready)
	}
	w.writes = nil
	w.must("c1")
	if len(w.writes) > 0 {
		t.Errorf("waiting wrote %v", w.writes)
	}

	if got := w.ofClaim(t.Context(), aClaim("mine-0", v1beta1.Group, "SSHNodeClass", "c1")); len(got) != 1 {
		t.Errorf("the end of a claim woke %v", got)
	}
	if got := w.ofClaim(t.Context(), aClaim("x", "karpenter.k8s.aws", "EC2NodeClass", "c1")); len(got) != 0 {
		t.Errorf("the end of another provider's claim woke %v", got)
	}
	for i := range 7 {
		if err := w.Client.Delete(t.Context(), aClaim(fmt.Sprintf("mine-%d", i), "", "", "")); err != nil {
			t.Fatal(err)
		}
	}
	w.must("c1")
	if !w.gone("c1") {
		t.Fatalf("still there: %+v", readyOf(w.class("c1")))
	}
	w.must("c1") // a late event
}

// A Node that outlives its NodeClaim keeps its class too, or nobody could end it: one of this pool, and no other.
func TestClassStaysWhileANodeOfThisPoolNamesIt(t *testing.T) {
	aNode := func(name, class, id string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ownership.ClassLabel: class}}, Spec: corev1.NodeSpec{ProviderID: id}}
	}
	mine := aNode("mine", "c1", "kpssh://"+pool+"/h1")
	w := newWorld(t, aClass(), aProfile(), aHost("h1", true, nil), mine, aNode("theirs", "c1", "kpssh://another/h1"), aNode("other", "c2", "kpssh://"+pool+"/h2"))
	w.must("c1")
	if err := w.Client.Delete(t.Context(), aClass()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.must("c1")
		if w.gone("c1") {
			t.Fatal("gone before its Node")
		}
	}
	if ready := readyOf(w.class("c1")); !strings.Contains(ready.Message, "Nodes that use this class: mine. ") {
		t.Errorf("got %+v", ready)
	}
	if got := w.ofNode(t.Context(), mine); len(got) != 1 {
		t.Errorf("the end of the Node woke %v", got)
	}
	if err := w.Client.Delete(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	w.must("c1")
	if !w.gone("c1") {
		t.Errorf("still there: %+v", readyOf(w.class("c1")))
	}
}

// A claim that karpenter decided on while the class was Ready must not come to life without a class: first NotReady, then the last look.
func TestClassWithoutClaimsIsNotReadyBeforeItGoes(t *testing.T) {
	w := newWorld(t, aClass(), aProfile(), aHost("h1", true, nil))
	w.must("c1")
	if err := w.Client.Delete(t.Context(), aClass()); err != nil {
		t.Fatal(err)
	}
	if result := w.must("c1"); result.RequeueAfter != settle || w.gone("c1") {
		t.Fatalf("gone at once, or looks again after %s", result.RequeueAfter)
	}
	if err := w.Client.Create(t.Context(), aClaim("late", v1beta1.Group, "SSHNodeClass", "c1")); err != nil {
		t.Fatal(err)
	}
	w.must("c1")
	if w.gone("c1") {
		t.Fatal("the class vanished under a claim")
	}
	if err := w.Client.Delete(t.Context(), aClaim("late", "", "", "")); err != nil {
		t.Fatal(err)
	}
	w.must("c1")
	if !w.gone("c1") {
		t.Fatal("still there")
	}
}

func TestDeletedForeignClassIsLeftToItsOwner(t *testing.T) {
	foreign := aClass(func(c *v1beta1.SSHNodeClass) {
		c.Name = "foreign"
		c.Finalizers = []string{v1beta1.TerminationFinalizer}
	})
	w := newWorld(t, foreign)
	if err := w.Client.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	w.must("foreign")
	if w.gone("foreign") || len(w.writes) > 0 {
		t.Fatalf("a foreign class lost its finalizer; wrote %v", w.writes)
	}
}
