package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// H6: every metric says whose it is, under a label that Prometheus does not set itself; none is missing, none is there twice.
func TestEveryMetricNamesItsInstance(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := Register(registry, "seg-a",
		Info("kp-a", "v1.2.3"),
		Pool(func() PoolStats {
			return PoolStats{
				Hosts: map[PoolKey]int{{State: "Available", HostClass: "big"}: 3}, Oldest: map[string]float64{"Leaving": 40},
				Troubles: []HostTrouble{{Host: "h", HostClass: "big", Trouble: "LeavePending"}}, Tokens: 5, Overdue: 2,
			}
		}),
		Alive(func() map[string]bool { return map[string]bool{"seg-a": true, "seg-b": false} }),
		Expiries(func() map[Credential]time.Time {
			return map[Credential]time.Time{{Kind: "ssh_certificate", Name: "key"}: time.Unix(1000, 0)}
		}),
		Owned(func() map[string]int { return map[string]int{"NodePool": 2} }),
		Conflicts(func() []Conflict {
			return []Conflict{{Type: "SharedMachine", Namespace: "kp-a", Name: "h", Other: "kp-b/h"}}
		}),
		Views(func() map[string]ViewStats { return map[string]ViewStats{"Node": {Dropped: 7, LagSeconds: 1.5}} }),
	); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "kpssh_") {
			t.Errorf("%s does not begin with kpssh_", family.GetName())
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels[InstanceLabel] != "seg-a" {
				t.Errorf("%s has labels %v", family.GetName(), labels)
			}
			if _, taken := labels["instance"]; taken {
				t.Errorf("%s sets `instance`, which is Prometheus' own", family.GetName())
			}
			delete(labels, InstanceLabel)
			found[family.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			switch family.GetName() {
			case "kpssh_instance_info":
				if labels["pool_namespace"] != "kp-a" || labels["version"] != "v1.2.3" {
					t.Errorf("info has labels %v", labels)
				}
			case "kpssh_host_trouble":
				if labels["host"] != "h" || labels["class"] != "big" || labels["trouble"] != "LeavePending" {
					t.Errorf("the trouble has labels %v", labels)
				}
			case "kpssh_instance_alive":
				if (labels["name"] == "seg-a") != (m.GetGauge().GetValue() == 1) {
					t.Errorf("%s is alive: %v", labels["name"], m.GetGauge().GetValue())
				}
			case "kpssh_ownership_conflicts":
				if labels["type"] != "SharedMachine" || labels["namespace"] != "kp-a" || labels["name"] != "h" || labels["other"] != "kp-b/h" {
					t.Errorf("the conflict has labels %v", labels)
				}
			}
		}
	}
	for name, want := range map[string]float64{
		"kpssh_instance_info": 1, "kpssh_pool_hosts": 3, "kpssh_owned": 2, "kpssh_ownership_conflicts": 1,
		"kpssh_ownership_dropped_total": 7, "kpssh_ownership_lag_seconds": 1.5,
		"kpssh_pool_oldest_seconds": 40, "kpssh_host_trouble": 1, "kpssh_bootstrap_tokens": 7, "kpssh_instance_alive": 1,
		"kpssh_credential_expiry_timestamp_seconds": 1000,
	} {
		if found[name] != want {
			t.Errorf("%s is %v, want %v", name, found[name], want)
		}
	}
	// What rules ask the growth of must be there before it first grows.
	for _, name := range []string{
		"kpssh_instance_phase_duration_seconds", "kpssh_host_probe_duration_seconds", "kpssh_operations_total", "kpssh_operation_queue_seconds",
		"kpssh_host_zombie_actions_total", "kpssh_bootstrap_token_operations_total", "kpssh_claim_failures_total", "kpssh_claim_to_ready_seconds",
	} {
		if _, there := found[name]; !there {
			t.Errorf("%s is not there at the start", name)
		}
	}
	if Register(registry, "seg-a") == nil {
		t.Error("the same metrics were registered twice without an error")
	}
}
