package credentials

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const namespace = "pool"

var (
	oldPrint = "SHA256:" + strings.Repeat("o", 43)
	newPrint = "SHA256:" + strings.Repeat("n", 43)
)

func privateKey(t *testing.T, passphrase string) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	var block *pem.Block
	if passphrase == "" {
		block, err = gossh.MarshalPrivateKey(key, "")
	} else {
		block, err = gossh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

func host(edit ...func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "h1"},
		Spec:       v1beta1.SSHHostSpec{Address: "192.0.2.7", SSHKeySecretRef: v1beta1.SecretReference{Name: "login"}},
	}
	for _, e := range edit {
		e(h)
	}
	return h
}

func secret(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"}, Data: data}
}

func TestTargetFaultsNameTheObjectAndTheParty(t *testing.T) {
	good := privateKey(t, "")
	encrypted := privateKey(t, "correct horse")
	for _, tc := range []struct {
		name   string
		secret *corev1.Secret // nil: there is none
		edit   func(*v1beta1.SSHHost)
		getErr error // what reading Secrets returns
		blame  fault.Blame
		reason string
		says   string // part of the message a person reads
	}{
		{name: "no Secret", blame: fault.Configuration, reason: ReasonSecretNotFound, says: "pool/login"},
		{name: "API server away", getErr: errors.New("connection refused"), blame: fault.Cluster, reason: ReasonSecretUnreadable, says: "h1"},
		{name: "no key in it", secret: secret(nil), blame: fault.Configuration, reason: ReasonSecretInvalid, says: "privateKey"},
		{name: "not a key", secret: secret(map[string][]byte{PrivateKeyEntry: []byte("hunter2hunter2")}),
			blame: fault.Configuration, reason: "KeyInvalid", says: "entry privateKey of Secret pool/login"},
		{name: "encrypted, no passphrase", secret: secret(map[string][]byte{PrivateKeyEntry: encrypted}),
			blame: fault.Configuration, reason: "PassphraseMissing", says: "passphrase"},
		{name: "Secret of another namespace is not looked for", secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "login"}, Data: map[string][]byte{PrivateKeyEntry: good}},
			blame: fault.Configuration, reason: ReasonSecretNotFound, says: "pool/login"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects := fake.NewClientBuilder().WithScheme(scheme.Scheme)
			if tc.secret != nil {
				objects = objects.WithObjects(tc.secret)
			}
			if tc.getErr != nil {
				objects = objects.WithInterceptorFuncs(interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return tc.getErr
				}})
			}
			h := host()
			if tc.edit != nil {
				tc.edit(h)
			}
			_, err := NewResolver(objects.Build()).Target(t.Context(), h)
			got := fault.Of(err)
			if got == nil || got.Blame != tc.blame || got.Reason != tc.reason || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("want %s/%s saying %q, got %+v", tc.blame, tc.reason, tc.says, got)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("a Secret's content reached an error: %v", err)
			}
		})
	}
}

// Section 3 #11: a key is read and decrypted once per version of its Secret, not once per phase.
func TestTargetFillsDefaultsAndDecryptsOncePerSecretVersion(t *testing.T) {
	s := secret(map[string][]byte{PrivateKeyEntry: privateKey(t, "correct horse"), PassphraseEntry: []byte("correct horse")})
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(s).Build()
	r := NewResolver(c)
	first, err := r.Target(t.Context(), host())
	if err != nil {
		t.Fatal(err)
	}
	if first.Port != 22 || first.User != "root" || first.Address != "192.0.2.7" || first.Trusted != "" {
		t.Fatalf("unexpected target %+v", first)
	}
	entry := r.keys[client.ObjectKeyFromObject(s)]
	if _, err := r.Target(t.Context(), host()); err != nil {
		t.Fatal(err)
	}
	if r.keys[client.ObjectKeyFromObject(s)] != entry {
		t.Fatal("the same version of the Secret was parsed twice")
	}

	// A rotated key is used at the next call.
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil {
		t.Fatal(err)
	}
	s.Data = map[string][]byte{PrivateKeyEntry: privateKey(t, "")}
	if err := c.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	second, err := r.Target(t.Context(), host())
	if err != nil {
		t.Fatal(err)
	}
	if first.Key.Fingerprint() == second.Key.Fingerprint() {
		t.Fatal("the old key was used after rotation")
	}

	// Deleting the Secret forgets the key.
	if err := c.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Target(t.Context(), host()); !fault.Is(err, fault.Configuration) {
		t.Fatalf("want a configuration fault, got %v", err)
	}
	if len(r.keys) != 0 {
		t.Fatal("the key of a deleted Secret is still held")
	}
}

// D18: a re-imaged machine is neither accepted by itself nor locked out for ever.
func TestExpectedHostKey(t *testing.T) {
	for _, tc := range []struct {
		name       string
		knownHost  string // the Secret's entry
		recorded   string // status.hostKeyFingerprint
		annotation string // TrustHostKeyAnnotation
		pins       string
		trusted    string
	}{
		{name: "nothing known: first key seen is accepted"},
		{name: "seen before", recorded: oldPrint, trusted: oldPrint},
		{name: "pinned by a person outranks what was seen", knownHost: newPrint, recorded: oldPrint, pins: newPrint},
		{name: "pinned by a person outranks the annotation", knownHost: newPrint, annotation: oldPrint, pins: newPrint},
		{name: "blank entry pins nothing", knownHost: " \n", recorded: oldPrint, trusted: oldPrint},
		{name: "quoted new key is accepted besides the recorded one", recorded: oldPrint, annotation: newPrint,
			pins: oldPrint + "\n" + newPrint + "\n"},
		{name: "once recorded, only the quoted key is", recorded: newPrint, annotation: newPrint, trusted: newPrint},
		{name: "quoted before the first contact", annotation: newPrint, trusted: newPrint},
		{name: "annotation that quotes nothing replaces nothing", recorded: oldPrint, annotation: "yes", trusted: oldPrint},
		{name: "truncated fingerprint replaces nothing", recorded: oldPrint, annotation: newPrint[:40], trusted: oldPrint},
		{name: "surrounding blanks do not matter", recorded: newPrint, annotation: " " + newPrint + "\n", trusted: newPrint},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := host(func(h *v1beta1.SSHHost) {
				h.Status.HostKeyFingerprint = tc.recorded
				if tc.annotation != "" {
					h.Annotations = map[string]string{v1beta1.TrustHostKeyAnnotation: tc.annotation}
				}
			})
			got := expectedHostKey(secret(map[string][]byte{KnownHostEntry: []byte(tc.knownHost)}), h)
			if string(got.pins) != tc.pins || got.trusted != tc.trusted {
				t.Fatalf("want pins %q trusted %q, got %q %q", tc.pins, tc.trusted, got.pins, got.trusted)
			}
		})
	}
}
