package cloudprovider

import (
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func TestIsDrifted(t *testing.T) {
	const id = "kpssh://pool/a"
	current := webClass().JoinHash()
	fresh := func(options ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
		return claim("c", append([]func(*karpv1.NodeClaim){providerID(id), annotated(current, "v1")}, options...)...)
	}
	joined := freeHost("a", usedBy("c", "uid-c"), marked("kubelet@2"))
	for _, test := range []struct {
		name    string
		objects []client.Object
		change  func(*env)
		claim   *karpv1.NodeClaim
		want    karpcloud.DriftReason
		verdict string
	}{
		{"nothing changed", []client.Object{webClass(), profile("2"), joined}, nil, fresh(), "", "ok"},
		{"a new profile version", []client.Object{webClass(), profile("3"), joined}, nil, fresh(), ProfileDrift, "ok"},
		{"another profile", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.JoinProfileRef.Name = "k3s" }), func() client.Object {
			p := profile("2")
			p.Name = "k3s"
			return p
		}(), joined}, nil, fresh(), ProfileDrift, "ok"},
		{"what is passed to the join changed", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"a": "b"} }), profile("2"), joined}, nil, fresh(), NodeClassDrift, "ok"},
		{"what is not passed to the join changed", []client.Object{webClass(func(c *v1beta1.SSHNodeClass) {
			c.Spec.PricePerCPUHour, c.Spec.Zone, c.Spec.MaxPods = "7", "hall-9", new(int32(7))
			c.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "where"}}
		}), profile("2"), joined}, nil, fresh(), "", "ok"},

		{"abstain: no provider ID", []client.Object{webClass(), profile("3"), joined}, nil, fresh(providerID("")), "", "ok"},
		{"abstain: the machine is gone", []client.Object{webClass(), profile("3")}, nil, fresh(), "", "ok"},
		{"abstain: the machine serves another claim", []client.Object{webClass(), profile("3"), freeHost("a", usedBy("d", "uid-d"), marked("kubelet@2"))}, nil, fresh(), "", "ok"},
		{"abstain: the machine is leaving", []client.Object{webClass(), profile("3"), freeHost("a", usedBy("c", "uid-c"), marked("kubelet@2"), inState(v1beta1.HostLeaving))}, nil, fresh(), "", "ok"},
		{"abstain: the join has not run, the marker is an earlier claim's", []client.Object{webClass(), profile("3"), freeHost("a", usedBy("c", "uid-c"), marked("kubelet@2"), inState(v1beta1.HostClaimed))}, nil, fresh(), "", "ok"},
		{"abstain: no marker", []client.Object{webClass(), profile("3"), freeHost("a", usedBy("c", "uid-c"))}, nil, fresh(), "", "ok"},
		{"abstain: no profile (section 3 #38)", []client.Object{webClass(), joined}, nil, fresh(), "", "ok"},
		{"abstain: no class", []client.Object{profile("3"), joined}, nil, fresh(), "", "ok"},
		{"abstain: no class in the cache", []client.Object{webClass(), profile("3"), joined}, func(e *env) {
			e.cached = failing[*v1beta1.SSHNodeClass](apierrors.NewNotFound(schema.GroupResource{}, "web"))
		}, fresh(), "", "ok"},
		{"abstain: no hash", []client.Object{webClass(), profile("2"), joined}, nil, fresh(annotated("", "v1")), "", "ok"},
		{"abstain: a hash of another recipe", []client.Object{webClass(), profile("2"), joined}, nil, fresh(annotated("0123456789abcdef", "v0")), "", "ok"},
		{"abstain: a hash of no known recipe", []client.Object{webClass(), profile("2"), joined}, nil, fresh(annotated("0123456789abcdef", "")), "", "ok"},
		{"an old hash", []client.Object{webClass(), profile("2"), joined}, nil, fresh(annotated("0123456789abcdef", "v1")), NodeClassDrift, "ok"},
		{"the profile cannot be read", []client.Object{webClass(), profile("3"), joined}, func(e *env) { e.cached = failing[*v1beta1.SSHJoinProfile](errBlip) }, fresh(), "", "retry"},
		{"the class cannot be read", []client.Object{webClass(), profile("3"), joined}, func(e *env) { e.cached = failing[*v1beta1.SSHNodeClass](errBlip) }, fresh(), "", "retry"},
		{"a machine of another instance", []client.Object{webClass(), profile("3"), joined}, nil, fresh(providerID("kpssh://elsewhere/a")), "", "ok"},
		{"a class of another instance", []client.Object{webClass(ofInstance("seg-b")), profile("3"), joined}, nil, fresh(), "", "ok"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, test.objects...)
			if test.change != nil {
				test.change(e)
			}
			reason, err := e.IsDrifted(t.Context(), test.claim)
			g.Expect(verdict(err)).To(Equal(test.verdict), "%v", err)
			g.Expect(reason).To(Equal(test.want))
		})
	}
	for name, foreign := range foreignRefs() {
		t.Run("A4: "+name, func(t *testing.T) {
			g := NewWithT(t)
			e := newEnv(t, webClass(), profile("3"), joined)
			reason, err := e.IsDrifted(t.Context(), fresh(classRef(foreign)))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(reason).To(BeEmpty())
		})
	}
	reason, err := newEnv(t).IsDrifted(t.Context(), nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(reason).To(BeEmpty())
}

// Issue, prewarm: a new version goes through the free hosts first, and only then nodes drift. What is said about another version does not count.
func TestDriftIsHeldBackWhileFreeHostsArePrewarmed(t *testing.T) {
	said := func(profile, reason string) v1beta1.SSHNodeClassStatus {
		return v1beta1.SSHNodeClassStatus{PrewarmProfile: profile, Conditions: []status.Condition{{Type: v1beta1.ConditionPrewarmed, Reason: reason}}}
	}
	for name, row := range map[string]struct {
		off    bool
		status v1beta1.SSHNodeClassStatus
		want   bool
	}{
		"prewarm is off":             {off: true, status: said("p@2", v1beta1.ReasonPrewarming)},
		"nothing is known yet":       {want: true},
		"of the version before":      {status: said("p@1", v1beta1.ReasonPrewarmed), want: true},
		"under way":                  {status: said("p@2", v1beta1.ReasonPrewarming), want: true},
		"it fails on the free hosts": {status: said("p@2", v1beta1.ReasonPrewarmStopped), want: true},
		"the free hosts have it":     {status: said("p@2", v1beta1.ReasonPrewarmed)},
		"nobody prewarms the rest":   {status: said("p@2", v1beta1.ReasonPrewarmContested)},
	} {
		class := &v1beta1.SSHNodeClass{Status: row.status}
		if !row.off {
			class.Spec.Prewarm = &v1beta1.Prewarm{}
		}
		if got := heldBack(class, "p@2"); got != row.want {
			t.Errorf("%s: held back %v, want %v", name, got, row.want)
		}
	}
}
