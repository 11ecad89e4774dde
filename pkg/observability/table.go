package observability

import (
	"fmt"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

const tableHead = `# Metrics

<!-- Written by make generate. -->

Every instance serves its metrics at ` + "`/metrics`" + ` on ` + "`controller.metricsPort`" + ` (8080). All series, those of karpenter core and of libraries too, have the label
` + "`%s`" + `, the instance's name. Replicas of one instance count the same objects: use ` + "`max by`" + ` over replicas for gauges and ` + "`sum by`" + ` for counters.
A name of a host is a label only where an alert must say it, and only for as long as there is something to say.

Alerts: ` + "`charts/karpenter-provider-ssh/files/alerts.yaml`" + `, installed by ` + "`prometheusRule.enabled`" + `. Dashboards: ` + "`grafanaDashboard.enabled`" + `.

`

// Table is docs/metrics.md.
func Table() (string, error) {
	own, err := Own()
	if err != nil {
		return "", err
	}
	others, err := Core()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, tableHead, metrics.InstanceLabel)
	b.WriteString("## Metrics of this project\n\n")
	rows(&b, own)
	b.WriteString("\n## Metrics of karpenter core and its libraries that alerts and dashboards use\n\n")
	b.WriteString("There are more; karpenter documents them. What is about Nodes and Pods is about this instance's only.\n\n")
	rows(&b, others)
	return b.String(), nil
}

func rows(b *strings.Builder, all []Metric) {
	b.WriteString("| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
	for _, m := range all {
		labels := make([]string, 0, len(m.Labels))
		for _, l := range m.Labels {
			labels = append(labels, "`"+l+"`")
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), strings.ReplaceAll(m.Help, "|", `\|`))
	}
}
