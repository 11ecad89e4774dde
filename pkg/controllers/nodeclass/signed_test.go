package nodeclass

import (
	"crypto/ed25519"
	"crypto/rand"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

func signer(t *testing.T) (gossh.Signer, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return s, string(gossh.MarshalAuthorizedKey(s.PublicKey()))
}

func signature(t *testing.T, by gossh.Signer, message, namespace string) string {
	t.Helper()
	armored, err := verified.Sign(rand.Reader, by, []byte(message), namespace)
	if err != nil {
		t.Fatal(err)
	}
	return armored
}

// Section 3 #46: a class whose hosts would refuse its scripts says so before a node is launched with it.
func TestReadinessChecksSignaturesOfVerifiedHosts(t *testing.T) {
	t.Parallel()
	trusted, key := signer(t)
	rogue, _ := signer(t)
	signed := func(by gossh.Signer) func(*v1beta1.SSHJoinProfile) {
		return func(p *v1beta1.SSHJoinProfile) {
			s := signature(t, by, "true", verified.ScriptNamespace)
			p.Spec.Signatures = v1beta1.Signatures{Install: s, Join: s, Leave: s}
		}
	}
	manifests := func(version string, expires time.Time) func(*v1beta1.SSHJoinProfile) {
		return func(p *v1beta1.SSHJoinProfile) {
			of := func(phase string) *v1beta1.SignedManifest {
				text := verified.NewManifest("p1", version, phase, "true", expires).String()
				return &v1beta1.SignedManifest{Manifest: text, Signature: signature(t, trusted, text, verified.ManifestNamespace)}
			}
			p.Spec.Manifests = v1beta1.Manifests{Install: of("install"), Join: of("join"), Leave: of("leave")}
		}
	}
	asVerified := func(h *v1beta1.SSHHost) *v1beta1.SSHHost {
		h.Spec.ExecMode, h.Spec.TrustedSigners = v1beta1.ExecModeVerified, []string{key}
		return h
	}
	strange := asVerified(aHost("h2", true, nil))
	strange.Spec.TrustedSigners = []string{"nonsense"}
	for name, tc := range map[string]struct {
		profile func(*v1beta1.SSHJoinProfile)
		hosts   []*v1beta1.SSHHost
		reason  string // empty: Ready
		told    bool   // a message beside Ready
	}{
		"no host in Verified mode": {func(*v1beta1.SSHJoinProfile) {}, []*v1beta1.SSHHost{aHost("h1", true, nil)}, "", false},
		"signed":                   {signed(trusted), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, "", false},
		"unsigned":                 {func(*v1beta1.SSHJoinProfile) {}, []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, verified.ReasonSignatureMissing, false},
		"rogue signer":             {signed(rogue), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, verified.ReasonSignerUnknown, false},
		"template": {func(p *v1beta1.SSHJoinProfile) { signed(trusted)(p); p.Spec.Scripts.Join = "echo {{ .NodeName }}" },
			[]*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, verified.ReasonScriptIsTemplate, false},
		"manifests":                   {manifests("1", time.Time{}), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, "", false},
		"replayed manifests":          {manifests("0", time.Time{}), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, verified.ReasonManifestMismatch, false},
		"expired manifests":           {manifests("1", noon.Add(-time.Hour)), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil))}, verified.ReasonManifestExpired, false},
		"signers that are none":       {signed(trusted), []*v1beta1.SSHHost{strange}, verified.ReasonSignersInvalid, false},
		"some hosts would refuse":     {signed(trusted), []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil)), strange}, "", true},
		"Raw hosts run them unsigned": {func(*v1beta1.SSHJoinProfile) {}, []*v1beta1.SSHHost{asVerified(aHost("h1", true, nil)), aHost("h2", true, nil)}, "", true},
	} {
		w := newWorld(t, aClass(), aProfile(tc.profile))
		for _, h := range tc.hosts {
			w.Inventory.Observe(h.DeepCopy())
		}
		result := w.must("c1")
		for _, h := range tc.hosts {
			if h.Spec.ExecMode == v1beta1.ExecModeVerified && tc.reason == "" && result.RequeueAfter == 0 {
				t.Errorf("%s: nothing looks again when a manifest expires", name)
			}
		}
		ready := w.class("c1").StatusConditions().Get("Ready")
		switch {
		case tc.reason == "" && (ready.Status != metav1.ConditionTrue || (ready.Message != "") != tc.told):
			t.Errorf("%s: %+v", name, ready)
		case tc.reason != "" && (ready.Status != metav1.ConditionFalse || ready.Reason != tc.reason):
			t.Errorf("%s: %+v", name, ready)
		}
	}
}
