package metrics

import "github.com/prometheus/client_golang/prometheus"

// Values of the label `operation`. A join has two halves: what this project does on the machine, and the Node that must come of it.
const (
	OperationJoin     = "join"
	OperationRegister = "register"
	OperationLeave    = "leave"
)

// Values of the label `outcome`.
const (
	Success = "success"
	Failure = "error"
)

// lifeBuckets span what a person waits for: a warm join of seconds to one that karpenter has long given up.
var lifeBuckets = []float64{1, 2, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600, 900, 1800}

var (
	// Operations counts attempts that ended, whatever they broke off at. What was cancelled is not counted.
	Operations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_operations_total",
		Help: "Attempts at an operation on a machine, by operation (join, register, leave) and outcome (success, error).",
	}, []string{"operation", "outcome"})
	// OperationFailures counts failed attempts by whose fault it was and why; PhaseFailures are those of them that a script ran for.
	OperationFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_operation_failures_total",
		Help: "Failed attempts at an operation on a machine, by operation (join, register, leave), blame (configuration, host, network, cluster) and reason.",
	}, []string{"operation", "blame", "reason"})
	// OperationQueue is how long operations waited until fewer than the allowed number ran.
	OperationQueue = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kpssh_operation_queue_seconds",
		Help:    "Time that an operation waited until fewer than JOIN_CONCURRENCY others ran, by operation (join, leave).",
		Buckets: durationBuckets,
	}, []string{"operation"})
	// OperationsQueued is how many operations wait so.
	OperationsQueued = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kpssh_operations_queued",
		Help: "Operations that wait until fewer than JOIN_CONCURRENCY others run, by operation (join, leave).",
	}, []string{"operation"})
	// ClaimWait is the time from a NodeClaim to its host.
	ClaimWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kpssh_claim_wait_seconds",
		Help:    "Time from a NodeClaim's creation until it has claimed a host.",
		Buckets: durationBuckets,
	})
	// ClaimFailures counts NodeClaims that got no host.
	ClaimFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_claim_failures_total",
		Help: "Attempts of NodeClaims to claim a host that failed, by reason (no_host, ending, error).",
	}, []string{"reason"})
	// ClaimToReady is the time from a claim to a Node that can run pods.
	ClaimToReady = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kpssh_claim_to_ready_seconds",
		Help:    "Time from a host's claim until its Node is Ready. A process that was started in between does not tell.",
		Buckets: lifeBuckets,
	})
	// DialErrors counts SSH connections that did not come about.
	DialErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_ssh_dial_errors_total",
		Help: "SSH connections that did not come about, by purpose (join, leave, prewarm, probe), stage (prepare, tcp, handshake, authentication), blame and reason; HostKeyMismatch is one.",
	}, []string{"purpose", "stage", "blame", "reason"})
	// TokenOperations counts what was done with bootstrap tokens.
	TokenOperations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kpssh_bootstrap_token_operations_total",
		Help: "Bootstrap tokens made and deleted, by action (mint, delete) and outcome (success, error).",
	}, []string{"action", "outcome"})
)

// A rule that asks how much a counter grew does not see the step from nothing to 1: what alerts ask about is there from the start.
func init() {
	for _, outcome := range []string{Success, Failure} {
		for _, operation := range []string{OperationJoin, OperationRegister, OperationLeave} {
			Operations.WithLabelValues(operation, outcome)
		}
		for _, action := range []string{"mint", "delete"} {
			TokenOperations.WithLabelValues(action, outcome)
		}
		for _, purpose := range []string{"join", "leave", "probe"} {
			Handshakes.WithLabelValues(purpose, outcome)
		}
		for _, phase := range []string{"install", "join", "leave"} {
			PhaseDuration.WithLabelValues(phase, outcome)
		}
		ProbeDuration.WithLabelValues(outcome)
	}
	for _, operation := range []string{OperationJoin, OperationLeave} {
		OperationQueue.WithLabelValues(operation)
		OperationsQueued.WithLabelValues(operation)
	}
	for _, action := range []string{"left", "parked_foreign", "leave_failed"} {
		ZombieActions.WithLabelValues(action)
	}
	for _, reason := range []string{"no_host", "ending", "error"} {
		ClaimFailures.WithLabelValues(reason)
	}
	for _, reason := range []string{"not_held", "lost", "unknown"} {
		TurnRefusals.WithLabelValues(reason)
	}
	for _, how := range []string{"free", "own", "expired"} {
		TurnsTaken.WithLabelValues(how)
	}
}
