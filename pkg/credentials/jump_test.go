package credentials

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// login is a key pair, as a Secret holds it.
type login struct {
	pem    []byte
	public gossh.PublicKey
	signer gossh.Signer
}

func newLogin(t *testing.T) login {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return login{pem.EncodeToMemory(block), signer.PublicKey(), signer}
}

// certificate signs the key for an hour from noon on.
func (l login) certificate(t *testing.T, kind uint32, principals ...string) []byte {
	t.Helper()
	c := &gossh.Certificate{Key: l.public, CertType: kind, KeyId: "ops", ValidPrincipals: principals,
		ValidAfter: uint64(noon.Unix()), ValidBefore: uint64(noon.Add(time.Hour).Unix())}
	if err := c.SignCert(rand.Reader, newLogin(t).signer); err != nil {
		t.Fatal(err)
	}
	return gossh.MarshalAuthorizedKey(c)
}

func named(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
}

func resolver(at time.Time, secrets ...client.Object) *Resolver {
	r := NewResolver(fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(secrets...).Build())
	r.Clock = clocktesting.NewFakePassiveClock(at)
	return r
}

// Issue 5 #6: each jump host has a Secret of its own, and its key and pins are for it alone.
func TestJumpHostsHaveTheirOwnKeysAndPins(t *testing.T) {
	machine, first, second := newLogin(t), newLogin(t), newLogin(t)
	h := host(func(h *v1beta1.SSHHost) {
		h.Status.HostKeyFingerprint = oldPrint
		h.Spec.JumpHosts = []v1beta1.JumpHost{
			{Address: "10.0.0.1", SSHKeySecretRef: v1beta1.SecretReference{Name: "first"}},
			{Address: "fd00::2", Port: 2222, User: "jump", SSHKeySecretRef: v1beta1.SecretReference{Name: "second"}},
		}
	})
	r := resolver(noon, named("login", map[string][]byte{PrivateKeyEntry: machine.pem}),
		named("first", map[string][]byte{PrivateKeyEntry: first.pem, KnownHostEntry: []byte(newPrint)}),
		named("second", map[string][]byte{PrivateKeyEntry: second.pem, HostCAEntry: gossh.MarshalAuthorizedKey(machine.public)}))
	target, err := r.Target(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if target.Trusted != oldPrint || target.Key.Fingerprint() != gossh.FingerprintSHA256(machine.public) || len(target.Jumps) != 2 {
		t.Fatalf("unexpected target %v", target)
	}
	for i, want := range []struct {
		login login
		text  string
		pin   string
	}{{first, "root@10.0.0.1:22", newPrint}, {second, "jump@[fd00::2]:2222", "a certificate by " + gossh.FingerprintSHA256(machine.public)}} {
		jump := target.Jumps[i]
		pins := jump.Pins.Fingerprints()
		if jump.String() != want.text || jump.Key.Fingerprint() != gossh.FingerprintSHA256(want.login.public) || jump.Trusted != "" || len(pins) != 1 || pins[0] != want.pin {
			t.Errorf("jump host %d: %v with %s, pins %v, trusted %q", i+1, jump, jump.Key, pins, jump.Trusted)
		}
	}
}

// Issue 5 #6: what is wrong before the machine is told by where it is, and is not the machine's fault.
func TestFaultsBeforeTheMachine(t *testing.T) {
	machine, jump := newLogin(t), newLogin(t)
	plain := map[string][]byte{PrivateKeyEntry: machine.pem}
	with := func(entry []byte) map[string][]byte {
		return map[string][]byte{PrivateKeyEntry: machine.pem, CertificateEntry: entry}
	}
	good := machine.certificate(t, gossh.UserCert, "root", "ops")
	for _, tc := range []struct {
		name   string
		login  map[string][]byte
		jump   map[string][]byte // nil: no jump host; empty: its Secret is missing
		at     time.Time
		user   string
		reason string // empty: none
		says   string
		asked  bool // the fault is held against the host, as it always was
	}{
		{name: "no certificate", login: plain},
		{name: "blank certificate", login: with([]byte(" \n"))},
		{name: "good certificate", login: with(good)},
		{name: "good certificate, other user", login: with(good), user: "ops"},
		{name: "expired", login: with(good), at: noon.Add(time.Hour), reason: "CertificateExpired", says: "entry certificate of Secret pool/login"},
		{name: "not yet valid", login: with(good), at: noon.Add(-time.Hour), reason: "CertificateNotYetValid", says: "clock"},
		{name: "wrong principal", login: with(good), user: "admin", reason: "CertificatePrincipal", says: "is for root, ops, not for user admin"},
		{name: "of another key", login: with(jump.certificate(t, gossh.UserCert, "root")), reason: "CertificateInvalid", says: "pool/login"},
		{name: "of a host", login: with(machine.certificate(t, gossh.HostCert, "root")), reason: "CertificateInvalid", says: "host certificate"},
		{name: "bad authority", login: map[string][]byte{PrivateKeyEntry: machine.pem, HostCAEntry: []byte("hunter2hunter2")},
			reason: "HostCAInvalid", says: "entry hostCA of Secret pool/login", asked: true},
		{name: "jump host's Secret is missing", login: plain, jump: map[string][]byte{}, reason: ReasonSecretNotFound, says: "jump host 1 of 1 (10.0.0.1:22): Secret pool/jump"},
		{name: "jump host's key is none", login: plain, jump: map[string][]byte{PrivateKeyEntry: []byte("hunter2hunter2")}, reason: "KeyInvalid", says: "jump host 1 of 1"},
		{name: "jump host's certificate expired", login: plain, at: noon.Add(2 * time.Hour),
			jump: map[string][]byte{PrivateKeyEntry: jump.pem, CertificateEntry: jump.certificate(t, gossh.UserCert, "root")}, reason: "CertificateExpired", says: "jump host 1 of 1"},
		{name: "jump host's pins are none", login: plain, jump: map[string][]byte{PrivateKeyEntry: jump.pem, KnownHostEntry: []byte("hunter2hunter2")},
			reason: "HostPinsInvalid", says: "jump host 1 of 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			secrets := []client.Object{named("login", tc.login)}
			h := host(func(h *v1beta1.SSHHost) { h.Spec.User = tc.user })
			if tc.jump != nil {
				h.Spec.JumpHosts = []v1beta1.JumpHost{{Address: "10.0.0.1", SSHKeySecretRef: v1beta1.SecretReference{Name: "jump"}}}
			}
			if len(tc.jump) > 0 {
				secrets = append(secrets, named("jump", tc.jump))
			}
			if tc.at.IsZero() {
				tc.at = noon.Add(time.Minute)
			}
			target, err := resolver(tc.at, secrets...).Target(t.Context(), h)
			if tc.reason == "" {
				if err != nil || target.Key.IsZero() {
					t.Fatalf("%v, %v", target, err)
				}
				return
			}
			got := fault.Of(err)
			if got == nil || got.Blame != fault.Configuration || got.Reason != tc.reason || !strings.Contains(err.Error(), tc.says) || got.Before == tc.asked {
				t.Fatalf("want %s saying %q, got %+v", tc.reason, tc.says, got)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("a Secret's content reached an error: %v", err)
			}
		})
	}
}

// An authority is a pin that a person set: what was seen on the network, or quoted, adds nothing.
func TestAuthorityOutranksWhatWasSeenFirst(t *testing.T) {
	l := newLogin(t)
	h := host(func(h *v1beta1.SSHHost) {
		h.Status.HostKeyFingerprint = oldPrint
		h.Annotations = map[string]string{v1beta1.TrustHostKeyAnnotation: newPrint}
	})
	target, err := resolver(noon, named("login", map[string][]byte{PrivateKeyEntry: l.pem, HostCAEntry: gossh.MarshalAuthorizedKey(l.public)})).Target(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if pins := target.Pins.Fingerprints(); target.Trusted != "" || len(pins) != 1 || !strings.HasPrefix(pins[0], "a certificate by ") {
		t.Fatalf("trusted %q, pins %v", target.Trusted, pins)
	}
}
