// Package examples shows that the manifests people copy are accepted by an API server that has the generated CRDs.
package examples

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

var api client.Client

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	environment, err := apiserver.Run(apiserver.CRDs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the API server:", err)
		return 1
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		}
	}()
	if api, err = client.New(environment.Config, client.Options{Scheme: scheme.Scheme}); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		return 1
	}
	return m.Run()
}

// Every document is created with strict field validation, so that a field that the API would drop is an error too.
func TestManifestsAreAccepted(t *testing.T) {
	pool := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kpssh-system"}}
	if err := api.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	shipped, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(shipped) < 5 {
		t.Fatalf("examples: %v, %v", shipped, err)
	}
	coexistence, err := filepath.Glob("../../examples/coexistence/*.yaml")
	if err != nil || len(coexistence) < 2 {
		t.Fatalf("examples of coexistence: %v, %v", coexistence, err)
	}
	profiles, err := filepath.Glob("../../examples/profiles/*.yaml")
	if err != nil || len(profiles) < 6 {
		t.Fatalf("examples of profiles: %v, %v", profiles, err)
	}
	for _, file := range slices.Concat(shipped, profiles, coexistence, []string{"testdata/existing-provider.yaml"}) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			objects, err := decode(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(objects) == 0 {
				t.Fatal("the file holds no object")
			}
			for _, object := range objects {
				err := api.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
				if err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}

func decode(file string) ([]*unstructured.Unstructured, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}
