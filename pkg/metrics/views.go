package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// ViewStats say what happened to the objects of one kind on their way between the API server and karpenter core.
type ViewStats struct {
	Dropped, Masked, Split, Translated, Injected, HandOvers, HandOverFailures, Refused uint64
	// LagSeconds is for how long core's cache has not shown the wanted set of classes.
	LagSeconds float64
}

// Views reads the figures, by kind, when it is scraped.
type Views func() map[string]ViewStats

// viewFigure is one metric of Views.
type viewFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(ViewStats) float64
}

func viewCounter(name, help string, value func(ViewStats) uint64) viewFigure {
	return viewFigure{
		desc: prometheus.NewDesc("kpssh_ownership_"+name, help, []string{"kind"}, nil),
		kind: prometheus.CounterValue, value: func(s ViewStats) float64 { return float64(value(s)) },
	}
}

var viewFigures = []viewFigure{
	viewCounter("dropped_total", "Objects of lists and watches that are not this instance's and were hidden from karpenter.",
		func(s ViewStats) uint64 { return s.Dropped }),
	viewCounter("masked_total", "Objects of lists and watches that were shown to karpenter as another provider's.",
		func(s ViewStats) uint64 { return s.Masked }),
	viewCounter("split_total", "Objects of lists and watches whose class and host belong to different instances.",
		func(s ViewStats) uint64 { return s.Split }),
	viewCounter("translated_total", "Objects that ceased to be this instance's by an edit, shown to karpenter as deleted.",
		func(s ViewStats) uint64 { return s.Translated }),
	viewCounter("injected_total", "Events by which karpenter was moved from one set of classes to the next.",
		func(s ViewStats) uint64 { return s.Injected }),
	viewCounter("handovers_total", "Moves of karpenter from one set of classes to the next that completed.",
		func(s ViewStats) uint64 { return s.HandOvers }),
	viewCounter("handover_failures_total", "Moves that could not read the cluster and were tried again.",
		func(s ViewStats) uint64 { return s.HandOverFailures }),
	viewCounter("refused_total", "Writes on objects of other owners that were refused.",
		func(s ViewStats) uint64 { return s.Refused }),
	{
		desc: prometheus.NewDesc("kpssh_ownership_lag_seconds", "For how long karpenter's cache has not shown the wanted set of classes.", []string{"kind"}, nil),
		kind: prometheus.GaugeValue, value: func(s ViewStats) float64 { return s.LagSeconds },
	},
}

// Describe implements prometheus.Collector.
func (v Views) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range viewFigures {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (v Views) Collect(ch chan<- prometheus.Metric) {
	for kind, stats := range v() {
		for _, f := range viewFigures {
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(stats), kind)
		}
	}
}
