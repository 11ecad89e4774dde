package examples

import (
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// side is what nodes of one autoscaler look like.
type side struct {
	labels map[string]string
	taints []corev1.Taint
}

func (s side) fits(pod *corev1.Pod) bool {
	offered := scheduling.NewLabelRequirements(s.labels)
	return scheduling.Taints(s.taints).ToleratesPod(pod) == nil && offered.Compatible(scheduling.NewPodRequirements(pod)) == nil
}

// B1: of two autoscalers that see a pod, one answers. Each workload of the examples fits its own side, and no other: neither the other
// autoscaler's nodes nor nodes that say nothing about sides.
func TestCoexistingWorkloadsFitOneSideOnly(t *testing.T) {
	// What the comment in cluster-autoscaler.yaml asks of its node groups.
	groups := side{map[string]string{"example.com/side": "cloud"}, []corev1.Taint{{Key: "example.com/side", Value: "cloud", Effect: corev1.TaintEffectNoSchedule}}}
	for _, c := range []struct {
		file, pool, others string // others is the NodePool of the other side, if it is one
		group              *side  // of the other side, if it is none of karpenter's
		here, there        string // workloads
	}{
		{file: "aws-karpenter.yaml", pool: "racks", others: "cloud", here: "on-racks", there: "in-the-cloud"},
		{file: "cluster-autoscaler.yaml", pool: "racks-beside-cluster-autoscaler", group: &groups, here: "racks-only", there: "cloud-only"},
	} {
		t.Run(c.file, func(t *testing.T) {
			sides, pods := read(t, filepath.Join("../../examples/coexistence", c.file))
			ours := sides[c.pool]
			theirs, found := sides[c.others]
			if c.group != nil {
				theirs, found = *c.group, true
			}
			if ours.labels == nil || !found || pods[c.here] == nil || pods[c.there] == nil {
				t.Fatalf("the file has pools %v and workloads %v", sides, pods)
			}
			if !ours.fits(pods[c.here]) || !theirs.fits(pods[c.there]) {
				t.Error("a workload does not fit its own side")
			}
			if ours.fits(pods[c.there]) || theirs.fits(pods[c.here]) {
				t.Error("a workload fits the other side as well, so both autoscalers answer it")
			}
			if silent := (side{}); silent.fits(pods[c.here]) || silent.fits(pods[c.there]) {
				t.Error("a workload fits nodes that say nothing: match its side positively")
			}
			if len(ours.taints) == 0 || ours.fits(&corev1.Pod{}) {
				t.Error("a pod that says nothing fits the machines")
			}
		})
	}
}

func read(t *testing.T, file string) (map[string]side, map[string]*corev1.Pod) {
	t.Helper()
	objects, err := decode(file)
	if err != nil {
		t.Fatal(err)
	}
	sides, pods := map[string]side{}, map[string]*corev1.Pod{}
	for _, object := range objects {
		convert := func(into any) {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
				t.Fatal(err)
			}
		}
		switch object.GetKind() {
		case "NodePool":
			pool := &karpv1.NodePool{}
			convert(pool)
			sides[pool.Name] = side{pool.Spec.Template.Labels, pool.Spec.Template.Spec.Taints}
		case "Deployment":
			deployment := &appsv1.Deployment{}
			convert(deployment)
			pods[deployment.Name] = &corev1.Pod{Spec: deployment.Spec.Template.Spec}
		}
	}
	return sides, pods
}
