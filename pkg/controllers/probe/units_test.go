package probe

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

func aProfile(name string, units ...string) *v1beta1.SSHJoinProfile {
	return &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1beta1.SSHJoinProfileSpec{Version: "1", KubeletUnits: units, Scripts: v1beta1.Scripts{Install: "true", Join: "true", Leave: "true"}},
	}
}

func aClass(name, profileName string, labels map[string]string) *v1beta1.SSHNodeClass {
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1beta1.SSHNodeClassSpec{JoinProfileRef: v1beta1.ProfileReference{Name: profileName}}}
	if labels != nil {
		class.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: labels}
	}
	return class
}

// Section 3 #22: a kubelet that another unit runs is seen, whether its profile is installed, may come, or came from elsewhere.
func TestUnitsThatMayRunAKubelet(t *testing.T) {
	installed := aProfile("gone", "old-kubelet.service")
	host := aHost(func(h *v1beta1.SSHHost) { h.Labels = map[string]string{"pool": "a"} })
	w := newWorld(t, clock.RealClock{}, host,
		aProfile("all", "everywhere.service"), aProfile("a", "unit-a.service", "unit-b.service"), aProfile("b", "not-here.service"), aProfile("plain"),
		aClass("all", "all", nil), aClass("a", "a", map[string]string{"pool": "a"}), aClass("again", "a", nil), aClass("b", "b", map[string]string{"pool": "b"}),
		aClass("plain", "plain", nil), aClass("dangling", "missing", nil))
	w.KubeletUnits = []string{"custom.service", "kubelet"}
	w.Classes, w.Revisions = w.api, profile.NewRevisions(w.api, w.api, "pool")
	if err := w.Revisions.Ensure(t.Context(), profile.RevisionOf(installed)); err != nil {
		t.Fatal(err)
	}
	h := w.get("h1")
	h.Status.InstalledRevision = profile.RevisionOf(installed).Name
	units, f := w.unitsOf(t.Context(), h)
	if f != nil {
		t.Fatal(f)
	}
	for _, want := range []string{"custom", "kubelet", "k3s-agent", "rke2-agent", "k0sworker", "snap.kubelet-eks.daemon", "old-kubelet", "everywhere", "unit-a", "unit-b"} {
		if !slices.Contains(units, want) {
			t.Errorf("%s is not looked at: %v", want, units)
		}
	}
	if slices.Contains(units, "not-here") {
		t.Error("a profile that this machine cannot get is looked for")
	}
	if sorted := slices.Sorted(slices.Values(units)); len(slices.Compact(sorted)) != len(units) {
		t.Errorf("a unit is asked for twice, and the answer would be refused: %v", units)
	}

	h.Status.InstalledRevision = "lost"
	if _, f := w.unitsOf(t.Context(), h); f != nil {
		t.Errorf("a revision that is gone keeps the machine from being probed for ever: %v", f)
	}
	w.Classes = failing{Client: w.api}
	if _, f := w.unitsOf(t.Context(), h); f == nil || !f.Before {
		t.Errorf("what is not known is no fault of the machine's: %v", f)
	}
}

type failing struct{ client.Client }

func (failing) List(_ context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	return errors.New("the API server is away")
}
