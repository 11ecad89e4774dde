package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const hostLabel = "test/scenario"

// scenario is one test's machines, class and pool, and the instance that owns them. All its objects go when it ends.
type scenario struct {
	*instance
	t     *testing.T
	name  string
	fleet *sim.Fleet
	began time.Time
	// guest of an instance that outlives it.
	guest bool
}

// ctx is good for cleaning up too.
func (s *scenario) ctx() context.Context { return context.WithoutCancel(s.t.Context()) }

// begin makes a scenario of instance default with machines <name>-000…, registered. No controller runs yet.
func begin(t *testing.T, name string, heartbeat time.Duration, specs ...sim.Spec) *scenario {
	t.Helper()
	s := prepare(t, shared.newInstance(t, v1beta1.DefaultInstance, "kpssh-system"), name, heartbeat, specs...)
	s.register()
	return s
}

// prepare makes machines <name>-000… that no SSHHost describes yet, and applies a profile, a class and a pool of the scenario's name.
func prepare(t *testing.T, owner *instance, name string, heartbeat time.Duration, specs ...sim.Spec) *scenario {
	t.Helper()
	s := &scenario{instance: owner, t: t, name: name, began: time.Now()}
	fleet, err := sim.NewFleet(t.Context(), sim.Options{Config: s.cp.RESTConfig(), Log: os.Stderr, Heartbeat: heartbeat})
	if err != nil {
		t.Fatal(err)
	}
	s.fleet = fleet
	t.Cleanup(s.end)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("%s-%03d", name, i)
		specs[i].NodeIP = s.nodeIP()
	}
	if _, err := fleet.Add(specs...); err != nil {
		t.Fatal(err)
	}
	joinProfile := sim.Profile()
	joinProfile.Name = name
	s.create(joinProfile)
	s.create(s.class(name))
	s.create(s.pool(name))
	return s
}

// in is the scenario as a subtest sees it.
func (s *scenario) in(t *testing.T) *scenario {
	same := *s
	same.t = t
	return &same
}

// register makes the machines hosts of the instance.
func (s *scenario) register() { s.t.Helper(); s.registerWith(s.instance) }

// registerWith makes the machines hosts of any instance, that logs in under its own name as far as edits do not say otherwise.
func (s *scenario) registerWith(owner *instance, edits ...func(*v1beta1.SSHHost)) {
	s.t.Helper()
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: owner.namespace, Name: s.name}, Data: s.fleet.LoginSecret(owner.namespace, s.name, true).Data})
	for _, m := range s.fleet.Machines() {
		h := m.Host(owner.namespace, s.name)
		h.Labels = map[string]string{hostLabel: s.name}
		for _, edit := range edits {
			edit(h)
		}
		s.create(h)
	}
}

// class is one of the scenario's instance, for the scenario's machines and with its profile.
func (s *scenario) class(name string, edits ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	c := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1beta1.SSHNodeClassSpec{
		Instance:       s.instance.name,
		HostSelector:   &metav1.LabelSelector{MatchLabels: map[string]string{hostLabel: s.name}},
		JoinProfileRef: v1beta1.ProfileReference{Name: s.name},
	}}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

// pool is a NodePool for the class of the same name.
func (s *scenario) pool(name string) *karpv1.NodePool {
	return &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodePoolSpec{
		Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: name},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
			ExpireAfter:  karpv1.MustParseNillableDuration("Never"),
		}},
		Disruption: karpv1.Disruption{
			ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("1s"),
			Budgets: []karpv1.Budget{{Nodes: "100%"}},
		},
	}}
}

func (s *scenario) create(o client.Object) {
	s.t.Helper()
	if err := s.api.Create(s.ctx(), o); err != nil {
		s.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// remove deletes objects that may be gone already; finalizers are their owners' business.
func (s *scenario) remove(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		if err := s.api.Delete(s.ctx(), o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			s.t.Fatalf("deleting %T %s: %v", o, o.GetName(), err)
		}
	}
}

// start runs the controller of the scenario's instance.
func (s *scenario) start(kubeconfig string, env ...string) {
	s.t.Helper()
	s.instance.start(s.t, kubeconfig, env...)
}

// metric is the instance's.
func (s *scenario) metric(name string, pairs ...string) float64 {
	s.t.Helper()
	return s.instance.metric(s.t, name, pairs...)
}

// pod makes one pod that fits the scenario's pool only, and that fills most of a host of four cores.
func (s *scenario) pod(name string, edits ...func(*corev1.Pod)) {
	s.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name, Labels: map[string]string{hostLabel: s.name}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: s.name}, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: "pause", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")},
			}}},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	s.create(p)
}

// end removes everything the scenario made. Its instance goes first, unless others need it, so that nobody acts on what is left of it.
func (s *scenario) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if !s.guest {
		s.kill()
	}
	s.purge(ctx)
	s.fleet.Close()
}

// purge deletes the scenario's objects, finalizers and all: the machines go with the fleet.
func (s *scenario) purge(ctx context.Context) {
	mine := client.MatchingLabels{hostLabel: s.name}
	_ = s.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(corev1.NamespaceDefault), mine, client.GracePeriodSeconds(0))
	hosts := &v1beta1.SSHHostList{}
	_ = s.api.List(ctx, hosts, mine)
	s.purgePool(ctx, s.name)
	for i := range hosts.Items {
		s.destroy(ctx, &hosts.Items[i])
		_ = s.api.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hosts.Items[i].Namespace, Name: s.name}})
	}
	_ = s.api.Delete(ctx, &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
}

// purgePool deletes a pool, the class of its name, and what came of them.
func (s *scenario) purgePool(ctx context.Context, name string) {
	_ = s.api.Delete(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	claims, nodes := &karpv1.NodeClaimList{}, &corev1.NodeList{}
	inPool := client.MatchingLabels{karpv1.NodePoolLabelKey: name}
	_ = s.api.List(ctx, claims, inPool)
	_ = s.api.List(ctx, nodes, inPool)
	for i := range claims.Items {
		s.destroy(ctx, &claims.Items[i])
	}
	for i := range nodes.Items {
		s.destroy(ctx, &nodes.Items[i])
	}
	class := &v1beta1.SSHNodeClass{}
	if s.api.Get(ctx, client.ObjectKey{Name: name}, class) == nil {
		s.destroy(ctx, class)
	}
}

func (s *scenario) destroy(ctx context.Context, o client.Object) {
	_ = s.api.Delete(ctx, o)
	base := o.DeepCopyObject().(client.Object)
	o.SetFinalizers(nil)
	_ = s.api.Patch(ctx, o, client.MergeFrom(base))
}
