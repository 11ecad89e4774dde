package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// nobodysClass is a class of an instance that does not exist.
const nobodysClass = "nobodys"

// seldom are metrics without a series until something happens that may not happen in this suite. That they are registered, and with which
// labels, is known from where docs/metrics.md is made.
var seldom = []string{
	"kpssh_host_trouble", "kpssh_operation_failures_total", "kpssh_phase_failures_total", "kpssh_ssh_dial_errors_total",
	"karpenter_cloudprovider_errors_total", "karpenter_nodeclaims_disrupted_total", "karpenter_nodepools_limit", "karpenter_pods_unbound_time_seconds",
	"karpenter_scheduler_queue_depth", "karpenter_scheduler_unschedulable_pods_count",
	"karpenter_voluntary_disruption_decisions_total", "karpenter_voluntary_disruption_queue_failures_total",
	"kpssh_node_startup_taint_gate_seconds", // a taint's key is known when it goes
	"leader_election_master_status",         // these processes do without a lease
}

var (
	documented = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")
	typed      = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	series     = regexp.MustCompile(`(?m)^([a-z][a-z0-9_]*)(?:\{(.*)\})? \S+$`)
	labelled   = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
)

// whatIsScraped compares the table of metrics, which alerts and dashboards are checked against, with what a running instance serves. All of
// it says which instance it is of. C4: a class that nobody owns is there, in the metrics of both.
func (p *pair) whatIsScraped() {
	table, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		p.Fatal(err)
	}
	p.a.serve(1, "scraped") // something to schedule, to join, to be Ready, and to end
	p.settle()
	p.a.serve(1, "scraped-again")
	for _, s := range []*scenario{p.a, p.b} {
		s.eventually(90*time.Second, "C4: the class of nobody is in the metrics", func() (bool, string) {
			n, err := s.scrape("kpssh_ownership_conflicts", `type="UnownedNodeClass"`, `name="`+nobodysClass+`"`, `other="seg-none"`)
			return n == 1, fmt.Sprint(n, err)
		})
	}
	for name, pairs := range map[string][]string{
		"kpssh_claim_wait_seconds_count": nil, "kpssh_claim_to_joined_seconds_count": nil, "kpssh_claim_to_ready_seconds_count": nil,
		"kpssh_operation_queue_seconds_count":    {`operation="join"`},
		"kpssh_operations_total":                 {`operation="register"`, `outcome="success"`},
		"kpssh_bootstrap_token_operations_total": {`action="delete"`, `outcome="success"`},
	} {
		p.a.eventually(30*time.Second, "a node that came about is counted in "+name, func() (bool, string) {
			n, err := p.a.scrape(name, pairs...)
			return n > 0, fmt.Sprint(n, err)
		})
	}
	if n, err := p.a.scrape("kpssh_instance_alive", `name="seg-none"`); err != nil || n != 0 {
		p.Errorf("seg-none is alive: %g, %v", n, err)
	}
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", p.a.metrics)) //nolint:noctx // loopback, in a test
	if err != nil {
		p.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.Fatal(err)
	}
	types, labels := map[string]string{}, map[string][]string{}
	for _, m := range typed.FindAllStringSubmatch(string(body), -1) {
		types[m[1]] = m[2]
	}
	for _, m := range series.FindAllStringSubmatch(string(body), -1) {
		if !strings.Contains(m[2], `kpssh_instance="seg-a"`) {
			p.Fatalf("a series does not name its instance: %s", m[0])
		}
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); types[base] != "" {
				name = base
			}
		}
		for _, label := range labelled.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels[name], label[1]) {
				labels[name] = append(labels[name], label[1])
			}
		}
	}
	rows := documented.FindAllStringSubmatch(string(table), -1)
	known := map[string]bool{}
	for _, row := range rows {
		name, kind := row[1], row[2]
		known[name] = true
		if types[name] == "" {
			if !slices.Contains(seldom, name) {
				p.Errorf("%s is documented and not scraped", name)
			}
			continue
		}
		if types[name] != kind {
			p.Errorf("%s is a %s and documented as a %s", name, types[name], kind)
		}
		for _, label := range labels[name] {
			if label != "kpssh_instance" && label != "le" && !strings.Contains(row[3], "`"+label+"`") {
				p.Errorf("%s has a label %s that is not documented", name, label)
			}
		}
	}
	for name := range types {
		if strings.HasPrefix(name, "kpssh_") && !known[name] {
			p.Errorf("%s is scraped and not documented", name)
		}
	}
	p.Logf("%d metrics documented, %d scraped", len(rows), len(types))
	p.settle()
}
