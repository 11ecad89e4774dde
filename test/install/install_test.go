// Package install runs `make install` against an API server: other people's CRDs stay as they are.
package install

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

const root = "../.."

var (
	own = []string{
		"sshhosts.karpenter.dklesev.github.io", "sshjoinprofiles.karpenter.dklesev.github.io", "sshnodeclasses.karpenter.dklesev.github.io",
	}
	karpenter = []string{"nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh", "nodepools.karpenter.sh"}
)

// The steps build on each other, as they would on one cluster.
func TestInstallLeavesForeignCRDsAlone(t *testing.T) {
	server := apiserver.StartEnvironment(t)
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(server.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{Client: api, kubectl: filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(c.kubeconfig, server.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}

	c.createAsHelm(t, "karpenter.dklesev.github.io_sshhosts.yaml")
	c.mustMake(t, "install-shared")
	c.wantCRDs(t, "install-shared installs this project's own", own)
	if got := c.get(t, own[0]).Spec.Versions[0].AdditionalPrinterColumns; len(got) < 2 {
		t.Errorf("a CRD that Helm created with an older version was not updated: it has the columns %v", got)
	}

	// What a karpenter from before v1 leaves.
	old := foreign("nodepools", "NodePool", "v1beta1")
	if err := api.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	output, err := c.make(t, "install")
	if err == nil || !strings.Contains(output, "nodeclaims.karpenter.sh v1 is missing") && !strings.Contains(output, "nodepools.karpenter.sh v1 is missing") {
		t.Errorf("install beside a karpenter before v1 should be refused and say why; error %v, output:\n%s", err, output)
	}
	c.wantCRDs(t, "a refused install adds nothing", append([]string{"nodepools.karpenter.sh"}, own...))
	if err := api.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}

	c.mustMake(t, "install")
	c.wantCRDs(t, "install on a cluster without karpenter installs karpenter's too", append(karpenter, own...))

	// From here on they are somebody's, who has made them his own.
	before := map[string]string{}
	for _, name := range karpenter {
		crd := c.get(t, name)
		crd.Annotations["owner"] = "somebody else"
		if err := api.Update(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
		before[name] = crd.ResourceVersion
	}
	output = c.mustMake(t, "install")
	if !strings.Contains(output, "left as they are") {
		t.Errorf("install should say that karpenter's CRDs are left alone; output:\n%s", output)
	}
	after := map[string]string{}
	for _, name := range karpenter {
		after[name] = c.get(t, name).ResourceVersion
	}
	if !maps.Equal(before, after) {
		t.Errorf("karpenter.sh CRDs were written\n before %v\n  after %v", before, after)
	}
}

type cluster struct {
	client.Client
	kubectl, kubeconfig string
}

// createAsHelm creates a CRD as an older chart would have: Helm owns the fields, and one of them differs.
func (c cluster) createAsHelm(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "charts", "karpenter-provider-ssh", "crds", file))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(raw, crd); err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions[0].AdditionalPrinterColumns = crd.Spec.Versions[0].AdditionalPrinterColumns[:1]
	if err := c.Create(t.Context(), crd, client.FieldOwner("helm")); err != nil {
		t.Fatal(err)
	}
}

func (c cluster) make(t *testing.T, target string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-C", root, target)
	cmd.Env = append(os.Environ(), "KUBECTL="+c.kubectl, "KUBECONFIG="+c.kubeconfig)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func (c cluster) mustMake(t *testing.T, target string) string {
	t.Helper()
	output, err := c.make(t, target)
	if err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, output)
	}
	return output
}

func (c cluster) get(t *testing.T, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func (c cluster) wantCRDs(t *testing.T, what string, want []string) {
	t.Helper()
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, crd := range list.Items {
		got = append(got, crd.Name)
	}
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s\n got %v\nwant %v", what, got, want)
	}
}

func foreign(plural, kind, version string) *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.karpenter.sh", plural),
			Annotations: map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "karpenter.sh", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}}}},
		},
	}
}
