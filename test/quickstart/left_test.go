package quickstart

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func rbacKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: kind + "List"}
}

// wantNone fails for each object of a kind that is there.
func wantNone(t *testing.T, api client.Client, apiVersion, kind string) {
	t.Helper()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind+"List"))
	if err := api.List(t.Context(), list); err != nil {
		t.Fatalf("listing %s: %v", kind, err)
	}
	for _, object := range list.Items {
		t.Errorf("%s %s/%s is left", kind, object.Namespace, object.Name)
	}
}
