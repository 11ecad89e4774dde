package startuptaint

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

var (
	start = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	group = karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: "nc-a"}
)

type world struct {
	*Controller
	t      *testing.T
	api    client.Client
	events *events.FakeRecorder
	// writes are the patches of Nodes; refuse makes the next ones conflict.
	writes, refuse int
}

// newWorld has a Node of an own NodeClaim with two startup taints, and a class whose gates wait for a pod and for a condition.
func newWorld(t *testing.T, edits ...func(*corev1.Node, *karpv1.NodeClaim, *v1beta1.SSHNodeClass)) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	karpenter := schema.GroupVersion{Group: apis.Group, Version: "v1"}
	metav1.AddToGroupVersion(scheme, karpenter)
	scheme.AddKnownTypes(karpenter, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}, Spec: karpv1.NodeClaimSpec{NodeClassRef: &group, StartupTaints: startup}}
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-a"}, Spec: v1beta1.SSHNodeClassSpec{StartupTaintGates: []v1beta1.StartupTaintGate{
		{TaintKey: "cni", RemoveWhen: v1beta1.RemoveWhen{PodsReady: &v1beta1.PodsReady{
			Namespace: "kube-system", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "cni"}}, MinReady: 1}}},
		{TaintKey: "gpu", RemoveWhen: v1beta1.RemoveWhen{NodeCondition: &v1beta1.NodeConditionIs{Type: "GPUReady"}}},
	}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(start.Add(-time.Minute)), OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "n", UID: "uid-n"}}},
		Spec: corev1.NodeSpec{Taints: append(slices.Clone(startup), taint("cni", "", corev1.TaintEffectNoExecute))}}
	for _, edit := range edits {
		edit(node, claim, class)
	}
	w := &world{t: t, events: events.NewFakeRecorder(10)}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(node, claim, class).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&karpv1.NodeClaim{}, "spec.nodeClassRef.name", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Spec.NodeClassRef.Name} }).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.writes++
			if w.refuse > 0 {
				w.refuse--
				return apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, o.GetName(), nil)
			}
			return c.Patch(ctx, o, p, opts...)
		}}).Build()
	w.Controller = NewController(w.api, w.events, clocktesting.NewFakePassiveClock(start))
	return w
}

func (w *world) reconcile() reconcile.Result {
	w.t.Helper()
	result, err := w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) taints() string {
	w.t.Helper()
	node := &corev1.Node{}
	if err := w.api.Get(w.t.Context(), types.NamespacedName{Name: "n"}, node); err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for index := range node.Spec.Taints {
		all = append(all, node.Spec.Taints[index].ToString())
	}
	return strings.Join(all, " ")
}

func (w *world) pod(name, namespace, node, app string) {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) condition() {
	w.t.Helper()
	node := &corev1.Node{}
	if err := w.api.Get(w.t.Context(), types.NamespacedName{Name: "n"}, node); err != nil {
		w.t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: "GPUReady", Status: corev1.ConditionTrue}}
	if err := w.api.Status().Update(w.t.Context(), node); err != nil {
		w.t.Fatal(err)
	}
}

func TestTaintsGoAsTheirGatesOpen(t *testing.T) {
	w := newWorld(t)
	w.pod("elsewhere", "kube-system", "m", "cni")
	w.pod("other-namespace", "default", "n", "cni")
	w.pod("other-app", "kube-system", "n", "dns")
	if result := w.reconcile(); result.RequeueAfter != recheck || w.taints() != "cni:NoSchedule gpu=a:NoExecute cni:NoExecute" || w.writes != 0 {
		t.Fatalf("%v, taints %s, %d writes", result, w.taints(), w.writes)
	}
	w.pod("cni", "kube-system", "n", "cni")
	if result := w.reconcile(); result.RequeueAfter != recheck || w.taints() != "gpu=a:NoExecute cni:NoExecute" {
		t.Fatalf("%v, taints %s", result, w.taints())
	}
	w.condition()
	if result := w.reconcile(); !result.IsZero() || w.taints() != "cni:NoExecute" || w.writes != 2 {
		t.Fatalf("%v, taints %s, %d writes", result, w.taints(), w.writes)
	}
	for _, want := range []string{"Normal StartupTaintRemoved removed the startup taint cni:NoSchedule", "Normal StartupTaintRemoved removed the startup taint gpu=a:NoExecute"} {
		if got := <-w.events.Events; !strings.HasPrefix(got, want) {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}

func TestTaintsWhoseGatesAreOpenGoInOneWrite(t *testing.T) {
	w := newWorld(t)
	w.pod("cni", "kube-system", "n", "cni")
	w.condition()
	if result := w.reconcile(); !result.IsZero() || w.taints() != "cni:NoExecute" || w.writes != 1 {
		t.Errorf("%v, taints %s, %d writes", result, w.taints(), w.writes)
	}
}

func TestANodeThatChangedMeanwhileIsJudgedAnew(t *testing.T) {
	w := newWorld(t)
	w.condition()
	w.refuse = 1
	if result := w.reconcile(); result.RequeueAfter != glance || len(w.events.Events) != 0 {
		t.Errorf("%v, %d events", result, len(w.events.Events))
	}
	if w.reconcile(); w.taints() != "cni:NoSchedule cni:NoExecute" {
		t.Errorf("taints %s", w.taints())
	}
}

func TestNodesThatAreNobodysBusinessAreLeftAlone(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node, *karpv1.NodeClaim, *v1beta1.SSHNodeClass){
		"no NodeClaim owns it":              func(n *corev1.Node, _ *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) { n.OwnerReferences = nil },
		"another NodeClaim of the name did": func(n *corev1.Node, _ *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) { n.OwnerReferences[0].UID = "old" },
		"another instance's NodeClaim":      func(_ *corev1.Node, c *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) { c.Name = "not-shown" },
		"another provider's NodeClaim": func(_ *corev1.Node, c *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) {
			c.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "nc-a"}
		},
		"its class is gone":                  func(_ *corev1.Node, _ *karpv1.NodeClaim, c *v1beta1.SSHNodeClass) { c.Name = "another" },
		"no startup taints in the NodeClaim": func(_ *corev1.Node, c *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) { c.Spec.StartupTaints = nil },
		"it is being deleted": func(n *corev1.Node, _ *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) {
			n.DeletionTimestamp, n.Finalizers = new(metav1.NewTime(start)), []string{"f"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, edit)
			before := w.taints()
			w.condition()
			if result := w.reconcile(); !result.IsZero() || w.taints() != before || w.writes != 0 {
				t.Errorf("%v, taints %s, %d writes", result, w.taints(), w.writes)
			}
		})
	}
}

// What a kubelet reports every few seconds wakes nobody; what may open a gate does.
func TestWhatWakesANode(t *testing.T) {
	node := func(edits ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{Taints: startup}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: corev1.ConditionFalse}}}}
		for _, e := range edits {
			e(n)
		}
		return n
	}
	heartbeat := func(n *corev1.Node) {
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(start)
		n.ResourceVersion = "2"
	}
	ready := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }
	free := func(n *corev1.Node) { n.Spec.Taints = nil }
	for name, row := range map[string]struct {
		before, after *corev1.Node
		want          bool
	}{
		"a heartbeat":             {node(), node(heartbeat), false},
		"a condition":             {node(), node(ready), true},
		"a taint goes":            {node(), node(func(n *corev1.Node) { n.Spec.Taints = startup[:1] }), true},
		"the last taint goes":     {node(), node(free), false},
		"a condition, no taint":   {node(free), node(free, ready), false},
		"its NodeClaim is linked": {node(), node(func(n *corev1.Node) { n.OwnerReferences = make([]metav1.OwnerReference, 1) }), true},
	} {
		if got := nodeChanges().Update(event.UpdateEvent{ObjectOld: row.before, ObjectNew: row.after}); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
	pod := func(node string, status corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}}
	}
	if !podChanges().Update(event.UpdateEvent{ObjectOld: pod("n", corev1.ConditionFalse), ObjectNew: pod("n", corev1.ConditionTrue)}) {
		t.Error("a pod that becomes ready wakes nobody")
	}
	for name, e := range map[string]event.UpdateEvent{
		"is ready still": {ObjectOld: pod("n", corev1.ConditionTrue), ObjectNew: pod("n", corev1.ConditionTrue)},
		"fails":          {ObjectOld: pod("n", corev1.ConditionTrue), ObjectNew: pod("n", corev1.ConditionFalse)},
		"has no Node":    {ObjectOld: pod("", corev1.ConditionFalse), ObjectNew: pod("", corev1.ConditionTrue)},
	} {
		if podChanges().Update(e) {
			t.Errorf("a pod that %s wakes its Node", name)
		}
	}
}

func TestAnEditedClassWakesItsNodes(t *testing.T) {
	w := newWorld(t, func(_ *corev1.Node, c *karpv1.NodeClaim, _ *v1beta1.SSHNodeClass) { c.Status.NodeName = "n" })
	if got := w.nodesOfClass(t.Context(), &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-a"}}); len(got) != 1 || got[0].Name != "n" {
		t.Errorf("woke %v", got)
	}
	if got := w.nodesOfClass(t.Context(), &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-b"}}); len(got) != 0 {
		t.Errorf("woke %v", got)
	}
	if got := w.nodeOfPod(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}); len(got) != 1 {
		t.Errorf("woke %v", got)
	}
	if got := w.nodeOfPod(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{NodeName: "unknown"}}); len(got) != 0 {
		t.Errorf("woke %v", got)
	}
}
