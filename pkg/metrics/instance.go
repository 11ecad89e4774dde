package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Info is a metric that is always 1 and says which pool namespace an instance has and which version runs.
func Info(poolNamespace, version string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "kpssh_instance_info",
		Help:        "1, with the instance's pool namespace and the version that runs.",
		ConstLabels: prometheus.Labels{"pool_namespace": poolNamespace, "version": version},
	})
	info.Set(1)
	return info
}

var owned = prometheus.NewDesc("kpssh_owned", "Objects that this instance owns, by kind.", []string{"kind"}, nil)

// Owned counts, when it is scraped, what the instance owns: a figure for each kind. A kind that cannot be counted now is left out.
type Owned func() map[string]int

// Describe implements prometheus.Collector.
func (o Owned) Describe(ch chan<- *prometheus.Desc) { ch <- owned }

// Collect implements prometheus.Collector.
func (o Owned) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range o() {
		ch <- prometheus.MustNewConstMetric(owned, prometheus.GaugeValue, float64(n), kind)
	}
}

// Conflict is a finding about who owns what. Other names the other party; it may be empty.
type Conflict struct{ Type, Namespace, Name, Other string }

var conflicts = prometheus.NewDesc("kpssh_ownership_conflicts", "1 for each conflict about who owns what, by type, object and other party.",
	[]string{"type", "namespace", "name", "other"}, nil)

// Conflicts lists, when it is scraped, the conflicts that there are. No two are equal.
type Conflicts func() []Conflict

// Describe implements prometheus.Collector.
func (c Conflicts) Describe(ch chan<- *prometheus.Desc) { ch <- conflicts }

// Collect implements prometheus.Collector.
func (c Conflicts) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c() {
		ch <- prometheus.MustNewConstMetric(conflicts, prometheus.GaugeValue, 1, f.Type, f.Namespace, f.Name, f.Other)
	}
}
