// Package alerts checks the chart's alerts and dashboards: rules_test.yaml is what fires and what does not, for promtool; here it is checked
// that what they ask for exists. It is a module of its own because Prometheus needs other versions of Kubernetes' libraries.
package alerts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v2"
)

const (
	root     = "../.."
	files    = root + "/charts/karpenter-provider-ssh/files"
	runbooks = "https://github.com/kpssh/karpenter-provider-ssh/blob/main/docs/runbooks/"
)

// metric is a row of docs/metrics.md.
type metric struct {
	kind   string
	labels []string
}

var row = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")

// known are the metrics that docs/metrics.md lists, which the generator takes from the binary's registry, and test/integration compares
// with a live scrape. Histograms are known by the names of their series.
func known(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	for _, cells := range row.FindAllStringSubmatch(read(t, root+"/docs/metrics.md"), -1) {
		m := metric{kind: cells[2], labels: []string{"kpssh_instance"}}
		for _, label := range strings.Split(cells[3], ", ") {
			m.labels = append(m.labels, strings.Trim(label, "`"))
		}
		if m.kind != "histogram" {
			all[cells[1]] = m
			continue
		}
		for _, suffix := range []string{"_count", "_sum", "_bucket"} {
			all[cells[1]+suffix] = metric{m.kind, append(slices.Clone(m.labels), "le")}
		}
	}
	if len(all) < 40 {
		t.Fatalf("docs/metrics.md lists only %d metrics", len(all))
	}
	return all
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, files+"/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

var quoted = regexp.MustCompile(`\$labels\.(\w+)`)

// An alert says how bad it is, what it is about and where help stands, and every label that its text quotes is one that it has.
func TestEveryAlertCanBeActedOn(t *testing.T) {
	metrics, cases := known(t), read(t, "rules_test.yaml")
	names := []string{}
	for _, r := range rules(t) {
		names = append(names, r.Alert)
		if r.For == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) || len(r.Labels) != 1 {
			t.Errorf("%s: for %q, labels %v", r.Alert, r.For, r.Labels)
		}
		if want := runbooks + strings.ToLower(r.Alert) + ".md"; r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has annotations %v", r.Alert, r.Annotations)
		}
		if !strings.Contains(cases, `alertname="`+r.Alert+`", alertstate="firing"`) {
			t.Errorf("rules_test.yaml has no case in which %s fires", r.Alert)
		}
		grouping := judge(t, "alert "+r.Alert, r.Expr, metrics)
		for _, text := range []string{r.Annotations["summary"], r.Annotations["description"]} {
			for _, label := range quoted.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(grouping, label[1]) {
					t.Errorf("%s quotes label %s, which it does not have: %v", r.Alert, label[1], grouping)
				}
			}
		}
	}
	for _, want := range []string{
		"DuplicateInstance", "SharedPoolNamespace", "UnownedNodeClass", "NodePoolWithoutOwner", "MovedNodePool", "SharedMachine", "InstanceDown",
		"HostKeyChanged", "HostsUnhealthy", "PoolExhausted", "JoinFailing", "JoinSlow", "LeaveStuck", "ZombieKubelet", "ClusterStateUnsynced",
		"TokenLeak", "CredentialExpiring",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no alert %s", want)
		}
	}
}

// A dashboard chooses instances first, and every panel asks for what exists.
func TestEveryPanelAsksForWhatExists(t *testing.T) {
	metrics := known(t)
	paths, err := filepath.Glob(files + "/dashboards/*.json")
	if err != nil || len(paths) != 2 {
		t.Fatalf("dashboards: %v, %v", paths, err)
	}
	for _, path := range paths {
		var board struct {
			Templating struct {
				List []struct{ Name, Query string }
			}
			Panels []struct {
				ID          int
				Type, Title string
				GridPos     struct{ H, W, X, Y int }
				Targets     []struct{ Expr string }
			}
		}
		if err := json.Unmarshal([]byte(read(t, path)), &board); err != nil {
			t.Fatal(err)
		}
		if first := board.Templating.List[0]; first.Name != "instance" || !strings.Contains(first.Query, "kpssh_instance") {
			t.Errorf("%s: the first variable is %+v", path, first)
		}
		taken := map[[2]int]string{}
		for _, p := range board.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: panel %q asks for nothing", path, p.Title)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, covered := taken[[2]int{x, y}]; covered || x >= 24 {
						t.Fatalf("%s: panels %q and %q overlap", path, other, p.Title)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			for _, target := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".+").Replace(target.Expr)
				judge(t, filepath.Base(path)+" "+p.Title, expr, metrics)
			}
		}
	}
}

// judge reports metrics, and labels of them, that do not exist, and gives the labels that expr groups by.
func judge(t *testing.T, where, expr string, metrics map[string]metric) (grouping []string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return nil
	}
	labels := []string{}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			m, there := metrics[n.Name]
			if !there {
				t.Errorf("%s asks for %s, which docs/metrics.md does not list", where, n.Name)
			}
			labels = append(labels, m.labels...)
			for _, matcher := range n.LabelMatchers {
				if matcher.Name != "__name__" && !slices.Contains(m.labels, matcher.Name) {
					t.Errorf("%s asks for label %s of %s, which has %v", where, matcher.Name, n.Name, m.labels)
				}
			}
		case *parser.AggregateExpr:
			if n.Without {
				t.Errorf("%s: aggregate by labels: `without` keeps those of a replica", where)
			}
			grouping = append(grouping, n.Grouping...)
		}
		return nil
	})
	for _, label := range grouping {
		if !slices.Contains(labels, label) {
			t.Errorf("%s groups by %s; there are %v", where, label, labels)
		}
	}
	return grouping
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
