package join

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// strict are scripts as they are signed: what a script of Raw mode is given, these bring along (section 2 #58).
var strict = v1beta1.Scripts{
	Install: "set -euo pipefail\n" + scripts.Install, Join: "set -euo pipefail\n" + scripts.Join, Leave: "set -euo pipefail\n" + scripts.Leave,
}

// newVerifiedLab is a lab whose machine has a shim that trusts the signer.
func newVerifiedLab(t *testing.T) (*lab, gossh.Signer) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, strict)
	command, env, err := sshtest.InstallShim(filepath.Join(l.dir, "shim"), trusted.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	l.server.Exec = sshtest.Shell{Dir: l.dir, Env: append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "KPSSH_STATE_DIR=" + filepath.Join(l.dir, "state"),
	}, env...)}.Exec
	h := l.host()
	h.Spec.ExecMode, h.Spec.ShimCommand = v1beta1.ExecModeVerified, command
	h.Spec.TrustedSigners = []string{string(gossh.MarshalAuthorizedKey(trusted.PublicKey()))}
	if err := l.api.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	l.inv.Observe(l.host())
	return l, trusted
}

// signProfile puts signatures, and with a version manifests, into the lab's profile.
func (l *lab) signProfile(by gossh.Signer, manifestOf string, expires time.Time) {
	l.t.Helper()
	p := &v1beta1.SSHJoinProfile{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: "p"}, p); err != nil {
		l.t.Fatal(err)
	}
	sign := func(message, namespace string) string {
		armored, err := verified.Sign(rand.Reader, by, []byte(message), namespace)
		if err != nil {
			l.t.Fatal(err)
		}
		return armored
	}
	p.Spec.Signatures = v1beta1.Signatures{
		Install: sign(strict.Install, verified.ScriptNamespace), Join: sign(strict.Join, verified.ScriptNamespace), Leave: sign(strict.Leave, verified.ScriptNamespace),
	}
	if manifestOf != "" {
		manifest := func(phase profile.Phase, script string) *v1beta1.SignedManifest {
			text := verified.NewManifest("p", manifestOf, string(phase), script, expires).String()
			return &v1beta1.SignedManifest{Manifest: text, Signature: sign(text, verified.ManifestNamespace)}
		}
		p.Spec.Signatures = v1beta1.Signatures{}
		p.Spec.Manifests = v1beta1.Manifests{
			Install: manifest(profile.Install, strict.Install), Join: manifest(profile.Join, strict.Join), Leave: manifest(profile.Leave, strict.Leave),
		}
	}
	if err := l.api.Update(l.t.Context(), p); err != nil {
		l.t.Fatal(err)
	}
}

// D15 in Verified mode: the leave runs by what was signed for the revision that is installed, though profile and class are gone and its manifest has expired.
func TestVerifiedJoinAndLeave(t *testing.T) {
	for name, manifestOf := range map[string]string{"signatures": "", "manifests": "1"} {
		t.Run(name, func(t *testing.T) {
			l, trusted := newVerifiedLab(t)
			expires := time.Now().Add(time.Hour) // the shim knows the real time only
			l.clock.SetTime(time.Now())
			l.signProfile(trusted, manifestOf, expires)
			l.claim("n")
			l.settle("joined", isState(v1beta1.HostInUse))
			l.wantLog("install", "join:n")
			l.register("n")
			l.settle("registered", isJoined)
			for name, o := range map[string]client.Object{"p": &v1beta1.SSHJoinProfile{}, "nc-a": &v1beta1.SSHNodeClass{}} {
				o.SetName(name)
				if err := l.api.Delete(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			l.clock.Step(48 * time.Hour)
			if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
				t.Fatal(err)
			}
			l.settle("left", isState(v1beta1.HostAvailable))
			l.wantLog("install", "join:n", "leave")
		})
	}
}

// Section 3 #29 and #46: what was not signed for this host costs it nothing, is told on the NodeClaim, and is never run unsigned instead.
func TestUnprovenScriptsTouchNoMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		sign   func(l *lab, trusted gossh.Signer)
		reason string
	}{
		"unsigned": {func(*lab, gossh.Signer) {}, verified.ReasonSignatureMissing},
		"rogue signer": {func(l *lab, _ gossh.Signer) {
			_, private, _ := ed25519.GenerateKey(rand.Reader)
			rogue, _ := gossh.NewSignerFromKey(private)
			l.signProfile(rogue, "", time.Time{})
		}, verified.ReasonSignerUnknown},
		"replayed manifest": {func(l *lab, trusted gossh.Signer) { l.signProfile(trusted, "0", time.Time{}) }, verified.ReasonManifestMismatch},
		"expired manifest":  {func(l *lab, trusted gossh.Signer) { l.signProfile(trusted, "1", start.Add(-time.Hour)) }, verified.ReasonManifestExpired},
	} {
		t.Run(name, func(t *testing.T) {
			l, trusted := newVerifiedLab(t)
			tc.sign(l, trusted)
			l.claim("n")
			l.settle("given up", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
			if h := l.host(); h.Status.State != v1beta1.HostAvailable || h.Status.Failures != nil {
				t.Errorf("status %+v", h.Status)
			}
			if l.server.Connections() != 0 {
				t.Errorf("%d connections", l.server.Connections())
			}
			if text := l.eventText(); !strings.Contains(text, "SSHHost h: "+tc.reason) {
				t.Errorf("nothing told on the NodeClaim: %s", text)
			}
			if l.exists(&karpv1.NodeClaim{}, "n") {
				t.Error("the NodeClaim is still there")
			}
			l.wantLog()
		})
	}
}

// What only the machine refuses is not held against it either; but it gets no claim until a probe has come through.
func TestMachineThatTrustsOthersIsNotParked(t *testing.T) {
	l, trusted := newVerifiedLab(t)
	l.signProfile(trusted, "", time.Time{})
	if err := os.WriteFile(filepath.Join(l.dir, "shim", "allowed_signers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.claim("n")
	l.settle("given up", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
	h := l.host()
	if h.Status.State != v1beta1.HostAvailable || !strings.Contains(l.eventText(), verified.ReasonShimSignatureRejected) {
		t.Errorf("status %+v", h.Status)
	}
	l.wantLog()
}
