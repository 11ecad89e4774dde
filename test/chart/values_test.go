package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/test/chart"
)

// parse reads values as a user writes them.
func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// C5 and section 2 #41: what is wrong in a values file fails the installation, and the message names the key. Half of an identity is among it.
func TestWrongValuesAreRefused(t *testing.T) {
	for _, c := range []struct{ values, says string }{
		{`instances: {name: a}`, `additional properties 'instances' not allowed`},
		{`instance: {nam: a}`, `at '/instance': additional properties 'nam' not allowed`},
		{`settings: {featureGates: {NodeRepare: true}}`, `at '/settings/featureGates': additional properties 'NodeRepare' not allowed`},
		{`networkPolicy: {sshCIDRs: []}`, `at '/networkPolicy': additional properties 'sshCIDRs' not allowed`},
		{`serviceMonitor: {labels: {}}`, `at '/serviceMonitor': additional properties 'labels' not allowed`},

		{`replicas: two`, `at '/replicas': got string, want integer`},
		{`replicas: -1`, `at '/replicas': minimum`},
		{`instance: {name: 7}`, `at '/instance/name': got number, want string`},
		{`settings: {probeInterval: 2}`, `at '/settings/probeInterval': got number, want string`},
		{`settings: {probeInterval: 2 minutes}`, `at '/settings/probeInterval': '2 minutes' does not match pattern`},
		{`settings: {logLevel: warn}`, `at '/settings/logLevel': value must be one of 'debug', 'info', 'error'`},
		{`settings: {joinConcurrency: 0}`, `at '/settings/joinConcurrency': minimum`},
		{`controller: {metricsPort: 70000}`, `at '/controller/metricsPort': maximum`},
		{`image: {digest: "sha256:abc"}`, `at '/image/digest': 'sha256:abc' does not match pattern`},
		{`networkPolicy: {sshPorts: 22}`, `at '/networkPolicy/sshPorts': got number, want array`},
		{`networkPolicy: {sshEgressCIDRs: [10.0.0.1]}`, `at '/networkPolicy/sshEgressCIDRs/0': '10.0.0.1' does not match pattern`},
		{`podLabels: {x: true}`, `at '/podLabels/x': got boolean, want string`},
		{`poolNamespace: Pool_A`, `at '/poolNamespace': 'Pool_A' does not match pattern`},

		{`instance: {name: ""}`, `instance.name "" is not a DNS label of at most 40 characters`},
		{`instance: {name: Seg_A}`, `instance.name "Seg_A" is not a DNS label of at most 40 characters`},
		{`instance: {name: -a}`, `instance.name "-a" is not a DNS label of at most 40 characters`},
		{`instance: {name: ` + strings.Repeat("a", 41) + `}`, `is not a DNS label of at most 40 characters`},

		{`leaderElection: {name: x}`, `at '/leaderElection': additional properties 'name' not allowed`},
		{`settings: {leaderElectionName: x}`, `at '/settings': additional properties 'leaderElectionName' not allowed`},
		{`controller: {env: [{name: INSTANCE_NAME, value: x}]}`, `controller.env must not set INSTANCE_NAME: it follows from instance.name`},
		{`controller: {env: [{name: POOL_NAMESPACE, value: x}]}`, `controller.env must not set POOL_NAMESPACE: it follows from poolNamespace`},
		{`controller: {env: [{name: RELEASE, value: x}]}`, `controller.env must not set RELEASE`},
		{`controller: {env: [{name: LEADER_ELECTION_NAME, value: x}]}`, `controller.env must not set LEADER_ELECTION_NAME: it follows from instance.name`},
		{`controller: {env: [{name: LEADER_ELECTION_NAMESPACE, value: x}]}`, `controller.env must not set LEADER_ELECTION_NAMESPACE: it follows from leaderElection.namespace`},
		{`controller: {env: [{name: A, value: x}, {name: DISABLE_LEADER_ELECTION, value: "true"}]}`, `controller.env must not set DISABLE_LEADER_ELECTION`},

		{`podDisruptionBudget: {enabled: true}`, `podDisruptionBudget.minAvailable: 1 of 1 replicas would keep every node with a pod from being drained`},
		{`{replicas: 2, podDisruptionBudget: {enabled: true, minAvailable: 3}}`, `podDisruptionBudget.minAvailable: 3 of 2 replicas`},
		{`{replicas: 3, podDisruptionBudget: {enabled: true, minAvailable: 50%}}`, `at '/podDisruptionBudget/minAvailable': got string, want integer`},
		{`{serviceMonitor: {enabled: true}, service: {enabled: false}}`, `serviceMonitor.enabled needs service.enabled`},
		{`{serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}`, `every metric would be scraped twice`},
		{`networkPolicy: {enabled: true, sshPort: 2222, sshPorts: [22]}`, `networkPolicy.sshPort 2222 is not among networkPolicy.sshPorts`},
	} {
		_, err := chart.Render(t.Context(), chart.Release{Name: "kpssh", Namespace: "kp-a", Values: parse(t, c.values)})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v\nwant: %s", c.values, err, c.says)
		}
	}
}

// A values file of the existing chart works here: every key of it is known, with the same default.
func TestValuesOfTheExistingChartKeepTheirDefaults(t *testing.T) {
	want := parse(t, `
global: {}
replicas: 1
image: {tag: "", digest: "", pullPolicy: IfNotPresent}
imagePullSecrets: []
nameOverride: ""
fullnameOverride: ""
serviceAccount: {create: true, name: "", annotations: {}}
rbac: {create: true, extraRules: []}
poolNamespace: ""
settings: {logLevel: info, batchMaxDuration: 10s, batchIdleDuration: 1s}
service: {enabled: true, annotations: {}}
networkPolicy: {enabled: false, sshPort: 22, sshEgressCIDRs: [], apiServerPorts: [443, 6443], apiServerCIDRs: [], metricsFrom: [], extraEgress: []}
controller: {env: [], resources: {requests: {cpu: 200m, memory: 256Mi}}, metricsPort: 8080, healthProbePort: 8081}
podAnnotations: {}
podLabels: {}
podSecurityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: []
topologySpreadConstraints: []
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: karpenter.dklesev.github.io/managed, operator: DoesNotExist}]}]}}}
terminationGracePeriodSeconds: 30
podDisruptionBudget: {enabled: false, minAvailable: 1}
serviceMonitor: {enabled: false, additionalLabels: {}, interval: 30s, metricRelabelings: []}
`)
	includes(t, "", read(t, "values.yaml"), want)
	// A charts' user above this one may put anything into global; a variable that has become a value is still the user's.
	env := environment(t, render(t, "kpssh", "kp-a", parse(t, `
global: {storageClass: x, deep: {er: [1]}}
controller: {env: [{name: FEATURE_GATES, value: NodeRepair=false}, {name: KUBE_CLIENT_QPS, value: "7"}]}
`)))
	if env["FEATURE_GATES"] != "NodeRepair=false" || env["KUBE_CLIENT_QPS"] != "7" {
		t.Errorf("what controller.env says is lost: %v", env)
	}
}

func includes(t *testing.T, path string, got any, want any) {
	t.Helper()
	wanted, isMap := want.(map[string]any)
	if !isMap || len(wanted) == 0 {
		if g, w := asJSON(t, got), asJSON(t, want); g != w {
			t.Errorf("%s is %s, want %s", path, g, w)
		}
		return
	}
	found, _ := got.(map[string]any)
	for key, value := range wanted {
		includes(t, path+"."+key, found[key], value)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Whoever reads values.yaml or README.md knows every key that the schema allows, and a key of values.yaml that the schema lacks fails `helm lint`.
func TestEveryKeyOfTheSchemaIsDocumented(t *testing.T) {
	schema, values := read(t, "values.schema.json"), read(t, "values.yaml")
	documented, rows := map[string]bool{}, map[string]string{}
	text, err := os.ReadFile("../../charts/karpenter-provider-ssh/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) >= 4 && strings.HasPrefix(line, "| ") {
			key := strings.TrimPrefix(cells[0], "| ")
			rows[key] = cells[1]
			documented[key] = strings.Trim(cells[len(cells)-1], " |") != ""
		}
	}
	definitions := schema["$defs"].(map[string]any)
	checked := 0
	var walk func(path []string, node, values map[string]any)
	walk = func(path []string, node, values map[string]any) {
		if reference, ok := node["$ref"].(string); ok {
			node = definitions[strings.TrimPrefix(reference, "#/$defs/")].(map[string]any)
		}
		properties, _ := node["properties"].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			here := append(slices.Clone(path), key)
			name := strings.Join(here, ".")
			// Structures of Kubernetes itself, of which the default has some keys only.
			if rows[strings.Join(path, ".")] == "object" {
				continue
			}
			value, found := values[key]
			if !found {
				t.Errorf("%s is in the schema and not in values.yaml", name)
				continue
			}
			checked++
			_, inTable := rows[name]
			if nested, isMap := value.(map[string]any); isMap && !inTable {
				walk(here, properties[key].(map[string]any), nested)
			} else if !documented[name] {
				t.Errorf("%s has no description in README.md: put a comment with # -- before it, and run make generate", name)
			}
		}
	}
	walk(nil, schema, values)
	if checked < 80 {
		t.Errorf("only %d keys", checked)
	}
}

func read(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../charts/karpenter-provider-ssh/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

// Every value reaches the controller under the variable that it reads.
func TestSettingsReachTheController(t *testing.T) {
	env := environment(t, render(t, "kpssh", "kp-a", parse(t, `
poolNamespace: pool
leaderElection: {namespace: leases}
settings:
  {logLevel: debug, batchMaxDuration: 20s, batchIdleDuration: 2s, joinConcurrency: 3000000, probeConcurrency: 5, probeInterval: 7m, kubeletUnits: [kubelet, k3s],
   kubeClientQPS: 11, kubeClientBurst: 13}
controller: {metricsPort: 9090, healthProbePort: 9091}
proxy: {httpProxy: "http://p:1", httpsProxy: "http://p:2", noProxy: .internal}
`)))
	for name, want := range map[string]string{
		"POOL_NAMESPACE": "pool", "LEADER_ELECTION_NAMESPACE": "leases", "LOG_LEVEL": "debug", "BATCH_MAX_DURATION": "20s", "BATCH_IDLE_DURATION": "2s",
		"JOIN_CONCURRENCY": "3000000", "PROBE_CONCURRENCY": "5", "PROBE_INTERVAL": "7m", "KUBELET_UNITS": "kubelet,k3s", "KUBE_CLIENT_QPS": "11", "KUBE_CLIENT_BURST": "13",
		"METRICS_PORT": "9090", "HEALTH_PROBE_PORT": "9091", "HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:2",
		"NO_PROXY": "$(KUBERNETES_SERVICE_HOST),localhost,127.0.0.1,.internal", "DISABLE_LEADER_ELECTION": "false",
	} {
		if env[name] != want {
			t.Errorf("%s=%q, want %q", name, env[name], want)
		}
	}
	if _, found := environment(t, render(t, "kpssh", "kp-a", nil))["NO_PROXY"]; found {
		t.Error("NO_PROXY is set without a proxy")
	}
}

// C5: one name decides the bootstrap group, the labels and what the metrics carry.
func TestTheBootstrapGroupFollowsTheInstance(t *testing.T) {
	for name, want := range map[string]string{"default": "system:bootstrappers:kpssh", "seg-a": "system:bootstrappers:kpssh:seg-a"} {
		values := instance(name)
		values["bootstrapRBAC"] = map[string]any{"create": true}
		values["podMonitor"] = map[string]any{"enabled": true}
		granted := map[string]string{}
		for _, o := range render(t, "kpssh", "kp-a", values) {
			if o.GetLabels()["karpenter.dklesev.github.io/instance"] != name {
				t.Errorf("%s %s has labels %v", o.GetKind(), o.GetName(), o.GetLabels())
			}
			if role, _, _ := unstructured.NestedString(o.Object, "roleRef", "name"); strings.HasPrefix(role, "system:") {
				subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
				granted[role] = subjects[0].(map[string]any)["name"].(string)
			}
			if o.GetKind() == "PodMonitor" && !strings.Contains(asJSON(t, o.Object), `{"replacement":"`+name+`","targetLabel":"kpssh_instance"}`) {
				t.Errorf("metrics of karpenter do not get the instance's name: %v", o.Object)
			}
		}
		const approve = "system:certificates.k8s.io:certificatesigningrequests:"
		if !maps.Equal(granted, map[string]string{"system:node-bootstrapper": want, approve + "nodeclient": want, approve + "selfnodeclient": "system:nodes"}) {
			t.Errorf("instance %s: %v", name, granted)
		}
	}
}

// Section 3 #48: a rolling update hands over: the new pod stands by before the old one gives its lease back. On the node's network, where both would want the same
// ports, the old one goes first.
func TestARollingUpdateHandsOver(t *testing.T) {
	const newFirst = `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0},"type":"RollingUpdate"}`
	for values, want := range map[string]string{
		`{}`: newFirst, `replicas: 3`: newFirst, `hostNetwork: true`: `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`,
	} {
		found := false
		for _, o := range render(t, "kpssh", "kp-a", parse(t, values)) {
			if o.GetKind() != "Deployment" {
				continue
			}
			found = true
			strategy, _, _ := unstructured.NestedMap(o.Object, "spec", "strategy")
			if got := asJSON(t, strategy); got != want {
				t.Errorf("%s: strategy %s, want %s", values, got, want)
			}
			// Karpenter's manager takes up to 30 s to end what it does.
			if grace, _, _ := unstructured.NestedNumberAsFloat64(o.Object, "spec", "template", "spec", "terminationGracePeriodSeconds"); grace < 30 {
				t.Errorf("%s: grace period %v", values, grace)
			}
		}
		if !found {
			t.Error("no Deployment")
		}
	}
}

// Section 3 #47: machines of one segment may listen on different ports; the policy lets the controller out to each, and to no other.
func TestTheNetworkPolicyOpensEverySSHPort(t *testing.T) {
	for values, want := range map[string][]int64{
		`networkPolicy: {enabled: true}`:                          {22},
		`networkPolicy: {enabled: true, sshPort: 2222}`:           {2222},
		`networkPolicy: {enabled: true, sshPorts: [22, 2222, 2]}`: {22, 2222, 2},
	} {
		var got []int64
		for _, o := range render(t, "kpssh", "kp-a", parse(t, values)) {
			if o.GetKind() != "NetworkPolicy" {
				continue
			}
			egress, _, _ := unstructured.NestedSlice(o.Object, "spec", "egress")
			for _, rule := range egress {
				ports, _, _ := unstructured.NestedSlice(rule.(map[string]any), "ports")
				for _, port := range ports {
					number, _, err := unstructured.NestedNumberAsFloat64(port.(map[string]any), "port")
					if err != nil {
						t.Fatal(err)
					}
					if number != 53 && number != 443 && number != 6443 {
						got = append(got, int64(number))
					}
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: open are %v, want %v", values, got, want)
		}
	}
}
