package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// host is a row of the table: a machine and everything that came of it.
type host struct {
	name      string
	state     string
	operation string
	trouble   string
	claim     string
	claimStep string // how far karpenter is with the NodeClaim
	node      string // Ready, NotReady, or nothing
	pods      int
	running   int
}

// snapshot is what is to be seen at one moment.
type snapshot struct {
	at      time.Time
	hosts   []host
	claims  int
	nodes   int
	pending int
	pods    int
	running int
	classes string // trouble with node classes
}

// look reads the cluster. Four lists of a few objects; the demo is no place for informers.
func look(ctx context.Context, c client.Client) (*snapshot, error) {
	var hosts v1beta1.SSHHostList
	var claims karpv1.NodeClaimList
	var nodes corev1.NodeList
	var pods corev1.PodList
	var classes v1beta1.SSHNodeClassList
	for _, list := range []client.ObjectList{&hosts, &claims, &nodes, &pods, &classes} {
		var options []client.ListOption
		if list == &pods {
			options = append(options, client.InNamespace("default"), client.MatchingLabels{"app": workload})
		}
		if err := c.List(ctx, list, options...); err != nil {
			return nil, err
		}
	}
	s := &snapshot{at: time.Now(), claims: len(claims.Items), nodes: len(nodes.Items), pods: len(pods.Items)}
	rows := map[string]*host{}
	s.hosts = make([]host, len(hosts.Items))
	slices.SortFunc(hosts.Items, func(a, b v1beta1.SSHHost) int { return cmp.Compare(a.Name, b.Name) })
	for i := range hosts.Items {
		s.hosts[i] = hostRow(&hosts.Items[i])
		rows[hosts.Items[i].StaticProviderID()] = &s.hosts[i]
	}
	for i := range claims.Items {
		if row := rows[claims.Items[i].Status.ProviderID]; row != nil {
			row.claim, row.claimStep = claims.Items[i].Name, claimStep(&claims.Items[i])
		}
	}
	byNode := map[string]*host{}
	for i := range nodes.Items {
		if row := rows[nodes.Items[i].Spec.ProviderID]; row != nil {
			row.node = readiness(&nodes.Items[i])
			byNode[nodes.Items[i].Name] = row
		}
	}
	for i := range pods.Items {
		s.countPod(&pods.Items[i], byNode)
	}
	for i := range classes.Items {
		if ready := classes.Items[i].StatusConditions().Root(); !ready.IsTrue() {
			s.classes += "SSHNodeClass " + classes.Items[i].Name + " is not ready: " + ready.Reason + " " + ready.Message
		}
	}
	return s, nil
}

func hostRow(h *v1beta1.SSHHost) host {
	row := host{name: h.Name, state: string(h.Status.State), trouble: h.Status.LastProbeError}
	if row.state == "" {
		row.state = string(v1beta1.HostPending)
	}
	if h.Status.Operation != nil {
		row.operation = string(h.Status.Operation.Type)
	}
	return row
}

func claimStep(claim *karpv1.NodeClaim) string {
	conditions := claim.StatusConditions()
	switch {
	case claim.DeletionTimestamp != nil:
		return "terminating"
	case conditions.Get(karpv1.ConditionTypeInitialized).IsTrue():
		return "initialized"
	case conditions.Get(karpv1.ConditionTypeRegistered).IsTrue():
		return "registered"
	case conditions.Get(karpv1.ConditionTypeLaunched).IsTrue():
		return "launched"
	}
	return "new"
}

func readiness(node *corev1.Node) string {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case node.DeletionTimestamp != nil:
		return "draining"
	case ready:
		return "Ready"
	}
	return "NotReady"
}

func (s *snapshot) countPod(pod *corev1.Pod, byNode map[string]*host) {
	running := pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
	if running {
		s.running++
	}
	if pod.Spec.NodeName == "" {
		s.pending++
	}
	if row := byNode[pod.Spec.NodeName]; row != nil {
		row.pods++
		if running {
			row.running++
		}
	}
}

// troubles are what hosts and classes complain about, for the reason of a failure.
func (s *snapshot) troubles() string {
	var lines []string
	if s.classes != "" {
		lines = append(lines, s.classes)
	}
	for _, h := range s.hosts {
		if h.trouble != "" {
			lines = append(lines, "SSHHost "+h.name+" ("+h.state+"): "+h.trouble)
		}
	}
	return strings.Join(lines, "\n")
}

func (s *snapshot) inState(state v1beta1.HostState) int {
	count := 0
	for _, h := range s.hosts {
		if h.state == string(state) {
			count++
		}
	}
	return count
}
