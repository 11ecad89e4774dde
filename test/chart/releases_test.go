package chart_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
)

const installCRDs = "upgrade --install kpssh-crd @crd -n kube-system"

// run runs a helm command as one types it.
func (s server) run(t *testing.T, command string) string {
	t.Helper()
	return s.mustHelm(t, strings.Fields(command)...)
}

func (s server) refused(t *testing.T, command, says string) {
	t.Helper()
	output, err := s.helm(t, strings.Fields(command)...)
	if err == nil || !strings.Contains(output, says) {
		t.Errorf("helm %s: %v\n%s\nwant: %s", command, err, output, says)
	}
}

// H2: two releases and the CRD chart are installed, upgraded and uninstalled in any order; none is told that something is another's, and the CRDs
// stay whatever goes.
func TestReleasesAndCRDsComeAndGoInAnyOrder(t *testing.T) {
	s := apiServer(t)
	s.karpenterCRDs(t)
	s.namespaces(t, "order-a", "order-b")
	a := "upgrade --install kpssh @main -n order-a --set instance.name=order-a,bootstrapRBAC.create=true"
	b := "upgrade --install kpssh @main -n order-b --set instance.name=order-b,bootstrapRBAC.create=true"
	const withoutA, withoutB, withoutCRDs = "uninstall kpssh -n order-a", "uninstall kpssh -n order-b", "uninstall kpssh-crd -n kube-system"
	for _, order := range [][]string{
		{installCRDs, a, b, a, installCRDs, b, withoutCRDs, b, withoutA, withoutB},
		{a, installCRDs, b, installCRDs, a, withoutA, installCRDs, b, withoutB, withoutCRDs},
		{b, a, b, installCRDs, withoutB, a, withoutCRDs, installCRDs, withoutA, a, withoutA, withoutCRDs},
	} {
		s.withoutProviderCRDs(t)
		for _, command := range order {
			s.run(t, command)
			if got := s.providerCRDs(t); len(got) != 3 {
				t.Fatalf("after %q of %q the CRDs are %v", command, order, got)
			}
		}
	}
}

// H2: a CRD of another version is not passed over in silence, and can be taken over. After that the release updates it.
func TestAnOlderCRDIsRefusedUntilItIsTakenOver(t *testing.T) {
	s := apiServer(t)
	s.karpenterCRDs(t)
	s.withoutProviderCRDs(t)
	s.namespaces(t, "older")
	s.run(t, "install kpssh @main -n older --set instance.name=older")
	crd := s.providerCRDs(t)[2]
	crd.Spec.Versions[0].SelectableFields = nil
	if err := s.api.Update(t.Context(), &crd); err != nil {
		t.Fatal(err)
	}
	s.refused(t, "upgrade kpssh @main -n older --set instance.name=older", "CRD sshnodeclasses.karpenter.dklesev.github.io is of an older version, without spec.instance")
	s.refused(t, installCRDs, "CRD sshnodeclasses.karpenter.dklesev.github.io is of another version and not of this release")
	s.run(t, installCRDs+" --take-ownership --set adopt=true")
	if got := s.providerCRDs(t)[2]; len(got.Spec.Versions[0].SelectableFields) != 1 {
		t.Errorf("selectable fields %v", got.Spec.Versions[0].SelectableFields)
	}
	s.run(t, installCRDs)
	s.run(t, "upgrade kpssh @main -n older --set instance.name=older")
	s.run(t, "uninstall kpssh -n older")
	s.run(t, "uninstall kpssh-crd -n kube-system")
}

// H2: CRDs of karpenter.sh are never touched unless asked for, and not even then when they are somebody's.
func TestKarpentersCRDsHaveOneOwner(t *testing.T) {
	s := apiServer(t)
	s.withoutProviderCRDs(t)
	s.withoutCRDs(t, karpapis.CRDs)
	s.namespaces(t, "missing")
	s.run(t, installCRDs)
	s.refused(t, "install kpssh @main -n missing --set instance.name=missing", "CRD nodepools.karpenter.sh is missing: karpenter's CRDs must be there first")
	s.run(t, installCRDs+" --set karpenterCRDs.install=true")
	s.run(t, installCRDs+" --set karpenterCRDs.install=true")
	s.run(t, "install kpssh @main -n missing --set instance.name=missing")
	s.run(t, "uninstall kpssh-crd -n kube-system")
	s.run(t, "upgrade kpssh @main -n missing --set instance.name=missing") // they are kept
	s.refused(t, "install other @crd -n missing --set karpenterCRDs.install=true", "CRD nodeclaims.karpenter.sh exists and belongs to somebody else")
	s.run(t, "uninstall kpssh -n missing")
}

// A10: what cannot work in this cluster is refused before anything is made, and by name.
func TestPreflight(t *testing.T) {
	s := apiServer(t)
	s.karpenterCRDs(t)
	s.withoutProviderCRDs(t)
	s.namespaces(t, "preflight", "preflight-pool")
	s.refused(t, "install kpssh @main -n preflight --skip-crds", "CRD sshhosts.karpenter.dklesev.github.io is missing: install chart karpenter-provider-ssh-crd")
	s.refused(t, "install kpssh @main -n preflight --set poolNamespace=nowhere", `poolNamespace "nowhere" does not exist: kubectl create namespace nowhere`)

	holder := "a-pod"
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kpssh-taken", Labels: map[string]string{
			"karpenter.dklesev.github.io/instance": "taken", "karpenter.dklesev.github.io/pool-namespace": "their-pool", "karpenter.dklesev.github.io/release": "theirs.kpssh"}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
	if err := s.api.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	install := "upgrade --install kpssh @main -n preflight --set instance.name=taken,poolNamespace=preflight-pool"
	s.refused(t, install, `instance.name "taken" is taken by release theirs.kpssh with pool namespace their-pool, and this is release `+
		`preflight.kpssh-karpenter-provider-ssh with pool namespace preflight-pool`)
	if s.exists(t, "preflight", "kpssh-karpenter-provider-ssh") {
		t.Error("something was made though it was refused")
	}
	// Whoever knows better; and the holder gives it back.
	s.run(t, install+" --set preflight.enabled=false --dry-run=server")
	none := ""
	lease.Spec.HolderIdentity = &none
	if err := s.api.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	s.run(t, install)
	// Its own lease is no obstacle to an upgrade.
	lease.Spec.HolderIdentity = &holder
	lease.Labels["karpenter.dklesev.github.io/pool-namespace"], lease.Labels["karpenter.dklesev.github.io/release"] = "preflight-pool", "preflight.kpssh-karpenter-provider-ssh"
	if err := s.api.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	notes := s.run(t, install)
	for _, says := range []string{`Instance "taken" is installed`, "get lease kpssh-taken", "bootstrapRBAC.create=true", "Before you uninstall"} {
		if !strings.Contains(notes, says) {
			t.Errorf("the notes do not say %q:\n%s", says, notes)
		}
	}
	s.run(t, "uninstall kpssh -n preflight")
	// helm makes the release's namespace after it has rendered.
	s.run(t, "install kpssh @main -n made-by-helm --create-namespace --set instance.name=made")
	s.run(t, "uninstall kpssh -n made-by-helm")
}

func (s server) exists(t *testing.T, namespace, name string) bool {
	t.Helper()
	return s.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &corev1.ServiceAccount{}) == nil
}

func (s server) karpenterCRDs(t *testing.T) {
	t.Helper()
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range karpapis.CRDs {
		crds = append(crds, crd.DeepCopy()) // the API server's answer is written into them
	}
	if _, err := envtest.InstallCRDs(s.config, envtest.CRDInstallOptions{CRDs: crds}); err != nil {
		t.Fatal(err)
	}
}

// providerCRDs are this project's, by name.
func (s server) providerCRDs(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := s.api.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(crd apiextensionsv1.CustomResourceDefinition) bool { return crd.Spec.Group != v1beta1Group })
}

func (s server) withoutProviderCRDs(t *testing.T) {
	t.Helper()
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range s.providerCRDs(t) {
		crds = append(crds, &crd)
	}
	s.withoutCRDs(t, crds)
}

// withoutCRDs deletes CRDs and returns when they are gone. When the API server has just begun to serve a kind, its own finalizer fails now and then
// with "storage is (re)initializing", and does not try again for minutes unless the CRD changes.
func (s server) withoutCRDs(t *testing.T, crds []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	for _, crd := range crds {
		if err := s.api.Delete(t.Context(), crd.DeepCopy()); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	for _, crd := range crds {
		looks, left := 0, &apiextensionsv1.CustomResourceDefinition{}
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
			if err := s.api.Get(ctx, client.ObjectKeyFromObject(crd), left); err != nil {
				return true, client.IgnoreNotFound(err)
			}
			if looks++; looks%20 != 0 {
				return false, nil
			}
			again := left.DeepCopy()
			metav1.SetMetaDataAnnotation(&again.ObjectMeta, "test/looks", strconv.Itoa(looks))
			return false, client.IgnoreNotFound(s.api.Patch(ctx, again, client.MergeFrom(left)))
		})
		if err != nil {
			t.Fatalf("CRD %s is still there, deleted at %v: %v\n%+v", crd.Name, left.DeletionTimestamp, err, left.Status.Conditions)
		}
	}
}
