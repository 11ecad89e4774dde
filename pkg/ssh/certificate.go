package ssh

import (
	"bytes"
	"slices"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Certificate is an OpenSSH user certificate: what an authority says about a login key.
type Certificate struct {
	inner *gossh.Certificate
}

// ParseCertificate reads the `certificate` entry of a login Secret: the one line of an id_*-cert.pub file. It says nothing about whether
// the certificate fits a key or is valid now. Fault: Configuration/CertificateInvalid.
func ParseCertificate(entry []byte) (Certificate, error) {
	bad := func(why string) (Certificate, error) {
		return Certificate{}, fault.New(fault.Configuration, "CertificateInvalid", nil, "`certificate` %s", why).BeforeMachine()
	}
	key, _, _, rest, err := gossh.ParseAuthorizedKey(bytes.TrimSpace(entry))
	if err != nil {
		return bad("is not an OpenSSH certificate: use the content of the file *-cert.pub that ssh-keygen -s makes")
	}
	certificate, ok := key.(*gossh.Certificate)
	switch {
	case !ok:
		return bad("is a public key that nobody has signed: use the content of the file *-cert.pub")
	case len(bytes.TrimSpace(rest)) > 0:
		return bad("holds more than one certificate: keep the one of this key")
	case certificate.CertType != gossh.UserCert:
		return bad("is a host certificate: sign the key without -h")
	case familyOf(certificate.Key.Type()) == nil:
		return bad("is of a type that is not supported: use ed25519, ECDSA or RSA")
	}
	return Certificate{inner: certificate}, nil
}

// IsZero tells whether there is no certificate.
func (c Certificate) IsZero() bool { return c.inner == nil }

// Expires is when the certificate ends; zero if it does not.
func (c Certificate) Expires() time.Time {
	if c.inner == nil {
		return time.Time{}
	}
	_, until := validity(c.inner)
	return until
}

// Check tells whether a server could accept the certificate for this user now, so that none is asked in vain. Faults (Configuration):
// CertificateExpired, CertificateNotYetValid, CertificatePrincipal.
func (c Certificate) Check(user string, now time.Time) error {
	if user == "" {
		user = "root"
	}
	from, until := validity(c.inner)
	switch {
	case now.Before(from):
		return fault.New(fault.Configuration, "CertificateNotYetValid", nil,
			"the login certificate %q is valid from %s on: look at the clocks here and at the authority", c.inner.KeyId, from.UTC().Format(time.RFC3339)).BeforeMachine()
	case !until.IsZero() && !now.Before(until):
		return fault.New(fault.Configuration, "CertificateExpired", nil,
			"the login certificate %q expired at %s: have the key signed again and replace `certificate`", c.inner.KeyId, until.UTC().Format(time.RFC3339)).BeforeMachine()
	case !slices.Contains(c.inner.ValidPrincipals, user):
		return fault.New(fault.Configuration, "CertificatePrincipal", nil,
			"the login certificate %q is for %s, not for user %s: have the key signed for this user (ssh-keygen -n), or change the user", c.inner.KeyId, list(c.inner.ValidPrincipals), user).BeforeMachine()
	}
	return nil
}

// WithCertificate makes the key log in by its certificate, and by nothing else. Fault: Configuration/CertificateInvalid.
func (s Signer) WithCertificate(c Certificate) (Signer, error) {
	if s.inner == nil || c.inner == nil || !bytes.Equal(c.inner.Key.Marshal(), plain(s.inner.PublicKey()).Marshal()) {
		return Signer{}, fault.New(fault.Configuration, "CertificateInvalid", nil,
			"`certificate` is not for `privateKey`, which is %s: have this key signed, or use the key that was", s).BeforeMachine()
	}
	inner, err := gossh.NewCertSigner(c.inner, s.inner)
	if err != nil {
		return Signer{}, fault.New(fault.Configuration, "CertificateInvalid", err, "`certificate` does not fit `privateKey`").BeforeMachine()
	}
	return Signer{inner: inner}, nil
}
