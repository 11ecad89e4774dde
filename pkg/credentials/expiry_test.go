package credentials

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"maps"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// Alert CredentialExpiring: a certificate in a login Secret tells when it expires, until its Secret is gone; one without end, or none, tells nothing.
func TestCertificatesInLoginSecretsTellTheirExpiry(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name string, entry []byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-a", Name: name}, Data: map[string][]byte{
			PrivateKeyEntry: pem.EncodeToMemory(block), CertificateEntry: entry,
		}}
	}
	certificate := func(before uint64) []byte {
		c := &gossh.Certificate{Key: signer.PublicKey(), CertType: gossh.UserCert, ValidPrincipals: []string{"root"}, ValidBefore: before}
		if err := c.SignCert(rand.Reader, signer); err != nil {
			t.Fatal(err)
		}
		return gossh.MarshalAuthorizedKey(c)
	}
	ends := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	ending := secret("ending", certificate(uint64(ends.Unix())))
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		ending, secret("endless", certificate(gossh.CertTimeInfinity)), secret("none", nil), secret("no-certificate", gossh.MarshalAuthorizedKey(signer.PublicKey())),
	).Build()
	r := NewResolver(api)
	resolve := func(name string) error {
		_, err := r.Target(t.Context(), &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: "kp-a", Name: "h"},
			Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1", SSHKeySecretRef: v1beta1.SecretReference{Name: name}}})
		return err
	}
	for _, name := range []string{"ending", "endless", "none"} {
		if err := resolve(name); err != nil {
			t.Fatal(err)
		}
	}
	if resolve("no-certificate") == nil {
		t.Error("a public key passes for a certificate")
	}
	want := map[metrics.Credential]time.Time{{Kind: "ssh_certificate", Name: "ending"}: ends}
	if got := r.Expiries(); !maps.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("expiries: %v, want %v", got, want)
	}
	if err := api.Delete(t.Context(), ending); err != nil {
		t.Fatal(err)
	}
	if resolve("ending") == nil || len(r.Expiries()) != 0 {
		t.Errorf("its Secret is gone: %v", r.Expiries())
	}
}
