package metrics

import "github.com/prometheus/client_golang/prometheus"

// The turn of voluntary disruption (pkg/ownership/turn).
var (
	// TurnHeld is 1 while this instance holds the turn.
	TurnHeld = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kpssh_disruption_turn_held",
		Help: "1 while this instance may begin voluntary disruptions.",
	})
	// TurnWait is how long disruptions waited.
	TurnWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kpssh_disruption_turn_wait_seconds",
		Help:    "Time from the first refusal of a voluntary disruption until one was allowed.",
		Buckets: durationBuckets,
	})
	// TurnRefusals counts writes that would have begun a disruption.
	TurnRefusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_disruption_turn_refusals_total",
		Help: "Writes that would have begun a voluntary disruption and were refused, by why (not_held, lost, unknown).",
	}, []string{"reason"})
	// TurnsTaken counts turns.
	TurnsTaken = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_disruption_turns_total",
		Help: "Turns of voluntary disruption that this instance took, by how (free, own, expired).",
	}, []string{"how"})
)
