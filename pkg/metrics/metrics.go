// Package metrics holds every metric of this project: name, help and labels in one place. It decides nothing.
package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// InstanceLabel is on every metric of this project. Prometheus sets a label `instance` of its own, the address it scraped.
const InstanceLabel = "kpssh_instance"

// durationBuckets span a probe of a quarter second to an install of ten minutes.
var durationBuckets = []float64{0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600}

var (
	// HostWriteConflicts counts status writes of SSHHosts that lost against another writer and were decided anew.
	HostWriteConflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kpssh_host_write_conflicts_total",
		Help: "Status writes of SSHHosts that conflicted with another writer and were decided anew.",
	})
	// ClaimConflicts counts claims that lost a host to another writer.
	ClaimConflicts = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kpssh_claim_conflicts_total",
		Help: "Claims that lost a host to another writer and went on to the next host.",
	})
	// PhaseDuration is how long phases on machines took.
	PhaseDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kpssh_instance_phase_duration_seconds",
		Help:    "Duration of a phase on a machine, by phase (install, join, leave) and outcome (success, error).",
		Buckets: durationBuckets,
	}, []string{"phase", "outcome"})
	// PhaseFailures counts failed phases by whose fault it was and why.
	PhaseFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_phase_failures_total",
		Help: "Failed phases, by phase, blame (configuration, host, network, cluster) and reason.",
	}, []string{"phase", "blame", "reason"})
	// ProbeDuration is how long probes took.
	ProbeDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kpssh_host_probe_duration_seconds",
		Help:    "Duration of a probe, by outcome (success, error).",
		Buckets: durationBuckets,
	}, []string{"outcome"})
	// Handshakes counts SSH connections that were opened, by purpose and outcome.
	Handshakes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_ssh_handshakes_total",
		Help: "SSH connections opened, by purpose (join, leave, prewarm, probe) and outcome (success, error).",
	}, []string{"purpose", "outcome"})
	// ZombieActions counts what was done about kubelets that run on unclaimed hosts.
	ZombieActions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_host_zombie_actions_total",
		Help: "What was done about kubelets on unclaimed hosts (left, parked_foreign, leave_failed).",
	}, []string{"action"})
	// ClaimToJoined is the time from a claim to the end of its join script.
	ClaimToJoined = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kpssh_claim_to_joined_seconds",
		Help:    "Time from a host's claim to the end of its join script.",
		Buckets: durationBuckets,
	})
	// TaintGates is how old a Node was when a startup taint was removed from it.
	TaintGates = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kpssh_node_startup_taint_gate_seconds",
		Help:    "Age of a Node when its startup taint was removed, by the taint's key.",
		Buckets: durationBuckets,
	}, []string{"taint_key"})
	// OperationsRunning is how many operations run on machines now.
	OperationsRunning = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kpssh_operations_running",
		Help: "Joins and leaves that are running on machines now.",
	})
)

// counted are the metrics that the code adds to as it goes.
func counted() []prometheus.Collector {
	return []prometheus.Collector{
		HostWriteConflicts, ClaimConflicts, PhaseDuration, PhaseFailures, ProbeDuration, Handshakes, ZombieActions, ClaimToJoined, OperationsRunning, TaintGates,
		TurnHeld, TurnWait, TurnRefusals, TurnsTaken,
		Operations, OperationFailures, OperationQueue, OperationsQueued, ClaimWait, ClaimFailures, ClaimToReady, DialErrors, TokenOperations,
	}
}

// Register adds every metric of this project to a registry, each with the instance's name in InstanceLabel. Collectors are those whose
// figures are read when they are scraped, such as Pool and Info. Call it once a registry.
func Register(registry prometheus.Registerer, instance string, collectors ...prometheus.Collector) error {
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{InstanceLabel: instance}, registry)
	for _, c := range append(counted(), collectors...) {
		if err := labelled.Register(c); err != nil {
			return fmt.Errorf("registering a metric of instance %q: %w", instance, err)
		}
	}
	return nil
}

// All are the collectors of every metric of this project, for their descriptions: those that are read when they are scraped have nothing to
// tell here.
func All() []prometheus.Collector {
	return append(counted(), Info("", ""), Pool(nil), Owned(nil), Conflicts(nil), Alive(nil), Expiries(nil), Views(nil))
}
