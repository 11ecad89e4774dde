// Package chart renders the Helm chart as a user's helm would, so that tests run under what is shipped. It needs no cluster.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// helmPackage is the pinned command. .ci/steps/test.sh builds it ahead of the tests, which takes minutes once.
const helmPackage = "helm.sh/helm/v3/cmd/helm@v3.19.4"

// helm gives the executable that `go run` has built and cached: to start it by way of `go run` each time costs seconds.
var helm = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "run", "-exec", "echo", helmPackage).Output()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", helmPackage, err)
	}
	return strings.TrimSpace(string(out)), nil
})

// Release is an installation of the chart.
type Release struct {
	Name, Namespace string
	// Values override those of values.yaml.
	Values map[string]any
}

// Render gives the release's objects, CRDs left out. The error holds helm's own words.
func Render(ctx context.Context, release Release) ([]*unstructured.Unstructured, error) {
	values, err := json.Marshal(release.Values)
	if err != nil {
		return nil, fmt.Errorf("values of release %s: %w", release.Name, err)
	}
	root, err := lab.Root()
	if err != nil {
		return nil, err
	}
	executable, err := helm()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, executable, "template", release.Name, filepath.Join(root, "charts", "karpenter-provider-ssh"),
		"--namespace", release.Namespace, "--kube-version", "1.35.4", "--values", "-")
	cmd.Stdin = bytes.NewReader(values)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("helm template %s: %w: %s", release.Name, err, stderr.String())
	}
	return decode(&stdout)
}

func decode(manifest io.Reader) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(manifest, 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("what helm rendered is not YAML: %w", err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}
