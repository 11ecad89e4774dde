//go:build linux && e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/test/chart"
)

// installation is a release of the chart: an instance's name, and the namespace that is the release's and its hosts' alike.
type installation struct{ instance, namespace string }

const releaseName = "kpssh"

// serviceAccount is the chart's, for a release named like the chart's short name.
const serviceAccount = releaseName + "-karpenter-provider-ssh"

var (
	single        = installation{"default", poolNamespace}
	segmentA      = installation{"seg-a", "kp-a"}
	segmentB      = installation{"seg-b", "kp-b"}
	installations = []installation{single, segmentA, segmentB}
)

// renderCharts writes what helm makes of the installations into a directory, one file each.
func renderCharts(ctx context.Context, dir string) error {
	for _, i := range installations {
		objects, err := chart.Render(ctx, chart.Release{
			Name: releaseName, Namespace: i.namespace, Values: map[string]any{"instance": map[string]any{"name": i.instance}},
		})
		if err != nil {
			return err
		}
		rendered, err := json.Marshal(objects)
		if err != nil {
			return err
		}
		if err := os.WriteFile(i.rendered(dir), rendered, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (i installation) rendered(dir string) string {
	return filepath.Join(dir, "chart-"+i.instance+".json")
}

// objects are what helm made of the installation.
func (i installation) objects() ([]*unstructured.Unstructured, error) {
	raw, err := os.ReadFile(i.rendered(os.Getenv(chartsVariable)))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	return objects, json.Unmarshal(raw, &objects)
}

// deploy creates a namespace and what the chart puts into it and around it, and returns the controller, which does not run yet.
func (w *world) deploy(ctx context.Context, i installation) (*controller, error) {
	if err := w.create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: i.namespace}}); err != nil {
		return nil, err
	}
	objects, err := i.objects()
	if err != nil {
		return nil, err
	}
	c := &controller{log: filepath.Join(w.cp.Dir, "logs", "controller-"+i.instance+".log")}
	for _, object := range objects {
		switch object.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			if err := w.create(ctx, object); err != nil {
				return nil, err
			}
		case "Deployment":
			if c.env, err = environment(object); err != nil {
				return nil, err
			}
		}
	}
	c.kubeconfig, err = w.cp.ServiceAccountKubeconfig(ctx, i.namespace, serviceAccount)
	return c, err
}

// permitJoining applies examples/bootstrap-rbac.yaml, with the groups of the other instances beside that of the default one, as it says.
func (w *world) permitJoining(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(w.root, "examples", "bootstrap-rbac.yaml"))
	if err != nil {
		return err
	}
	for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
		binding := &rbacv1.ClusterRoleBinding{}
		if err := yaml.UnmarshalStrict(document, binding); err != nil {
			return fmt.Errorf("examples/bootstrap-rbac.yaml: %w", err)
		}
		if binding.Subjects[0].Name == bootstrap.BaseGroup {
			for _, i := range installations {
				if i.instance == single.instance {
					continue
				}
				subject := binding.Subjects[0]
				subject.Name = bootstrap.Group(i.instance)
				binding.Subjects = append(binding.Subjects, subject)
			}
		}
		if err := w.create(ctx, binding); err != nil {
			return err
		}
	}
	return nil
}

// environment is what the chart tells the controller by variables, those left out that tell of the container.
func environment(object *unstructured.Unstructured) ([]string, error) {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return nil, err
	}
	var env []string
	for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
		if variable.ValueFrom == nil {
			env = append(env, fmt.Sprintf("%s=%s", variable.Name, variable.Value))
		}
	}
	return env, nil
}
