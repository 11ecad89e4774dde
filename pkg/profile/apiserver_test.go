package profile

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// A real API server neither changes what is kept, nor refuses the largest profile that its CRD allows.
func TestRevisionsOnARealAPIServer(t *testing.T) {
	config := apiserver.Start(t)
	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: poolNamespace}}); err != nil {
		t.Fatal(err)
	}
	largest := sound()
	largest.Name = strings.Repeat("p", 253)
	filler := "# <&>\u2028\t'é\\\n" // what JSON encoders disagree about
	for _, text := range []*string{&largest.Spec.Scripts.Install, &largest.Spec.Scripts.Join, &largest.Spec.Scripts.Leave, &largest.Spec.Scripts.Uninstall} {
		*text += strings.Repeat(filler, 1000)
		*text += strings.Repeat("x", 262144-len(*text))
	}
	shipped := examples(t)["tls-bootstrap"]
	for _, want := range []Revision{RevisionOf(largest), RevisionOf(shipped)} {
		if err := NewRevisions(api, api, poolNamespace).Ensure(t.Context(), want); err != nil {
			t.Fatalf("keeping %s: %v", want.Name, err)
		}
		got, err := NewRevisions(api, api, poolNamespace).Get(t.Context(), want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.Spec.Scripts != want.Spec.Scripts || got.Marker() != want.Marker() {
			t.Errorf("%s came back changed", want.Name)
		}
		if err := NewRevisions(api, api, poolNamespace).Ensure(t.Context(), want); err != nil {
			t.Errorf("keeping %s again: %v", want.Name, err)
		}
	}
	if err := NewRevisions(api, api, poolNamespace).Prune(t.Context(), sets.New(RevisionOf(shipped).Name)); err != nil {
		t.Fatal(err)
	}
	var left appsv1.ControllerRevisionList
	if err := api.List(t.Context(), &left, client.InNamespace(poolNamespace)); err != nil {
		t.Fatal(err)
	}
	if len(left.Items) != 1 || left.Items[0].Name != RevisionOf(shipped).Name {
		t.Errorf("after pruning: %d revisions", len(left.Items))
	}
}
