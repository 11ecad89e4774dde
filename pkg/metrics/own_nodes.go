package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Core's Node metrics, which it computes for every Node in the cluster that it knows of. Their label managed is "true" where the Node
// belongs to a NodeClaim that core sees, which are this instance's.
const (
	coreNodePrefix      = "karpenter_nodes_"
	coreNodeAllocatable = "karpenter_nodes_allocatable"
	coreNodeRequests    = "karpenter_nodes_total_pod_requests"
	coreUtilization     = "karpenter_cluster_utilization_percent"
)

// Scope makes the process's metrics tell of own Nodes only, so that each Node is counted by one instance and sums over instances are right,
// and makes those of core and of libraries name the instance as ours do. Call it before the manager is made.
func Scope(instance string) {
	crmetrics.Registry = scoped{RegistererGatherer: crmetrics.Registry, instance: instance}
}

// scoped is a registry that is read through OwnNodes and Name.
type scoped struct {
	crmetrics.RegistererGatherer
	instance string
}

// Gather implements prometheus.Gatherer.
func (r scoped) Gather() ([]*dto.MetricFamily, error) {
	families, err := r.RegistererGatherer.Gather()
	families = OwnNodes(families)
	Name(families, r.instance)
	return families, err
}

var _ prometheus.Gatherer = scoped{}

// Name gives every series that has no InstanceLabel one.
func Name(families []*dto.MetricFamily, instance string) {
	own := &dto.LabelPair{Name: new(InstanceLabel), Value: &instance}
	for _, f := range families {
		for _, m := range f.Metric {
			at, found := slices.BinarySearchFunc(m.Label, InstanceLabel, func(l *dto.LabelPair, name string) int { return strings.Compare(l.GetName(), name) })
			if !found {
				// A slice of its own: the series shares its labels with every other scrape.
				m.Label = slices.Insert(slices.Clip(m.Label), at, own)
			}
		}
	}
}

// OwnNodes drops the series of Nodes that are not this instance's, and makes core's utilization of the cluster one of the own Nodes. It
// changes what it is given.
func OwnNodes(families []*dto.MetricFamily) []*dto.MetricFamily {
	kept := families[:0]
	allocatable, requested := map[string]float64{}, map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), coreNodePrefix) {
			kept = append(kept, f)
			continue
		}
		own := f.Metric[:0]
		for _, m := range f.Metric {
			if label(m, "managed") == "true" {
				own = append(own, m)
			}
		}
		if f.Metric = own; len(own) == 0 {
			continue
		}
		kept = append(kept, f)
		switch f.GetName() {
		case coreNodeAllocatable:
			sumByResource(allocatable, own)
		case coreNodeRequests:
			sumByResource(requested, own)
		}
	}
	for i, f := range kept {
		if f.GetName() != coreUtilization {
			continue
		}
		used := f.Metric[:0]
		for _, m := range f.Metric {
			resource := label(m, "resource_type")
			if total := allocatable[resource]; total > 0 && m.Gauge != nil {
				m.Gauge.Value = new(100 * requested[resource] / total)
				used = append(used, m)
			}
		}
		if f.Metric = used; len(used) == 0 {
			kept = append(kept[:i], kept[i+1:]...)
		}
		break
	}
	return kept
}

func sumByResource(sums map[string]float64, metrics []*dto.Metric) {
	for _, m := range metrics {
		sums[label(m, "resource_type")] += m.GetGauge().GetValue()
	}
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
