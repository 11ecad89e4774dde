//go:build linux && e2e

package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
	"github.com/kpssh/karpenter-provider-ssh/shim"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// signedMachine runs what is signed, and nothing else.
const signedMachine = "verified"

var _ = Describe("a verified machine, with the shim", Ordered, func() {
	var m *machine.Machine
	var trusted, rogue ssh.Signer
	var p *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		trusted, rogue = newSigner(), newSigner()
		var err error
		m, err = lives.segment.Machine(ctx, signedMachine)
		Expect(err).NotTo(HaveOccurred())
		lives.machines[signedMachine] = m
		Expect(m.PowerOn(ctx)).To(Succeed())
		installShim(m, trusted)
		profile, err := lives.shippedProfile()
		Expect(err).NotTo(HaveOccurred())
		profile.Name, profile.Spec.Version = signedMachine, "1"
		profile.Spec.Manifests = manifests(profile, "1", trusted)
		h := lives.host(m, machine.User)
		h.Spec.ExecMode, h.Spec.TrustedSigners = v1beta1.ExecModeVerified, []string{string(ssh.MarshalAuthorizedKey(trusted.PublicKey()))}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: signedMachine, Namespace: poolNamespace},
			Data:       map[string][]byte{"privateKey": lives.site.LoginKey(), "knownHost": []byte(knownHost(m))},
		}
		for _, object := range []client.Object{profile, secret, h, nodeClass(signedMachine, signedMachine), nodePool(signedMachine)} {
			Expect(lives.create(ctx, object)).To(Succeed())
		}
	}, NodeTimeout(4*time.Minute))

	AfterAll(func(ctx SpecContext) {
		h, err := lives.hostNow(ctx, signedMachine)
		Expect(err).NotTo(HaveOccurred())
		for _, object := range []client.Object{nodePool(signedMachine), nodeClass(signedMachine, signedMachine), h} {
			Expect(lives.client.Delete(ctx, object)).To(Succeed())
		}
		Expect(m.PowerOff(ctx)).To(Succeed())
	}, NodeTimeout(time.Minute))

	It("verified: joins and leaves by what is signed, with sudo for the shim alone", func(ctx SpecContext) {
		lives.awaitHost(ctx, signedMachine, "available", available)
		awaitClass(ctx, "True", "")
		lives.run(ctx, "signed", signedMachine)
		p = lives.awaitRunning(ctx, "signed")
		h, err := lives.hostNow(ctx, signedMachine)
		Expect(err).NotTo(HaveOccurred())
		Expect(owner(ctx, m)).To(ContainSubstring("claim=" + string(h.Status.ClaimRef.UID)))
		lives.end(ctx, p)
		lives.deleteClaim(ctx, signedMachine)
		lives.awaitNoClaims(ctx, signedMachine)
		lives.awaitAvailable(ctx, signedMachine)
		left, err := m.Exec(ctx, "ls -d /tmp/kpssh.* 2>/dev/null || true")
		Expect(err).NotTo(HaveOccurred())
		Expect(left).To(BeEmpty(), "nothing of a script stays behind")
	}, SpecTimeout(8*time.Minute))

	DescribeTable("verified: nothing runs", func(ctx SpecContext, reason string, change func(*v1beta1.SSHJoinProfile)) {
		profile, err := lives.shippedProfile()
		Expect(err).NotTo(HaveOccurred())
		profile.Name, profile.Spec.Version = signedMachine, "2"
		profile.Spec.Scripts.Join += "touch /opt/ran\n"
		change(profile)
		lives.replaceProfile(ctx, profile)
		awaitClass(ctx, "False", reason)
		h, err := lives.hostNow(ctx, signedMachine)
		Expect(err).NotTo(HaveOccurred())
		Expect(available(h)).To(BeTrue(), "the machine has done nothing wrong: %s", describe(h))
		Expect(filepath.Join(m.Path("/opt"), "ran")).NotTo(BeAnExistingFile())
	},
		Entry("by a rogue signer", verified.ReasonSignerUnknown, func(p *v1beta1.SSHJoinProfile) { p.Spec.Manifests = manifests(p, "2", rogue) }, SpecTimeout(time.Minute)),
		Entry("unsigned", verified.ReasonSignatureMissing, func(*v1beta1.SSHJoinProfile) {}, SpecTimeout(time.Minute)),
		Entry("by a replayed manifest of an older version", verified.ReasonManifestMismatch,
			func(p *v1beta1.SSHJoinProfile) { p.Spec.Manifests = manifests(p, "1", trusted) }, SpecTimeout(time.Minute)),
	)

	It("verified: the machine refuses by itself what a controller sends nevertheless", func(ctx SpecContext) {
		body := "touch /opt/ran\n"
		for name, signer := range map[string]ssh.Signer{"rogue": rogue, "unsigned": nil} {
			e := verified.Envelope{Version: 1, Phase: "join", Script: body}
			if signer != nil {
				e.Signature = sign(signer, body, verified.ScriptNamespace)
			}
			said := sendToShim(ctx, m, e)
			Expect(said).To(HaveSuffix("status 2\n"), "%s: %s", name, said)
		}
		// A machine may insist on manifests, which say what they are for.
		Expect(os.WriteFile(m.Path("/etc/kpssh/require-manifest"), nil, 0o600)).To(Succeed())
		said := sendToShim(ctx, m, verified.Envelope{Version: 1, Phase: "join", Script: body, Signature: sign(trusted, body, verified.ScriptNamespace)})
		Expect(said).To(HaveSuffix("status 2\n"), said)
		Expect(m.Path("/opt/ran")).NotTo(BeAnExistingFile())
	}, SpecTimeout(time.Minute))
})

// installShim is what docs/verified.md tells an administrator to do.
func installShim(m *machine.Machine, trusted ssh.Signer) {
	GinkgoHelper()
	for _, file := range []struct {
		path, content string
		mode          os.FileMode
	}{
		{"/opt/kpssh/kpssh-shim", shim.Script, 0o755},
		{"/etc/kpssh/allowed_signers", "kpssh " + string(ssh.MarshalAuthorizedKey(trusted.PublicKey())), 0o644},
		{"/etc/sudoers.d/lab", machine.User + " ALL=(root) NOPASSWD: /opt/kpssh/kpssh-shim \"\"\n", 0o440},
	} {
		Expect(os.MkdirAll(filepath.Dir(m.Path(file.path)), 0o755)).To(Succeed())
		Expect(os.WriteFile(m.Path(file.path), []byte(file.content), file.mode)).To(Succeed())
	}
}

func newSigner() ssh.Signer {
	GinkgoHelper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	signer, err := ssh.NewSignerFromKey(private)
	Expect(err).NotTo(HaveOccurred())
	return signer
}

func sign(by ssh.Signer, message, namespace string) string {
	GinkgoHelper()
	armored, err := verified.Sign(rand.Reader, by, []byte(message), namespace)
	Expect(err).NotTo(HaveOccurred())
	return armored
}

// manifests are those of a profile's scripts, said to be of this version.
func manifests(p *v1beta1.SSHJoinProfile, version string, by ssh.Signer) v1beta1.Manifests {
	GinkgoHelper()
	of := func(phase, script string) *v1beta1.SignedManifest {
		text := verified.NewManifest(p.Name, version, phase, script, time.Now().Add(time.Hour)).String()
		return &v1beta1.SignedManifest{Manifest: text, Signature: sign(by, text, verified.ManifestNamespace)}
	}
	s := p.Spec.Scripts
	return v1beta1.Manifests{Install: of("install", s.Install), Join: of("join", s.Join), Leave: of("leave", s.Leave)}
}

// awaitClass waits until the class is Ready, or is not for this reason.
func awaitClass(ctx context.Context, ready, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		class := &v1beta1.SSHNodeClass{}
		g.Expect(lives.client.Get(ctx, types.NamespacedName{Name: signedMachine}, class)).To(Succeed())
		found := class.StatusConditions().Get("Ready")
		g.Expect(string(found.Status)).To(Equal(ready), found.Message)
		if reason != "" {
			g.Expect(found.Reason).To(Equal(reason), found.Message)
		}
	}).WithContext(ctx).Should(Succeed())
}

// sendToShim gives the shim an envelope on the machine itself, and tells what it said and ended with.
func sendToShim(ctx context.Context, m *machine.Machine, e verified.Envelope) string {
	GinkgoHelper()
	wire, err := e.Encode()
	Expect(err).NotTo(HaveOccurred())
	said, err := m.Exec(ctx, "base64 -d <<<"+base64.StdEncoding.EncodeToString([]byte(wire))+" | /opt/kpssh/kpssh-shim 2>&1; echo status $?")
	Expect(err).NotTo(HaveOccurred())
	return said
}
