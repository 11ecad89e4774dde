package integration

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// startupTaint: a node takes pods when the agent on it is ready, not before; and the gate of one class opens for its own nodes only.
func (p *pair) startupTaint() {
	const key = "example.com/agent"
	began := time.Now()
	s, name := p.a, "gated"
	p.discard(name)
	s.create(s.class(name, func(c *v1beta1.SSHNodeClass) {
		c.Spec.StartupTaintGates = []v1beta1.StartupTaintGate{{TaintKey: key, RemoveWhen: v1beta1.RemoveWhen{PodsReady: &v1beta1.PodsReady{
			Namespace: corev1.NamespaceDefault, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}}}}}
	}))
	pool := s.pool(name)
	pool.Spec.Template.Spec.StartupTaints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	s.create(pool)
	s.pod(name, podIn(name))
	node := &corev1.Node{}
	s.eventually(time.Minute, "the node is registered, with its startup taint alone", func() (bool, string) {
		claims := s.claimsOf(name)
		if len(claims) == 0 || claims[0].Status.NodeName == "" {
			return false, fmt.Sprint(len(claims), " claims")
		}
		err := s.api.Get(p.Context(), keyIn("", claims[0].Status.NodeName), node)
		return err == nil && len(node.Spec.Taints) == 1 && node.Spec.Taints[0].Key == key, fmt.Sprint(err, node.Spec.Taints)
	})
	s.throughout(2*time.Second, func() {
		for _, pod := range s.pods() {
			if pod.Spec.NodeName != "" {
				p.Fatalf("pod %s runs on a node that is not ready for it", pod.Name)
			}
		}
	})
	agent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: "agent", Labels: map[string]string{"app": "agent"}},
		Spec: corev1.PodSpec{NodeName: node.Name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: "pause"}}}}
	s.create(agent)
	p.Cleanup(func() { s.remove(agent) })
	took := s.running(1, time.Minute)
	p.Logf("from the agent to the pod: %.1fs; the node was %.0fs old by the metric", took.Seconds(), s.metric("kpssh_node_startup_taint_gate_seconds_sum"))
	if n := s.metric("kpssh_node_startup_taint_gate_seconds_count", `taint_key="`+key+`"`); n != 1 {
		p.Errorf("%v taints were removed by the metric, want 1", n)
	}
	s.eventually(30*time.Second, "the Node's event says why", func() (bool, string) {
		events := &eventsv1.EventList{}
		if err := s.api.List(p.Context(), events, client.InNamespace(corev1.NamespaceDefault)); err != nil {
			return false, err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "StartupTaintRemoved" && e.Regarding.Name == node.Name && strings.Contains(e.Note, key) && e.Action == "GateOpened" {
				return true, e.Note
			}
		}
		return false, fmt.Sprint(len(events.Items), " events")
	})
	s.deletePods()
	s.remove(agent)
	p.noForeignWrites(began)
	p.settle()
}
