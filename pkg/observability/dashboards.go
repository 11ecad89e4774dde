package observability

import (
	"fmt"
	"strings"
)

// expand puts the selector of the chosen instances in.
func expand(expr string) string {
	return strings.ReplaceAll(expr, "$sel", `kpssh_instance=~"$instance"`)
}

// quantile of a histogram, by some labels.
func quantile(q float64, name, selector, by string) string {
	labels := "le, kpssh_instance"
	if by != "" {
		labels += ", " + by
	}
	return fmt.Sprintf("histogram_quantile(%g, sum by (%s) (rate(%s_bucket{%s}[$__rate_interval])))", q, labels, name, strings.TrimSuffix("$sel, "+selector, ", "))
}

// quantiles are the median and the slowest tenth.
func quantiles(name, selector string) []query {
	return []query{{quantile(0.5, name, selector, ""), "{{kpssh_instance}} median"}, {quantile(0.9, name, selector, ""), "{{kpssh_instance}} 90 %"}}
}

// grown is how much a counter grew a second, by some labels.
func grown(name, by string) query {
	legend := "{{kpssh_instance}}"
	for _, label := range strings.Split(by, ", ") {
		legend += " {{" + label + "}}"
	}
	return query{fmt.Sprintf("sum by (kpssh_instance, %s) (rate(%s{$sel}[$__rate_interval]))", by, name), legend}
}

// Dashboards are the files of the chart, by name.
func Dashboards() (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, make := range map[string]func() ([]byte, error){"fleet": fleet, "instance": instance} {
		content, err := make()
		if err != nil {
			return nil, err
		}
		files[name+".json"] = content
	}
	return files, nil
}

func fleet() ([]byte, error) {
	b := &board{}
	b.row("Who is there, and who owns what")
	b.table("Instances", "What runs.", "", `max by (kpssh_instance, pool_namespace, version) (kpssh_instance_info{$sel})`)
	b.table("Alive, as the others see it", "1: the lease is renewed. 0: it is not, and somebody would miss the instance.", "", `max by (name) (kpssh_instance_alive)`)
	b.graph("Owned objects", "", "short", query{`max by (kpssh_instance, kind) (kpssh_owned{$sel})`, "{{kpssh_instance}} {{kind}}"})

	b.row("Conflicts")
	b.table("Conflicts now", "Every instance reports every conflict that it can see; each is shown once.", "", `max by (type, namespace, name, other) (kpssh_ownership_conflicts)`)
	b.graph("Conflicts by type", "", "short", query{`count by (type) (max by (type, namespace, name, other) (kpssh_ownership_conflicts))`, "{{type}}"})
	b.graph("Writes on objects of other owners that were refused", "Not 0: somebody's mistake met a guard.", "ops", grown("kpssh_ownership_refused_total", "kind"))

	b.row("Hosts")
	b.graph("Hosts by state", "", "short", query{`sum by (kpssh_instance, state) (max by (kpssh_instance, class, state) (kpssh_pool_hosts{$sel}))`, "{{kpssh_instance}} {{state}}"})
	b.graph("Free hosts by class", "", "short", query{`max by (kpssh_instance, class) (kpssh_pool_hosts{$sel, state="Available"})`, "{{kpssh_instance}} {{class}}"})
	b.table("Hosts that a person has to look at", "", "", `max by (kpssh_instance, class, host, trouble) (kpssh_host_trouble{$sel})`)

	b.row("Leases and turns")
	b.graph("Leading replicas", "1 for each instance.", "short", query{`sum by (kpssh_instance, name) (leader_election_master_status{$sel})`, "{{kpssh_instance}} {{name}}"})
	b.graph("Turn of voluntary disruption", "At most one instance has it.", "short", query{`max by (kpssh_instance) (kpssh_disruption_turn_held{$sel})`, "{{kpssh_instance}}"})
	b.graph("Wait for the turn", "", "s", quantiles("kpssh_disruption_turn_wait_seconds", "")...)
	b.graph("Disruptions that were refused", "", "ops", grown("kpssh_disruption_turn_refusals_total", "reason"))
	b.graph("Turns taken", "", "ops", grown("kpssh_disruption_turns_total", "how"))

	b.row("What separates the instances")
	b.graph("Objects of others that were hidden from karpenter", "", "ops", grown("kpssh_ownership_dropped_total", "kind"))
	b.graph("Age of karpenter's view of the own classes", "", "s", query{`max by (kpssh_instance, kind) (kpssh_ownership_lag_seconds{$sel})`, "{{kpssh_instance}} {{kind}}"})
	b.graph("Time until credentials expire", "", "s", query{
		`min by (kpssh_instance, kind, name) (kpssh_credential_expiry_timestamp_seconds{$sel}) - time()`, "{{kpssh_instance}} {{kind}} {{name}}"})
	return b.finish("kpssh-fleet", "karpenter-provider-ssh / Fleet", "All instances: who owns what, hosts, conflicts, leases and turns.")
}

func instance() ([]byte, error) {
	b := &board{}
	b.row("From a pending pod to a Ready node")
	b.graph("Pod created → bound", "Pods on nodes of this instance.", "s", quantiles("karpenter_pods_bound_duration_seconds", "")...)
	b.graph("NodeClaim created → host claimed", "", "s", quantiles("kpssh_claim_wait_seconds", "")...)
	b.graph("Claimed → work begins", "Time in the queue of JOIN_CONCURRENCY.", "s", quantiles("kpssh_operation_queue_seconds", `operation="join"`)...)
	b.graph("Claimed → joined", "Until the join script ended.", "s", quantiles("kpssh_claim_to_joined_seconds", "")...)
	b.graph("Claimed → Ready", "", "s", quantiles("kpssh_claim_to_ready_seconds", "")...)
	b.graph("Longest in a state that should pass", "", "s", query{`max by (kpssh_instance, state) (kpssh_pool_oldest_seconds{$sel})`, "{{kpssh_instance}} {{state}}"})

	b.row("Work on machines")
	b.graph("Phases: slowest tenth", "", "s", query{quantile(0.9, "kpssh_instance_phase_duration_seconds", "", "phase"), "{{kpssh_instance}} {{phase}}"})
	b.graph("Operations: outcome", "", "ops", grown("kpssh_operations_total", "operation, outcome"))
	b.graph("Operations: running and waiting", "", "short",
		query{`max by (kpssh_instance) (kpssh_operations_running{$sel})`, "{{kpssh_instance}} running"},
		query{`max by (kpssh_instance, operation) (kpssh_operations_queued{$sel})`, "{{kpssh_instance}} {{operation}} waiting"})
	b.graph("Hosts by state", "", "short", query{`sum by (kpssh_instance, state) (max by (kpssh_instance, class, state) (kpssh_pool_hosts{$sel}))`, "{{kpssh_instance}} {{state}}"})
	b.graph("Bootstrap tokens on record", "", "short", query{`max by (kpssh_instance, state) (kpssh_bootstrap_tokens{$sel})`, "{{kpssh_instance}} {{state}}"})
	b.graph("Bootstrap tokens made and deleted", "", "ops", grown("kpssh_bootstrap_token_operations_total", "action, outcome"))

	b.row("Failures, by whose fault it was")
	b.graph("Failed operations by blame", "", "ops", grown("kpssh_operation_failures_total", "operation, blame"))
	b.graph("Failed operations by reason", "", "ops", grown("kpssh_operation_failures_total", "operation, reason"))
	b.graph("Failed scripts by reason", "", "ops", grown("kpssh_phase_failures_total", "phase, reason"))
	b.graph("SSH connections that did not come about", "", "ops", grown("kpssh_ssh_dial_errors_total", "purpose, stage, reason"))
	b.graph("Claims that found no host", "", "ops", grown("kpssh_claim_failures_total", "reason"))
	b.graph("Writes that met another writer", "", "ops",
		query{`sum by (kpssh_instance) (rate(kpssh_host_write_conflicts_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} status"},
		query{`sum by (kpssh_instance) (rate(kpssh_claim_conflicts_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} claim"})

	b.row("Probes")
	b.graph("Probes: slowest tenth", "", "s", query{quantile(0.9, "kpssh_host_probe_duration_seconds", "", "outcome"), "{{kpssh_instance}} {{outcome}}"})
	b.graph("Probes: outcome", "", "ops", grown("kpssh_host_probe_duration_seconds_count", "outcome"))
	b.graph("Kubelets on unclaimed hosts", "", "ops", grown("kpssh_host_zombie_actions_total", "action"))
	b.graph("SSH connections", "", "ops", grown("kpssh_ssh_handshakes_total", "purpose, outcome"))

	b.row("Karpenter core: scheduling and disruption")
	b.graph("Pods that no node fits", "", "short",
		query{`max by (kpssh_instance) (karpenter_scheduler_unschedulable_pods_count{$sel, controller="provisioner"})`, "{{kpssh_instance}} unschedulable"},
		query{`count by (kpssh_instance) (karpenter_pods_unbound_time_seconds{$sel})`, "{{kpssh_instance}} not bound"},
		query{`sum by (kpssh_instance) (karpenter_scheduler_queue_depth{$sel})`, "{{kpssh_instance}} in the queue"})
	b.graph("Scheduling: slowest tenth", "", "s", query{quantile(0.9, "karpenter_scheduler_scheduling_duration_seconds", "", "controller"), "{{kpssh_instance}} {{controller}}"})
	b.graph("NodeClaims", "", "ops",
		query{`sum by (kpssh_instance) (rate(karpenter_nodeclaims_created_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} created"},
		query{`sum by (kpssh_instance) (rate(karpenter_nodeclaims_terminated_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} terminated"},
		query{`sum by (kpssh_instance, reason) (rate(karpenter_nodeclaims_disrupted_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} disrupted: {{reason}}"})
	b.graph("Disruption decisions", "", "ops", grown("karpenter_voluntary_disruption_decisions_total", "decision, reason"),
		query{`sum by (kpssh_instance) (rate(karpenter_voluntary_disruption_queue_failures_total{$sel}[$__rate_interval]))`, "{{kpssh_instance}} failed"})
	b.graph("Nodes that may be disrupted", "", "short", query{`max by (kpssh_instance, reason) (karpenter_voluntary_disruption_eligible_nodes{$sel})`, "{{kpssh_instance}} {{reason}}"})
	b.graph("Use of NodePools' limits", "", "percentunit", query{
		`max by (kpssh_instance, nodepool, resource_type) (karpenter_nodepools_usage{$sel}) / max by (kpssh_instance, nodepool, resource_type) (karpenter_nodepools_limit{$sel})`,
		"{{nodepool}} {{resource_type}}"})
	b.graph("State of the cluster in core", "Nodes; and for how long core has waited for its view.", "short",
		query{`max by (kpssh_instance) (karpenter_cluster_state_node_count{$sel})`, "{{kpssh_instance}} nodes"},
		query{`max by (kpssh_instance) (karpenter_cluster_state_unsynced_time_seconds{$sel})`, "{{kpssh_instance}} seconds unsynced"},
		query{`max by (kpssh_instance) (karpenter_cluster_state_synced{$sel})`, "{{kpssh_instance}} synced"})
	b.graph("Errors", "", "ops", grown("karpenter_cloudprovider_errors_total", "method, error"), grown("controller_runtime_reconcile_errors_total", "controller"))
	b.graph("Cloud provider calls: slowest tenth", "", "s", query{quantile(0.9, "karpenter_cloudprovider_duration_seconds", "", "method"), "{{kpssh_instance}} {{method}}"})
	return b.finish("kpssh-instance", "karpenter-provider-ssh / Instance", "One instance, or some: how nodes come about, what fails, and what karpenter decides.")
}
