package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	metricsnode "sigs.k8s.io/karpenter/pkg/controllers/metrics/node"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// A Node is counted by its owner only: its own Nodes are what an instance reports, and what its utilization is computed of. Everything
// that is not about Nodes passes. All of it names the instance, so that alerts and dashboards can tell two apart.
func TestOnlyOwnNodesAreReported(t *testing.T) {
	registry := prometheus.NewRegistry()
	gauge := func(name string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name}, labels)
		registry.MustRegister(g)
		return g
	}
	allocatable := gauge(coreNodeAllocatable, "node_name", "managed", "resource_type")
	requests := gauge(coreNodeRequests, "node_name", "managed", "resource_type")
	lifetime := gauge("karpenter_nodes_current_lifetime_seconds", "node_name", "managed")
	utilization := gauge(coreUtilization, "resource_type")
	gauge("karpenter_nodepools_limit", "nodepool").WithLabelValues("a").Set(7)
	allocatable.WithLabelValues("own-1", "true", "cpu").Set(4)
	allocatable.WithLabelValues("own-2", "true", "cpu").Set(4)
	allocatable.WithLabelValues("foreign", "false", "cpu").Set(100)
	requests.WithLabelValues("own-1", "true", "cpu").Set(2)
	requests.WithLabelValues("foreign", "false", "cpu").Set(99)
	lifetime.WithLabelValues("foreign", "false").Set(1)
	utilization.WithLabelValues("cpu").Set(94)
	utilization.WithLabelValues("memory").Set(50) // of foreign Nodes only

	before := crmetrics.Registry
	t.Cleanup(func() { crmetrics.Registry = before })
	crmetrics.Registry = registry
	Scope("seg-a")
	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := lines(families)
	want := []string{
		coreUtilization + " kpssh_instance=seg-a resource_type=cpu 25",
		"karpenter_nodepools_limit kpssh_instance=seg-a nodepool=a 7",
		coreNodeAllocatable + " kpssh_instance=seg-a managed=true node_name=own-1 resource_type=cpu 4",
		coreNodeAllocatable + " kpssh_instance=seg-a managed=true node_name=own-2 resource_type=cpu 4",
		coreNodeRequests + " kpssh_instance=seg-a managed=true node_name=own-1 resource_type=cpu 2",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if families, err = registry.Gather(); err != nil || strings.Contains(strings.Join(lines(families), "\n"), InstanceLabel) {
		t.Errorf("what was scraped changed the series themselves: %v", lines(families))
	}
}

// What the filter goes by are core's names and labels. With core's own controller, over an own Node and over another instance's as this
// one sees it, the own one is left. If core renames anything, this fails, where the filter would let everything pass.
func TestCoreNamesItsNodeMetricsAsExpected(t *testing.T) {
	kube := fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&storagev1.VolumeAttachment{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName} }).
		Build()
	cluster := state.NewCluster(clock.RealClock{}, kube, nil)
	node := func(name string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "p", karpv1.NodeInitializedLabelKey: "true"}},
			Spec:       corev1.NodeSpec{ProviderID: "kpssh://pool/" + name},
			Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}, Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
		}
	}
	cluster.UpdateNodeClaim(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Status: karpv1.NodeClaimStatus{ProviderID: "kpssh://pool/own", NodeName: "own"}})
	for _, name := range []string{"own", "foreign"} {
		if err := cluster.UpdateNode(t.Context(), node(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := metricsnode.NewController(cluster).Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	families, err := crmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := func(families []*dto.MetricFamily, name, node string) (n int) {
		for _, line := range lines(families) {
			if strings.HasPrefix(line, name+" ") && strings.Contains(line+" ", node) {
				n++
			}
		}
		return n
	}
	for _, name := range []string{"own", "foreign"} {
		if count(families, coreNodeAllocatable, "node_name="+name+" ") == 0 {
			t.Errorf("core reports no %s of %s", coreNodeAllocatable, name)
		}
	}
	for _, name := range []string{coreNodeAllocatable, coreUtilization} {
		if count(families, name, "") == 0 {
			t.Errorf("core has no metric %s", name)
		}
	}
	left := OwnNodes(families)
	if count(left, coreNodeAllocatable, "node_name=own ") == 0 {
		t.Error("the own Node is not reported")
	}
	for _, line := range lines(left) {
		if strings.Contains(line, "node_name=foreign") {
			t.Errorf("reported: %s", line)
		}
	}
	if count(left, coreUtilization, "resource_type=cpu") != 1 {
		t.Error("no utilization is reported")
	}
}

func lines(families []*dto.MetricFamily) []string {
	var out []string
	for _, f := range families {
		for _, m := range f.Metric {
			text := f.GetName()
			for _, l := range m.Label {
				text += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			out = append(out, fmt.Sprintf("%s %g", text, m.GetGauge().GetValue()))
		}
	}
	slices.Sort(out)
	return out
}
