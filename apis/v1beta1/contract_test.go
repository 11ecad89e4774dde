package v1beta1_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func TestDefaultsArePersisted(t *testing.T) {
	gated := merged(t, object(t, minimalClass), `spec: {startupTaintGates: [`+gate("a", ready)+`,`+gate("b", condition)+`]}`)
	for _, c := range []struct {
		name   string
		object *unstructured.Unstructured
		want   string // the whole spec, as YAML
	}{
		{"SSHHost", object(t, minimalHost), `
address: 192.0.2.11
capacity: {cpu: "4", memory: 8Gi}
execMode: Raw
port: 22
sshKeySecretRef: {name: key}
user: root`},
		{"SSHNodeClass", object(t, minimalClass), `
instance: default
joinProfileRef: {name: profile}
pricePerCPUHour: "0.02"
providerIDSource: Static`},
		{"SSHNodeClass with gates", gated, `
instance: default
joinProfileRef: {name: profile}
pricePerCPUHour: "0.02"
providerIDSource: Static
startupTaintGates:
- {taintKey: a, removeWhen: {podsReady: {namespace: ns, minReady: 1, selector: {matchLabels: {a: b}}}}}
- {taintKey: b, removeWhen: {nodeCondition: {type: Ready, status: "True"}}}`},
		{"SSHJoinProfile", object(t, minimalProfile), `
scripts: {install: "true", join: "true", leave: "true"}
version: "1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := api.Create(t.Context(), c.object); err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(c.object.Object["spec"])
			want, err := yaml.YAMLToJSON([]byte(c.want))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("spec\n got %s\nwant %s", got, want)
			}
		})
	}
}

// spec as a whole is optional in hosts and profiles: only what is inside is required.
func TestSpecAsAWholeIsOptional(t *testing.T) {
	for _, base := range []string{minimalHost, minimalProfile} {
		if err := api.Create(t.Context(), merged(t, object(t, base), `spec: null`), client.DryRunAll); err != nil {
			t.Errorf("without spec: %v", err)
		}
	}
}

func TestNamesAreTheContract(t *testing.T) {
	resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerResourcesForGroupVersion(v1beta1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range resources.APIResources {
		got = append(got, fmt.Sprintf("%s %s namespaced=%v %v %v", r.Name, r.Kind, r.Namespaced, r.ShortNames, r.Categories))
	}
	slices.Sort(got)
	want := []string{
		"sshhosts SSHHost namespaced=true [sshh] [karpenter]",
		"sshhosts/status SSHHost namespaced=true [] []",
		"sshjoinprofiles SSHJoinProfile namespaced=false [sjp] [karpenter]",
		"sshnodeclasses SSHNodeClass namespaced=false [snc] [karpenter]",
		"sshnodeclasses/status SSHNodeClass namespaced=false [] []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("resources\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// What `kubectl get` prints, as the server computes it.
func TestPrinterColumns(t *testing.T) {
	host := merged(t, object(t, minimalHost), `metadata: {name: printed, labels: {karpenter.dklesev.github.io/host-class: big}}`)
	class := merged(t, object(t, minimalClass), `{metadata: {name: printed}, spec: {instance: seg-a}}`)
	profile := merged(t, object(t, minimalProfile), `metadata: {name: printed}`)
	create(t, host, `
state: InUse
claimRef: {name: pool-a-x1, uid: u1}
installedProfile: profile@1
operation: {type: Join, started: "2026-01-02T03:04:05Z"}
conditions: [{type: Ready, status: "True", reason: ProbeSucceeded, message: m, lastTransitionTime: "2026-01-02T03:04:05Z"}]`)
	create(t, class, `
hosts: 3
free: 2
conditions: [{type: Ready, status: "False", reason: NoHosts, message: m, lastTransitionTime: "2026-01-02T03:04:05Z"}]`)
	create(t, profile, "")

	for resource, want := range map[string][]string{
		"namespaces/default/sshhosts/printed": {"Name=printed", "Address=192.0.2.11", "Class=big", "State=InUse", "Ready=True", "Phase=Join",
			"Since=*", "Claim=pool-a-x1", "Installed=profile@1", "Age=*"},
		"sshnodeclasses/printed":  {"Name=printed", "Instance=seg-a", "Profile=profile", "Ready=False", "Hosts=3", "Free=2", "Age=*"},
		"sshjoinprofiles/printed": {"Name=printed", "Version=1", "Age=*"},
	} {
		t.Run(resource, func(t *testing.T) {
			got := tableRow(t, resource)
			if len(got) != len(want) {
				t.Fatalf("columns\n got %v\nwant %v", got, want)
			}
			for i := range want {
				prefix, computed := strings.CutSuffix(want[i], "*")
				good := got[i] == want[i]
				if computed {
					good = strings.HasPrefix(got[i], prefix) && got[i] != prefix+"<nil>"
				}
				if !good {
					t.Errorf("column %d: got %s, want %s", i, got[i], want[i])
				}
			}
		})
	}
}

func TestSelectableFields(t *testing.T) {
	for name, instance := range map[string]string{"selectable-a": "spec: {instance: seg-sel}", "selectable-default": "{}"} {
		create(t, merged(t, merged(t, object(t, minimalClass), `metadata: {name: `+name+`, labels: {test: selectable}}`), instance), "")
	}
	for name, status := range map[string]string{"selectable-new": "", "selectable-used": `{state: InUse, claimRef: {name: c, uid: uid-7}}`} {
		create(t, merged(t, object(t, minimalHost), `metadata: {name: `+name+`, labels: {test: selectable}}`), status)
	}
	for _, c := range []struct{ resource, selector, want string }{
		{"sshnodeclasses", "spec.instance=seg-sel", "selectable-a"},
		{"sshnodeclasses", "spec.instance=default", "selectable-default"}, // the default is stored, so that it is selectable
		{"sshnodeclasses", "spec.instance!=seg-sel", "selectable-default"},
		{"sshhosts", "status.state=InUse", "selectable-used"},
		{"sshhosts", "status.state=", "selectable-new"},
		{"sshhosts", "status.claimRef.uid=uid-7", "selectable-used"},
	} {
		t.Run(c.selector, func(t *testing.T) {
			var got []string
			list, err := dynamic.NewForConfigOrDie(config).Resource(v1beta1.GroupVersion.WithResource(c.resource)).
				List(t.Context(), metav1.ListOptions{FieldSelector: c.selector, LabelSelector: "test=selectable"})
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range list.Items {
				got = append(got, item.GetName())
			}
			if strings.Join(got, ",") != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

func TestStatusRules(t *testing.T) {
	host := merged(t, object(t, minimalHost), `metadata: {name: status-rules}`)
	create(t, host, "")
	for _, c := range []struct{ name, accepted, refused, message string }{
		{"state is known", `state: Maintenance`, `state: Busy`, `status.state: Unsupported value: "Busy"`},
		{"claimRef has a name", `claimRef: {name: c}`, `claimRef: {uid: u}`, `status.claimRef.name: Required value`},
		{"claimRef.name is not empty", `claimRef: {name: c}`, `claimRef: {name: ""}`, `status.claimRef.name: Invalid value: ""`},
		{"claimRef.name has 253 characters at most", `claimRef: {name: ` + long(253) + `}`, `claimRef: {name: ` + long(254) + `}`,
			`status.claimRef.name: Too long: may not be more than 253 bytes`},
		{"bootstrapTokenID has 6 characters at most", `bootstrapTokenID: abcdef`, `bootstrapTokenID: abcdefg`,
			`status.bootstrapTokenID: Too long: may not be more than 6 bytes`},
		{"operation.type is known", `operation: {type: Leave, started: "2026-01-02T03:04:05Z"}`,
			`operation: {type: Reboot, started: "2026-01-02T03:04:05Z"}`, `status.operation.type: Unsupported value: "Reboot"`},
		{"operation says when it started", `operation: {type: Probe, started: "2026-01-02T03:04:05Z"}`, `operation: {type: Probe}`,
			`status.operation.started: Required value`},
		{"one condition a type", `conditions: [` + readyCondition + `]`, `conditions: [` + readyCondition + `,` + readyCondition + `]`,
			`status.conditions[1]: Duplicate value`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := api.Status().Update(t.Context(), merged(t, host, `status: {`+c.accepted+`}`), client.DryRunAll); err != nil {
				t.Errorf("should be accepted, got: %v", err)
			}
			err := api.Status().Update(t.Context(), merged(t, host, `status: {`+c.refused+`}`), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("refusal\n got %v\nwant %s", err, c.message)
			}
		})
	}
}

const readyCondition = `{type: Ready, status: "True", reason: ProbeSucceeded, message: m, lastTransitionTime: "2026-01-02T03:04:05Z"}`

// `kubectl explain` teaches the product: every field is described, and every default is named in the text, for explain does
// not show the schema's.
func TestEveryFieldIsDocumented(t *testing.T) {
	files, err := filepath.Glob("../../charts/karpenter-provider-ssh/crds/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("want 3 CRDs, got %v, %v", files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := object(t, string(raw))
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if len(versions) != 1 {
			t.Fatalf("%s: want one version, got %d", file, len(versions))
		}
		root, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
		documented(t, crd.GetName(), root)
	}
}

func documented(t *testing.T, path string, node map[string]any) {
	properties, _, _ := unstructured.NestedMap(node, "properties")
	for name, property := range properties {
		property, path := property.(map[string]any), path+"."+name
		description, _ := property["description"].(string)
		if name != "metadata" && strings.TrimSpace(description) == "" {
			t.Errorf("%s has no description", path)
		}
		if value, found := property["default"]; found && value != "" && name != "spec" && !strings.Contains(description, "Default: ") {
			t.Errorf("%s defaults to %v but its description does not say so", path, value)
		}
		documented(t, path, property)
	}
	if items, found, _ := unstructured.NestedMap(node, "items"); found {
		documented(t, path+"[]", items)
	}
}

// create makes an object and, when status (YAML) is given, writes its status.
func create(t *testing.T, object *unstructured.Unstructured, status string) {
	t.Helper()
	if err := api.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if status == "" {
		return
	}
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(status), &parsed); err != nil {
		t.Fatal(err)
	}
	object.Object["status"] = parsed
	if err := api.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// tableRow gives the one row of a server-side table as Column=cell.
func tableRow(t *testing.T, resource string) []string {
	t.Helper()
	raw, err := discovery.NewDiscoveryClientForConfigOrDie(config).RESTClient().Get().
		AbsPath("/apis/"+schema.GroupVersion{Group: v1beta1.Group, Version: "v1beta1"}.String()+"/"+resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("want one row, got %d", len(table.Rows))
	}
	row := make([]string, len(table.ColumnDefinitions))
	for i, column := range table.ColumnDefinitions {
		row[i] = fmt.Sprintf("%s=%v", column.Name, table.Rows[0].Cells[i])
	}
	return row
}
