package kubelet

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Config is what a join script tells the kubelet.
type Config struct {
	NodeName   string
	NodeIP     string
	ProviderID string
	Labels     map[string]string
	Taints     []corev1.Taint
}

// ReadConfig reads a file of NAME=value lines: NODE_NAME, NODE_IP, PROVIDER_ID, NODE_LABELS (a=b,c=d), TAINTS (key=value:Effect,...),
// in the formats of the kubelet's flags.
func ReadConfig(path string) (Config, error) {
	file, err := os.Open(path)
	if err != nil {
		return Config{}, err
	}
	defer file.Close()
	var c Config
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "NODE_NAME":
			c.NodeName = value
		case "NODE_IP":
			c.NodeIP = value
		case "PROVIDER_ID":
			c.ProviderID = value
		case "NODE_LABELS":
			c.Labels, err = parseLabels(value)
		case "TAINTS":
			c.Taints, err = parseTaints(value)
		default:
			err = fmt.Errorf("unknown setting")
		}
		if err != nil {
			return Config{}, fmt.Errorf("%s: %s: %w", path, name, err)
		}
	}
	return c, scanner.Err()
}

func parseLabels(value string) (map[string]string, error) {
	labels := map[string]string{}
	for pair := range strings.SplitSeq(value, ",") {
		if pair == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("%q is not name=value", pair)
		}
		labels[name] = value
	}
	return labels, nil
}

func parseTaints(value string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	for item := range strings.SplitSeq(value, ",") {
		if item == "" {
			continue
		}
		// Keys hold no colon, but values may hold nearly anything: the effect is after the last one.
		colon := strings.LastIndex(item, ":")
		if colon <= 0 {
			return nil, fmt.Errorf("%q is not key[=value]:Effect", item)
		}
		key, value, _ := strings.Cut(item[:colon], "=")
		effect := corev1.TaintEffect(item[colon+1:])
		switch effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			return nil, fmt.Errorf("%q has no known effect", item)
		}
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
	return taints, nil
}
