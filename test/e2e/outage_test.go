//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// outageVariable is for how long an instance is dead. A minute outlives every lease and grace period; core's garbage collection, which
// must not touch what is the dead one's, runs every two, and a run with 5m shows it.
const (
	outageVariable = "KPSSH_E2E_OUTAGE"
	outageDefault  = time.Minute
)

func outageLasts() time.Duration {
	given := os.Getenv(outageVariable)
	if given == "" {
		return outageDefault
	}
	lasts, err := time.ParseDuration(given)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", outageVariable, err))
	}
	return lasts
}

// outage kills one segment's instance while its machine is in use, and has it back after a while.
func outage(ctx context.Context, dead, alive *segment) {
	GinkgoHelper()
	w := lives
	p := dead.pod(ctx, "outlives")
	dead.running(ctx, p)
	w.awaitHost(ctx, dead.machine.Name, "in use", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostInUse })
	leaves := len(begun(dead.machine, "leave"))

	killed := time.Now()
	dead.controller.kill()
	before := dead.belongings(ctx)
	claim := w.deleteClaim(ctx, dead.machine.Name)
	deleted := dead.belongings(ctx)
	for object, was := range before {
		Expect(deleted).To(HaveKey(object))
		Expect(deleted[object].finalizers).To(Equal(was.finalizers), object)
		Expect(deleted[object].uid).To(Equal(was.uid), object)
	}
	Expect(deleted["NodeClaim "+claim].deleting).To(BeTrue())

	meanwhile := alive.serveWhile(ctx, "meanwhile", 3, outageLasts())
	lasted := time.Since(killed)
	alive.expectLikeCalm(fmt.Sprintf("while instance %s is dead, for %.0fs", dead.instance, lasted.Seconds()), meanwhile)
	after := dead.belongings(ctx)
	Expect(after).To(Equal(deleted), "what is the dead one's has changed")
	_, foreign := w.writes(killed)
	for _, e := range foreign {
		Expect(tell(e)).To(BeEmpty(), "a write on what is another's")
	}
	Expect(begun(dead.machine, "leave")).To(HaveLen(leaves), "a machine was made to leave while its instance is dead")
	Expect(w.client.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
	Expect(p.Status.Phase).To(Equal(corev1.PodRunning), "the pod of the dead instance's machine")
	Expect(p.DeletionTimestamp).To(BeNil())

	returned := time.Now()
	Expect(dead.controller.start()).To(Succeed())
	dead.emptied(ctx)
	say("instance %s was dead for %.0fs; %.1fs after its return its deleted NodeClaim was gone and its machine back in the pool", dead.instance, lasted.Seconds(), time.Since(returned).Seconds())
	Expect(begun(dead.machine, "leave")).To(HaveLen(leaves+1), "leave runs once")
	w.expectOut(ctx, dead.machine.Name)
	err := w.client.Get(ctx, types.NamespacedName{Name: p.Spec.NodeName}, &corev1.Node{})
	Expect(apierrors.IsNotFound(err)).To(BeTrue(), "Node %s is left: %v", p.Spec.NodeName, err)
}

// belonging is what nobody but its owner may change about an object.
type belonging struct {
	uid        types.UID
	finalizers string
	deleting   bool
	// version is left out of Nodes, which their kubelet and the control plane write.
	version string
}

// belongings are all objects of the segment.
func (s *segment) belongings(ctx context.Context) map[string]belonging {
	GinkgoHelper()
	all := map[string]belonging{}
	note := func(kind string, o client.Object, version string) {
		all[kind+" "+o.GetName()] = belonging{o.GetUID(), fmt.Sprint(o.GetFinalizers()), !o.GetDeletionTimestamp().IsZero(), version}
	}
	claims := s.world.claimsOf(ctx, s.machine.Name)
	for i := range claims {
		note("NodeClaim", &claims[i], claims[i].ResourceVersion)
		node := &corev1.Node{}
		Expect(s.world.client.Get(ctx, types.NamespacedName{Name: claims[i].Status.NodeName}, node)).To(Succeed())
		note("Node", node, "")
	}
	for kind, object := range map[string]client.Object{
		"SSHNodeClass": &v1beta1.SSHNodeClass{}, "NodePool": &karpv1.NodePool{},
		"SSHHost": &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace}},
	} {
		Expect(s.world.client.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: s.machine.Name}, object)).To(Succeed())
		note(kind, object, object.GetResourceVersion())
	}
	Expect(all).To(HaveKey(HavePrefix("Node ")), "the segment has no Node")
	return all
}
