package ownership

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// How many of each the writers fight over.
const (
	classCount  = 6
	poolCount   = 10
	claimCount  = 20
	nodeCount   = 12
	bufferCount = 4
)

// writer makes random, legal changes. Several share the names, so many a change finds its object gone or there already.
type writer struct {
	rand  *rand.Rand
	api   client.Client
	steps int // changes that reached the API server
}

// step makes one change. It returns an error that no race of writers explains.
func (w *writer) step(ctx context.Context) error {
	steps := []struct {
		weight int
		do     func(context.Context) error
	}{
		{3, w.createClass}, {2, w.deleteClass},
		{4, w.createPool}, {5, w.movePool}, {2, w.deletePool},
		{6, w.createClaim}, {5, w.launchClaim}, {3, w.deleteClaim},
		{6, w.createNode}, {5, w.labelNode}, {3, w.deleteNode},
		{8, w.touch}, {4, w.release},
		{2, w.createBuffer}, {2, w.moveBuffer}, {1, w.deleteBuffer},
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	n := w.rand.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			err := s.do(ctx)
			if err == nil {
				w.steps++
			}
			if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
				return nil
			}
			return err
		}
	}
	return nil
}

func (w *writer) name(kind string, count int) string {
	return fmt.Sprintf("%s-%d", kind, w.rand.IntN(count))
}

// classRef is mostly one of ours, of whatever instance owns it or none, sometimes another provider's.
func (w *writer) classRef() *karpv1.NodeClassReference {
	if w.rand.IntN(8) == 0 {
		return &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: w.name("class", classCount)}
	}
	return ref(w.name("class", classCount))
}

func (w *writer) providerID() string {
	return []string{ownHost, ownHost, ownHost, foreignHost, adoptedID, ""}[w.rand.IntN(6)]
}

func (w *writer) finalizers() []string {
	if w.rand.IntN(3) == 0 {
		return []string{karpv1.TerminationFinalizer}
	}
	return nil
}

func (w *writer) createClass(ctx context.Context) error {
	return w.api.Create(ctx, class(w.name("class", classCount), []string{"a", "a", "b"}[w.rand.IntN(3)]))
}

func (w *writer) deleteClass(ctx context.Context) error {
	return w.api.Delete(ctx, &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: w.name("class", classCount)}})
}

func (w *writer) createPool(ctx context.Context) error {
	p := pool(w.name("pool", poolCount), w.classRef())
	p.UID = ""
	p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	p.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	return w.api.Create(ctx, p)
}

// movePool points a pool at another class. Its group cannot change.
func (w *writer) movePool(ctx context.Context) error {
	return w.merge(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.name("pool", poolCount)}},
		`{"spec":{"template":{"spec":{"nodeClassRef":{"name":%q}}}}}`, w.name("class", classCount))
}

func (w *writer) deletePool(ctx context.Context) error {
	return w.api.Delete(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.name("pool", poolCount)}})
}

func (w *writer) createClaim(ctx context.Context) error {
	c := claim(w.name("claim", claimCount), w.classRef(), "")
	c.UID, c.Finalizers = "", w.finalizers()
	c.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	return w.api.Create(ctx, c)
}

func (w *writer) launchClaim(ctx context.Context) error {
	c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.name("claim", claimCount)}}
	return w.api.Status().Patch(ctx, c, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"providerID":%q}}`, w.providerID())))
}

func (w *writer) deleteClaim(ctx context.Context) error {
	return w.api.Delete(ctx, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.name("claim", claimCount)}})
}

func (w *writer) createNode(ctx context.Context) error {
	n := node(w.name("node", nodeCount), "", w.providerID(), label(karpv1.NodePoolLabelKey, w.name("pool", poolCount)))
	n.UID, n.Finalizers = "", w.finalizers()
	if w.rand.IntN(2) == 0 {
		n.Labels[ClassLabel] = w.name("class", classCount)
	}
	return w.api.Create(ctx, n)
}

func (w *writer) labelNode(ctx context.Context) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name("node", nodeCount)}}
	if w.rand.IntN(4) == 0 {
		return w.merge(ctx, n, `{"metadata":{"labels":{%q:null}}}`, ClassLabel)
	}
	return w.merge(ctx, n, `{"metadata":{"labels":{%q:%q}}}`, ClassLabel, w.name("class", classCount))
}

func (w *writer) deleteNode(ctx context.Context) error {
	return w.api.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name("node", nodeCount)}})
}

func (w *writer) createBuffer(ctx context.Context) error {
	b := &autoscalingv1beta1.CapacityBuffer{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: w.name("buffer", bufferCount)},
		Spec: autoscalingv1beta1.CapacityBufferSpec{
			PodTemplateRef: &autoscalingv1beta1.LocalObjectRef{Name: "template"}, Replicas: ptr.To(int32(1)),
		},
	}
	if w.rand.IntN(2) == 0 {
		b.Labels = map[string]string{HomeInstanceLabel: []string{"a", "b"}[w.rand.IntN(2)]}
	}
	return w.api.Create(ctx, b)
}

func (w *writer) moveBuffer(ctx context.Context) error {
	b := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: w.name("buffer", bufferCount)}}
	return w.merge(ctx, b, `{"metadata":{"labels":{%q:%q}}}`, HomeInstanceLabel, []string{"a", "b"}[w.rand.IntN(2)])
}

func (w *writer) deleteBuffer(ctx context.Context) error {
	return w.api.Delete(ctx, &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: w.name("buffer", bufferCount)}})
}

// any is some pool, claim or node.
func (w *writer) any() client.Object {
	switch w.rand.IntN(3) {
	case 0:
		return &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.name("pool", poolCount)}}
	case 1:
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.name("claim", claimCount)}}
	default:
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name("node", nodeCount)}}
	}
}

func (w *writer) touch(ctx context.Context) error {
	return w.merge(ctx, w.any(), `{"metadata":{"annotations":{"touched":"%d"}}}`, w.rand.IntN(1_000_000))
}

// release removes finalizers, which ends the deletion of what is being deleted.
func (w *writer) release(ctx context.Context) error {
	return w.merge(ctx, w.any(), `{"metadata":{"finalizers":null}}`)
}

func (w *writer) merge(ctx context.Context, o client.Object, format string, args ...any) error {
	return w.api.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...)))
}

// listOf reads all objects of a viewed kind.
func listOf(ctx context.Context, live client.Client, kind string) ([]client.Object, error) {
	var list client.ObjectList
	switch kind {
	case kindPool:
		list = &karpv1.NodePoolList{}
	case kindClaim:
		list = &karpv1.NodeClaimList{}
	case kindNode:
		list = &corev1.NodeList{}
	case kindBuffer:
		list = &autoscalingv1beta1.CapacityBufferList{}
	}
	if err := live.List(ctx, list); err != nil {
		return nil, err
	}
	return itemsOf(list)
}
