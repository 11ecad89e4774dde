package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/chart"
)

func render(t *testing.T, name, namespace string, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	objects, err := chart.Render(t.Context(), chart.Release{Name: name, Namespace: namespace, Values: values})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func instance(name string) map[string]any {
	return map[string]any{"instance": map[string]any{"name": name}}
}

// C5, section 2 #39: the instance's name decides the lease, and there is no other value that could contradict it.
func TestOneValueNamesTheInstance(t *testing.T) {
	env := environment(t, render(t, "kpssh", "kp-a", instance("seg-a")))
	for name, want := range map[string]string{
		"INSTANCE_NAME": "seg-a", "LEADER_ELECTION_NAME": "kpssh-seg-a", "LEADER_ELECTION_NAMESPACE": "kube-system", "POOL_NAMESPACE": "kp-a",
	} {
		if env[name] != want {
			t.Errorf("%s=%s, want %s", name, env[name], want)
		}
	}
}

// Section 2 #40: without a limit the field reference gives the node's memory, and karpenter would take that for its own.
func TestResourcesReachKarpenterOnlyWhenSet(t *testing.T) {
	set := environment(t, render(t, "kpssh", "kp-a", map[string]any{"controller": map[string]any{"resources": map[string]any{
		"requests": map[string]any{"cpu": "1"}, "limits": map[string]any{"memory": "1Gi"}}}}))
	unset := environment(t, render(t, "kpssh", "kp-a", map[string]any{"controller": map[string]any{"resources": map[string]any{
		"requests": map[string]any{"cpu": nil, "memory": nil}}}}))
	for _, name := range []string{"MEMORY_LIMIT", "CPU_REQUESTS"} {
		if _, found := set[name]; !found {
			t.Errorf("%s is missing though the resource is set", name)
		}
		if _, found := unset[name]; found {
			t.Errorf("%s is there though the resource is not set", name)
		}
	}
}

// Section 3 #3: nodes are repaired, as the documents say, unless the gate is turned off.
func TestFeatureGatesAreRendered(t *testing.T) {
	for want, gates := range map[string]map[string]any{
		"NodeRepair=true":                    {},
		"NodeOverlay=true,NodeRepair=true":   {"NodeOverlay": true},
		"NodeOverlay=false,NodeRepair=false": {"NodeRepair": false, "NodeOverlay": false},
	} {
		env := environment(t, render(t, "kpssh", "kp-a", map[string]any{"settings": map[string]any{"featureGates": gates}}))
		if got := env["FEATURE_GATES"]; got != want {
			t.Errorf("FEATURE_GATES=%s, want %s", got, want)
		}
	}
}

// H4: what a real API server lets the ServiceAccount of instance seg-a do, with the chart's RBAC of two instances installed.
func TestRBACEndsAtTheSegment(t *testing.T) {
	api := apiServer(t).api
	for _, segment := range []string{"a", "b"} {
		namespaces := []string{"kp-" + segment, "pool-" + segment, "kube-system", "kube-public"}
		for _, name := range namespaces {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if err := api.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
		values := instance("seg-" + segment)
		values["poolNamespace"] = "pool-" + segment
		for _, o := range render(t, "kpssh", "kp-"+segment, values) {
			if err := api.Create(t.Context(), o, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
				t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, c := range []struct {
		want                             bool
		verb, group, resource, namespace string
		name                             string
	}{
		// Its own segment.
		{true, "update", "coordination.k8s.io", "leases", "kube-system", "kpssh-seg-a"},
		{true, "create", "coordination.k8s.io", "leases", "kube-system", ""},
		// What shows conflicts between instances.
		{true, "list", "coordination.k8s.io", "leases", "kube-system", ""},
		{true, "list", v1beta1Group, "sshhosts", "", ""},
		{true, "list", v1beta1Group, "sshnodeclasses", "", ""},
		{true, "list", "karpenter.sh", "nodepools", "", ""},
		{true, "patch", v1beta1Group, "sshnodeclasses/status", "", "c"},
		{true, "create", "events.k8s.io", "events", "kube-system", ""},
		{false, "list", "coordination.k8s.io", "leases", "default", ""},
		{true, "watch", "", "secrets", "pool-a", ""},
		{true, "patch", v1beta1Group, "sshhosts", "pool-a", "h"},
		{true, "patch", v1beta1Group, "sshhosts/status", "pool-a", "h"},
		{true, "create", "apps", "controllerrevisions", "pool-a", ""},
		{true, "create", "", "secrets", "kube-system", ""},
		{true, "delete", "", "secrets", "kube-system", "bootstrap-token-abcdef"},
		{true, "get", "", "configmaps", "kube-public", "cluster-info"},
		{true, "patch", v1beta1Group, "sshnodeclasses", "", "c"},
		{true, "patch", v1beta1Group, "sshjoinprofiles", "", "p"}, // its finalizer; test/isolation
		{true, "create", "karpenter.sh", "nodeclaims", "", ""},
		{true, "delete", "", "nodes", "", "n"},
		{true, "create", "", "pods/eviction", "default", ""},
		{true, "create", "events.k8s.io", "events", "default", ""},
		// The other's, and what nobody needs.
		{false, "update", "coordination.k8s.io", "leases", "kube-system", "kpssh-seg-b"},
		{false, "delete", "coordination.k8s.io", "leases", "kube-system", "kpssh-seg-a"},
		{false, "get", "", "secrets", "pool-b", "k"},
		{false, "get", v1beta1Group, "sshhosts", "pool-b", "h"},
		{false, "watch", v1beta1Group, "sshhosts", "pool-b", ""},
		{false, "patch", v1beta1Group, "sshhosts", "pool-b", "h"},
		{false, "patch", v1beta1Group, "sshhosts/status", "pool-b", "h"},
		{false, "get", "", "secrets", "kube-system", "bootstrap-token-abcdef"},
		{false, "list", "", "secrets", "kube-system", ""},
		{false, "get", "", "secrets", "kp-a", "s"},
		{false, "get", "", "configmaps", "kube-public", "other"},
		{false, "create", v1beta1Group, "sshhosts", "pool-a", ""},
		{false, "delete", v1beta1Group, "sshhosts", "pool-a", "h"},
		{false, "update", v1beta1Group, "sshjoinprofiles", "", "p"},
		{false, "delete", v1beta1Group, "sshjoinprofiles", "", "p"},
		{false, "create", v1beta1Group, "sshnodeclasses", "", ""},
		{false, "create", "", "pods", "default", ""},
		{false, "create", "", "nodes", "", ""},
		{false, "patch", "apiextensions.k8s.io", "customresourcedefinitions", "", "c"},
		{false, "create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""},
	} {
		resource, subresource, _ := strings.Cut(c.resource, "/")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:kp-a:kpssh-karpenter-provider-ssh",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kp-a", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: c.verb, Group: c.group, Resource: resource, Subresource: subresource, Namespace: c.namespace, Name: c.name,
			},
		}}
		if err := api.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != c.want {
			t.Errorf("%s %s/%s %s in %q: allowed=%v, want %v", c.verb, c.group, c.resource, c.name, c.namespace, review.Status.Allowed, c.want)
		}
	}
}

const v1beta1Group = "karpenter.dklesev.github.io"

// environment gives the controller's variables; one that comes from a field reference has the value "<resource>".
func environment(t *testing.T, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	index := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if index < 0 {
		t.Fatal("no Deployment")
	}
	containers, _, err := unstructured.NestedSlice(objects[index].Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("containers: %v, %v", containers, err)
	}
	list, _, err := unstructured.NestedSlice(containers[0].(map[string]any), "env")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, item := range list {
		variable := item.(map[string]any)
		name := fmt.Sprint(variable["name"])
		if _, twice := env[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		env[name] = "<resource>"
		if value, found := variable["value"]; found {
			env[name] = fmt.Sprint(value)
		}
	}
	return env
}
