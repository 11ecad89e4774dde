package chart_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// combinations of values, by what they are about.
var combinations = map[string]string{
	"defaults": `{}`,
	"everything": `
instance: {name: seg-a}
poolNamespace: dry-pool
replicas: 3
image: {digest: "sha256:` + strings.Repeat("0", 64) + `"}
imagePullSecrets: [{name: pull}]
serviceAccount: {annotations: {a: b}}
rbac: {extraRules: [{apiGroups: [example.com], resources: [things], verbs: [get]}]}
bootstrapRBAC: {create: true}
settings: {featureGates: {CapacityBuffer: true, NodeOverlay: true}}
controller:
  env: [{name: A, value: b}, {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  envFrom: [{secretRef: {name: more, optional: true}}]
  resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}
  extraVolumes: [{name: tmp, emptyDir: {}}]
  extraVolumeMounts: [{name: tmp, mountPath: /tmp}]
proxy: {httpProxy: "http://p:1", httpsProxy: "http://p:1", noProxy: .internal}
service: {annotations: {a: b}}
serviceMonitor: {enabled: true, additionalLabels: {release: prometheus}, metricRelabelings: [{action: labeldrop, regex: x}]}
prometheusRule: {enabled: true, additionalLabels: {release: prometheus}}
grafanaDashboard: {enabled: true}
networkPolicy:
  enabled: true
  sshPorts: [22, 2222]
  sshEgressCIDRs: [192.0.2.0/24, "2001:db8::/32"]
  apiServerCIDRs: [198.51.100.1/32]
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  extraEgress: [{to: [{ipBlock: {cidr: 203.0.113.1/32}}], ports: [{port: 3128, protocol: TCP}]}]
podDisruptionBudget: {enabled: true, minAvailable: 2}
podAnnotations: {a: b}
podLabels: {team: x, app.kubernetes.io/name: ignored}
hostAliases: [{ip: 192.0.2.1, hostnames: [host-a1]}]
dnsPolicy: None
dnsConfig: {nameservers: [192.0.2.53], searches: [example.com], options: [{name: ndots, value: "2"}]}
tolerations: [{operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}]
`,
	"on the node's network":   `{hostNetwork: true, networkPolicy: {enabled: true, sshPort: 2222}, podMonitor: {enabled: true}}`,
	"what exists is used":     `{rbac: {create: false}, serviceAccount: {create: false, name: mine}, service: {enabled: false}, admissionPolicies: {enabled: false}}`,
	"everything taken away":   `{podSecurityContext: null, securityContext: null, affinity: null, nodeSelector: null, priorityClassName: "", controller: {resources: null}, settings: {featureGates: {NodeRepair: null}}}`,
	"an instance at rest":     `{replicas: 0}`,
	"names that are too long": `{fullnameOverride: ` + strings.Repeat("long-", 15) + `name, nameOverride: ` + strings.Repeat("long-", 15) + `name}`,
}

// Section 2 chart rows, H3: a real API server accepts every object of every combination, strictly; also those of monitoring, whose kinds helm does not
// look for.
func TestTheAPIServerAcceptsWhatIsRendered(t *testing.T) {
	s := apiServer(t)
	s.namespaces(t, "dry", "dry-pool", "kube-system", "kube-public")
	s.monitoringCRDs(t)
	for name, text := range combinations {
		kinds := map[string]bool{}
		for _, o := range render(t, "kpssh", "dry", parse(t, text)) {
			kinds[o.GetKind()] = true
			if err := s.api.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
		}
		if name == "everything" {
			for _, kind := range []string{"Deployment", "Service", "ServiceAccount", "ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget", "ClusterRoleBinding"} {
				if !kinds[kind] {
					t.Errorf("no %s with %s", kind, name)
				}
			}
		}
	}
}

// The pod meets the restricted Pod Security Standard, and the API server would tell if it did not.
func TestThePodIsRestricted(t *testing.T) {
	s := apiServer(t)
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := s.api.Create(t.Context(), restricted); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"defaults": "", "everything": "", "on the node's network": "host namespaces", "everything taken away": "allowPrivilegeEscalation != false"} {
		for _, o := range render(t, "kpssh", "restricted", parse(t, combinations[name])) {
			if o.GetKind() != "Deployment" {
				continue
			}
			template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{}
			if err := json.Unmarshal([]byte(asJSON(t, template)), pod); err != nil {
				t.Fatal(err)
			}
			pod.Namespace, pod.Name = "restricted", "controller"
			err = s.api.Create(t.Context(), pod, client.DryRunAll)
			if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
				t.Errorf("%s: %v, want %q", name, err, says)
			}
		}
	}
}

func (s server) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		err := s.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// monitoringCRDs stand in for the Prometheus operator's, which are no part of what is tested: any content is accepted.
func (s server) monitoringCRDs(t *testing.T) {
	t.Helper()
	anything := true
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, kind := range []string{"ServiceMonitor", "PodMonitor", "PrometheusRule"} {
		singular := strings.ToLower(kind)
		crds = append(crds, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: singular + "s.monitoring.coreos.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "monitoring.coreos.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: singular + "s", Singular: singular, Kind: kind, ListKind: kind + "List"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything}}}},
			},
		})
	}
	if _, err := envtest.InstallCRDs(s.config, envtest.CRDInstallOptions{CRDs: crds}); err != nil {
		t.Fatal(err)
	}
}
