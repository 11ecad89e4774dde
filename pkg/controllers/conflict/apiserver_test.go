package conflict

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// With a real API server, recorder and registry: a conflict becomes an Event on its object, a condition on the own class and a metric, and
// when its cause is removed condition and metric go. Surveys are made by hand, on a clock that the test moves.
func TestAgainstAPIServer(t *testing.T) {
	log.SetLogger(logr.Discard())
	cfg := apiserver.Start(t, apiserver.CRDs)
	api, err := client.New(cfg, client.Options{Scheme: scheme.Scheme})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	mgr, err := controllerruntime.NewManager(cfg, controllerruntime.Options{Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard()})
	must(t, err)
	var own []*v1beta1.SSHHost
	clk := clocktesting.NewFakeClock(time.Now())
	ctl := NewController(Options{
		Self: Self{Instance: "seg-a", PoolNamespace: "kp-a", Release: "rel-a"}, LeaseNamespace: "kube-system", Live: mgr.GetAPIReader(), Client: mgr.GetClient(),
		Hosts:    func() []*v1beta1.SSHHost { return own },
		Refusals: func() []ownership.Refusal { return nil }, Splits: func() []ownership.Split { return nil }, NamesInUse: func() []NameInUse { return nil },
		Recorder: mgr.GetEventRecorder("kpssh-conflict"), Clock: clk,
	})
	registry := prometheus.NewRegistry()
	must(t, metrics.Register(registry, "seg-a", metrics.Conflicts(ctl.Conflicts)))
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(running) }()
	t.Cleanup(func() { stop(); <-stopped })
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the cache does not sync")
	}

	for _, name := range []string{"kp-a", "kp-b"} {
		must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	class, foreign := aClass("a", "seg-a"), aClass("b", "seg-b")
	must(t, api.Create(ctx, class))
	must(t, api.Create(ctx, foreign))
	ready(class)
	class.Status.Conditions[0].Message = "none"
	must(t, api.Status().Update(ctx, class))
	pool := validPool("p", "a")
	delete(pool.Spec.Template.Labels, v1beta1.ManagedLabel)
	dangling := validPool("d", "none")
	must(t, api.Create(ctx, pool))
	must(t, api.Create(ctx, dangling))
	machine := func(namespace string) *v1beta1.SSHHost {
		h := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "h"}, Spec: v1beta1.SSHHostSpec{
			Address: "192.0.2.1", SSHKeySecretRef: v1beta1.SecretReference{Name: "login"},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}
		must(t, api.Create(ctx, h))
		return h
	}
	ref := karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ownership.ClassKind, Name: "gone"}
	for name, class := range map[string]string{"orphan": "gone", "owned": "a"} {
		must(t, api.Create(ctx, &karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ownership.ClassLabel: class}},
			Spec:       karpv1.NodeClaimSpec{NodeClassRef: &ref, Requirements: []karpv1.NodeSelectorRequirementWithMinValues{}},
		}))
	}
	own = []*v1beta1.SSHHost{machine("kp-a")}
	twin := machine("kp-b")

	look := func(after time.Duration) {
		t.Helper()
		clk.Step(after)
		_, err := ctl.Reconcile(ctx)
		must(t, err)
	}
	look(0)
	look(time.Minute)

	want := []string{
		"DanglingNodeClaim NodeClaim/orphan", "DanglingNodePool NodePool/d", "MissingManagedLabel NodePool/p", "SharedMachine SSHHost/h", "SharedMachine SSHHost/h", "UnownedNodeClass SSHNodeClass/b",
	}
	var told []string
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		list := &eventsv1.EventList{}
		if err := api.List(ctx, list); err != nil {
			return false, err
		}
		told = nil
		for _, e := range list.Items {
			if strings.HasPrefix(e.ReportingController, "kpssh-conflict") {
				told = append(told, e.Reason+" "+e.Regarding.Kind+"/"+e.Regarding.Name)
				if e.Regarding.UID == "" || e.Note == "" {
					t.Errorf("event %s regards %+v and says %q", e.Reason, e.Regarding, e.Note)
				}
			}
		}
		slices.Sort(told)
		if slices.Equal(told, want) {
			return true, nil
		}
		look(time.Minute) // a list from the API server's cache may have been too early for what was just created
		return false, nil
	})
	if err != nil {
		t.Errorf("events %q, want %q", told, want)
	}
	if got, want := conditions(ctx, t, api, "a"), []string{"OwnershipConflict=True SharedMachine", "Ready=False NoHosts"}; !slices.Equal(got, want) {
		t.Errorf("conditions %q, want %q", got, want)
	}
	if got := conditions(ctx, t, api, "b"); len(got) != 0 {
		t.Errorf("S6: the foreign class was written: %q", got)
	}
	if got, want := gauge(t, registry), []string{
		"DanglingNodeClaim/orphan/gone", "DanglingNodePool/d", "MissingManagedLabel/p", "SharedMachine/kp-a/h/kp-b/h", "SharedMachine/kp-b/h/kp-a/h", "UnownedNodeClass/b/seg-b",
	}; !slices.Equal(got, want) {
		t.Errorf("metric %q, want %q", got, want)
	}

	// Every cause goes.
	pool.Spec.Template.Labels[v1beta1.ManagedLabel] = "true"
	must(t, api.Update(ctx, pool))
	must(t, api.Delete(ctx, dangling))
	must(t, api.Delete(ctx, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "orphan"}}))
	must(t, api.Delete(ctx, foreign))
	must(t, api.Delete(ctx, twin))
	for range hostsEvery {
		look(15 * time.Second)
	}
	if got, want := conditions(ctx, t, api, "a"), []string{"Ready=False NoHosts"}; !slices.Equal(got, want) {
		t.Errorf("afterwards conditions are %q, want %q", got, want)
	}
	if got := gauge(t, registry); len(got) != 0 {
		t.Errorf("afterwards the metric is %q", got)
	}
}

// validPool has what the CRD asks for.
func validPool(name, class string) *karpv1.NodePool {
	p := aPool(name, class, requires(corev1.LabelOSStable, "linux"))
	p.UID = ""
	p.Spec.Template.Labels["team"] = name
	p.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	return p
}

func conditions(ctx context.Context, t *testing.T, api client.Client, name string) []string {
	t.Helper()
	class := &v1beta1.SSHNodeClass{}
	must(t, api.Get(ctx, client.ObjectKey{Name: name}, class))
	return conditionsOf(class)
}

// gauge gives kpssh_ownership_conflicts as type/namespace/name/other.
func gauge(t *testing.T, registry *prometheus.Registry) (all []string) {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != "kpssh_ownership_conflicts" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			parts := []string{labels["type"], labels["namespace"], labels["name"]}
			if labels["type"] != v1beta1.ReasonDanglingNodePool {
				parts = append(parts, labels["other"])
			}
			parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
			all = append(all, strings.Join(parts, "/"))
		}
	}
	slices.Sort(all)
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
