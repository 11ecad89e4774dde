package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Whoever is woken by an alert finds, in this order, what it means, how bad it is, where to look, what to do and when it is over.
var runbookParts = []string{"Meaning", "Impact", "Look", "Mend", "Over when"}

func TestEveryRunbookHasItsParts(t *testing.T) {
	for _, file := range runbooks(t) {
		text := read(t, file)
		var parts []string
		for _, match := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text, -1) {
			parts = append(parts, match[1])
		}
		if !slices.Equal(parts, runbookParts) {
			t.Errorf("%s has the parts %q, want %q", file, parts, runbookParts)
		}
		if !strings.Contains(text, "\n```\n") {
			t.Errorf("%s: nothing to look with", file)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		if want := strings.ToLower(title) + ".md"; filepath.Base(file) != want {
			t.Errorf("%s is about %s: name it %s, which is where the alert's runbook_url leads", file, title, want)
		}
	}
}

// An alert's runbook_url ends in its name in lower case.
func TestEveryAlertHasARunbookAndEveryRunbookAnAlert(t *testing.T) {
	rules := filepath.Join(root, "charts", "karpenter-provider-ssh", "files", "alerts.yaml")
	raw, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	var groups struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(raw, &groups); err != nil {
		t.Fatalf("%s: %v", rules, err)
	}
	var alerts []string
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue // a recording rule
			}
			name := strings.ToLower(rule.Alert)
			alerts = append(alerts, name)
			if url := rule.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/runbooks/"+name+".md") {
				t.Errorf("alert %s has runbook_url %q, want one that ends in /docs/runbooks/%s.md", rule.Alert, url, name)
			}
		}
	}
	var found []string
	for _, file := range runbooks(t) {
		found = append(found, strings.TrimSuffix(filepath.Base(file), ".md"))
	}
	slices.Sort(alerts)
	if alerts = slices.Compact(alerts); !slices.Equal(alerts, found) {
		t.Errorf("alerts and runbooks differ\n  alerts %v\nrunbooks %v", alerts, found)
	}
}

// runbooks are the files, in order.
func runbooks(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	if err != nil || len(files) < 17 {
		t.Fatalf("docs/runbooks has %d files, %v", len(files), err)
	}
	return files
}

// What a page tells people to look at is a metric that there is.
func TestMetricsInPagesExist(t *testing.T) {
	table := read(t, filepath.Join(root, "docs", "metrics.md"))
	name := regexp.MustCompile(`\bkpssh_[a-z_]*[a-z]\b`)
	suffix := regexp.MustCompile(`_(?:bucket|count|sum)$`)
	for _, file := range markdown(t) {
		for _, found := range name.FindAllString(read(t, file), -1) {
			if found == "kpssh_instance" { // the label
				continue
			}
			if !strings.Contains(table, "`"+found+"`") && !strings.Contains(table, "`"+suffix.ReplaceAllString(found, "")+"`") {
				t.Errorf("%s: there is no metric %s", file, found)
			}
		}
	}
}
