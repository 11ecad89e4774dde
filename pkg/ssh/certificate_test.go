package ssh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"math"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

var signedAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// sign makes a certificate that is valid for an hour from signedAt; edit changes it before it is signed.
func sign(t *testing.T, authority gossh.Signer, key gossh.PublicKey, kind uint32, principals []string, edit ...func(*gossh.Certificate)) *gossh.Certificate {
	t.Helper()
	c := &gossh.Certificate{
		Key: key, CertType: kind, KeyId: "ops", Serial: 7, ValidPrincipals: principals,
		ValidAfter: uint64(signedAt.Unix()), ValidBefore: uint64(signedAt.Add(time.Hour).Unix()),
		Permissions: gossh.Permissions{Extensions: map[string]string{"permit-port-forwarding": ""}},
	}
	for _, e := range edit {
		e(c)
	}
	if len(principals) == 0 {
		c.ValidPrincipals = []string{"nobody"} // x/crypto signs none without; ssh-keygen does
	}
	if err := c.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	c.ValidPrincipals = principals
	return c
}

func newAuthority(t *testing.T) gossh.Signer {
	t.Helper()
	authority, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func forever(c *gossh.Certificate) { c.ValidAfter, c.ValidBefore = 0, gossh.CertTimeInfinity }

// D19, section 3 #33: a key logs in by its certificate where only the authority is known, whatever its type.
func TestLoginByCertificate(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	checker := &gossh.CertChecker{IsUserAuthority: func(key gossh.PublicKey) bool { return contains([]gossh.PublicKey{authority.PublicKey()}, key) }}
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) {
		s.Configure = func(c *gossh.ServerConfig) { c.PublicKeyCallback = checker.Authenticate }
	})
	for _, inner := range []gossh.Signer{ed, signer(t, e), signer(t, r)} {
		key, err := NewSigner(inner)
		if err != nil {
			t.Fatal(err)
		}
		target := m.target()
		target.Key = key
		_, err = (&Dialer{}).Dial(t.Context(), target)
		wantFault(t, err, fault.Host, "AuthenticationFailed", "authorized_keys")

		parsed, err := ParseCertificate(gossh.MarshalAuthorizedKey(sign(t, authority, inner.PublicKey(), gossh.UserCert, []string{"root"}, forever)))
		if err != nil {
			t.Fatal(err)
		}
		if target.Key, err = key.WithCertificate(parsed); err != nil {
			t.Fatal(err)
		}
		if target.Key.Fingerprint() != key.Fingerprint() {
			t.Errorf("the certificate hides which key it is: %s", target.Key)
		}
		conn, err := (&Dialer{}).Dial(t.Context(), target)
		if err != nil {
			t.Errorf("%s: %v", key.Type(), err)
			continue
		}
		_ = conn.Close()
	}

	stranger := sign(t, newAuthority(t), ed.PublicKey(), gossh.UserCert, []string{"root"}, forever)
	target := m.target()
	if target.Key, err = (Signer{inner: ed}).WithCertificate(Certificate{inner: stranger}); err != nil {
		t.Fatal(err)
	}
	_, err = (&Dialer{}).Dial(t.Context(), target)
	wantFault(t, err, fault.Host, "AuthenticationFailed", "TrustedUserCAKeys")
}

func TestCertificatesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	key, public := newKey(t)
	_, other := newKey(t)
	good := gossh.MarshalAuthorizedKey(sign(t, authority, public, gossh.UserCert, []string{"root"}))
	for name, tc := range map[string]struct {
		entry []byte
		word  string
	}{
		"nothing":           {nil, "ssh-keygen -s"},
		"text":              {[]byte("hello"), "ssh-keygen -s"},
		"a plain key":       {gossh.MarshalAuthorizedKey(public), "nobody has signed"},
		"two certificates":  {append(append([]byte{}, good...), good...), "more than one"},
		"for a host":        {gossh.MarshalAuthorizedKey(sign(t, authority, public, gossh.HostCert, []string{"root"})), "without -h"},
		"for another key":   {gossh.MarshalAuthorizedKey(sign(t, authority, other, gossh.UserCert, []string{"root"})), key.Fingerprint()},
		"for a cut-off one": {good[:len(good)/2], "ssh-keygen -s"},
	} {
		c, err := ParseCertificate(tc.entry)
		if err == nil {
			_, err = key.WithCertificate(c)
		}
		wantFault(t, err, fault.Configuration, "CertificateInvalid", tc.word)
		if err != nil && !fault.Of(err).Before {
			t.Errorf("%s: the machine is blamed", name)
		}
	}
	if _, err := ParseCertificate(append([]byte("\n  "), good...)); err != nil {
		t.Errorf("white space: %v", err)
	}
}

func TestCertificateIsCheckedBeforeItIsShown(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	_, public := newKey(t)
	for name, tc := range map[string]struct {
		principals []string
		edit       func(*gossh.Certificate)
		user       string
		at         time.Time
		reason     string // empty: it is good
	}{
		"good":                     {principals: []string{"ops", "root"}, user: "root", at: signedAt},
		"no user means root":       {principals: []string{"root"}, at: signedAt},
		"last second":              {principals: []string{"root"}, user: "root", at: signedAt.Add(time.Hour - time.Second)},
		"just expired":             {principals: []string{"root"}, user: "root", at: signedAt.Add(time.Hour), reason: "CertificateExpired"},
		"not yet":                  {principals: []string{"root"}, user: "root", at: signedAt.Add(-time.Second), reason: "CertificateNotYetValid"},
		"another user":             {principals: []string{"ops"}, user: "root", at: signedAt, reason: "CertificatePrincipal"},
		"nobody":                   {user: "root", at: signedAt, reason: "CertificatePrincipal"},
		"without end":              {principals: []string{"root"}, user: "root", at: signedAt.AddDate(500, 0, 0), edit: forever},
		"absurdly far":             {principals: []string{"root"}, user: "root", at: signedAt, edit: func(c *gossh.Certificate) { c.ValidBefore = math.MaxInt64 }},
		"from an absurd future on": {principals: []string{"root"}, user: "root", at: signedAt, edit: func(c *gossh.Certificate) { c.ValidAfter = math.MaxUint64 }, reason: "CertificateNotYetValid"},
	} {
		edit := tc.edit
		if edit == nil {
			edit = func(*gossh.Certificate) {}
		}
		c, err := ParseCertificate(gossh.MarshalAuthorizedKey(sign(t, authority, public, gossh.UserCert, tc.principals, edit)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		err = c.Check(tc.user, tc.at)
		if tc.reason == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantFault(t, err, fault.Configuration, tc.reason)
		if !fault.Of(err).Before {
			t.Errorf("%s: the machine is blamed", name)
		}
	}
	c, _ := ParseCertificate(gossh.MarshalAuthorizedKey(sign(t, authority, public, gossh.UserCert, nil)))
	if !c.Expires().Equal(signedAt.Add(time.Hour)) {
		t.Errorf("expires at %s", c.Expires())
	}
	c, _ = ParseCertificate(gossh.MarshalAuthorizedKey(sign(t, authority, public, gossh.UserCert, nil, forever)))
	if !c.Expires().IsZero() {
		t.Errorf("one without end expires at %s", c.Expires())
	}
}

// Section 3 #33 and #8: a host certificate counts if one of the authorities signed it, for this address, and not for ever; pins go on to count.
func TestHostCertificates(t *testing.T) {
	t.Parallel()
	authority, foreign, host := newAuthority(t), newAuthority(t), newAuthority(t)
	here := []string{"127.0.0.1"}
	certificate := func(by gossh.Signer, kind uint32, principals []string, edit ...func(*gossh.Certificate)) []gossh.Signer {
		shown, err := gossh.NewCertSigner(sign(t, by, host.PublicKey(), kind, principals, edit...), host)
		if err != nil {
			t.Fatal(err)
		}
		return []gossh.Signer{shown}
	}
	for name, tc := range map[string]struct {
		keys   []gossh.Signer
		hostCA string
		pins   string
		// trusted is what was seen first.
		trusted string
		at      time.Time
		reason  string // empty: it connects
		word    string
	}{
		"good":                       {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority)},
		"as @cert-authority line":    {keys: certificate(authority, gossh.HostCert, here), hostCA: "@cert-authority * " + line(authority)},
		"one of two authorities":     {keys: certificate(authority, gossh.HostCert, here), hostCA: line(foreign) + line(authority)},
		"with a wildcard":            {keys: certificate(authority, gossh.HostCert, []string{"127.0.0.*"}), hostCA: line(authority)},
		"beside the plain key":       {keys: append(certificate(authority, gossh.HostCert, here), host), hostCA: line(authority)},
		"what was seen first is out": {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority), trusted: fingerprint(foreign)},
		"expired": {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority), at: signedAt.Add(2 * time.Hour),
			reason: "HostCertificateInvalid", word: "expired at 2026-03-01T13:00:00Z"},
		"not yet valid": {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority), at: signedAt.Add(-time.Hour),
			reason: "HostCertificateInvalid", word: "valid from"},
		"for another machine": {keys: certificate(authority, gossh.HostCert, []string{"192.0.2.1"}), hostCA: line(authority), reason: "HostCertificateInvalid", word: "is for 192.0.2.1, not for 127.0.0.1"},
		"for every machine":   {keys: certificate(authority, gossh.HostCert, nil), hostCA: line(authority), reason: "HostCertificateInvalid", word: "is for nothing"},
		"for users":           {keys: certificate(authority, gossh.UserCert, here), hostCA: line(authority), reason: "HostCertificateInvalid", word: "not one for hosts"},
		"of another authority": {keys: certificate(foreign, gossh.HostCert, here), hostCA: line(authority),
			reason: "HostCertificateInvalid", word: fingerprint(foreign)},
		"with an option nobody knows": {keys: certificate(authority, gossh.HostCert, here, func(c *gossh.Certificate) { c.CriticalOptions = map[string]string{"x": ""} }),
			hostCA: line(authority), reason: "HostCertificateInvalid", word: "critical option"},
		"revoked key":       {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority) + "@revoked * " + line(host), reason: "HostKeyRevoked"},
		"revoked authority": {keys: certificate(foreign, gossh.HostCert, here), hostCA: line(authority) + "@revoked * " + line(foreign), reason: "HostKeyRevoked"},
		"plain key only":    {keys: []gossh.Signer{host}, hostCA: line(authority), reason: "HostKeyMismatch", word: "a certificate by " + fingerprint(authority)},
		"plain key, was seen first before the authority was named": {keys: []gossh.Signer{host}, hostCA: line(authority), trusted: fingerprint(host), reason: "HostKeyMismatch"},
		"plain key, pinned":                      {keys: []gossh.Signer{host}, hostCA: line(authority), pins: line(host)},
		"expired, but the key in it is pinned":   {keys: certificate(authority, gossh.HostCert, here), hostCA: line(authority), pins: fingerprint(host), at: signedAt.Add(2 * time.Hour)},
		"no authority: the plain key is taken":   {keys: append(certificate(authority, gossh.HostCert, here), host), pins: line(host)},
		"no authority: certificates are not had": {keys: certificate(authority, gossh.HostCert, here), pins: line(host), reason: "NoCommonAlgorithm"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) { s.HostKeys = tc.keys })
			target := m.target()
			target.Trusted = tc.trusted
			var err error
			if target.Pins, err = ParsePins([]byte(tc.pins), target.Address, target.Port); err != nil {
				t.Fatal(err)
			}
			if target.Pins, err = target.Pins.WithAuthorities([]byte(tc.hostCA), target.Address, target.Port); err != nil {
				t.Fatal(err)
			}
			at := tc.at
			if at.IsZero() {
				at = signedAt.Add(time.Minute)
			}
			conn, err := (&Dialer{Clock: clocktesting.NewFakeClock(at)}).Dial(t.Context(), target)
			if tc.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				if conn.HostKeyFingerprint() != fingerprint(host) {
					t.Errorf("it is known by %s", conn.HostKeyFingerprint())
				}
				_ = conn.Close()
				return
			}
			wantFault(t, err, fault.Host, tc.reason, tc.word)
			if m.AuthAttempts() != 0 {
				t.Error("it tried to log in to a machine that it did not recognise")
			}
			var cause *HostKeyMismatch
			if tc.reason == "HostCertificateInvalid" && !errors.As(err, &cause) {
				t.Errorf("nobody sees what was shown: %v", err)
			}
		})
	}
}

func TestAuthoritiesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	for name, tc := range map[string]struct{ hostCA, word string }{
		"text":                       {"# ours\nhello", "line 2 of hostCA is neither"},
		"a fingerprint":              {fingerprint(authority), "line 1 of hostCA is neither"},
		"a certificate":              {string(gossh.MarshalAuthorizedKey(sign(t, authority, authority.PublicKey(), gossh.HostCert, nil))), "is neither"},
		"another marker":             {"@other * " + line(authority), "is neither"},
		"for other machines":         {"@cert-authority *.example " + line(authority), "none of the 1 lines"},
		"nothing but what is not ok": {"@revoked * " + line(authority), "none of the 1 lines"},
	} {
		_, err := Pins{}.WithAuthorities([]byte(tc.hostCA), "192.0.2.1", 22)
		if err == nil {
			t.Errorf("%s was taken", name)
			continue
		}
		wantFault(t, err, fault.Configuration, "HostCAInvalid", tc.word)
	}
	for _, hostCA := range []string{"cert-authority " + line(authority), "@cert-authority 192.0.2.* " + line(authority), "@cert-authority *.example " + line(authority) + line(authority)} {
		pins, err := Pins{}.WithAuthorities([]byte(hostCA), "192.0.2.1", 22)
		if err != nil || len(pins.authorities) != 1 || pins.Empty() {
			t.Errorf("%q: %v", hostCA, err)
		}
	}
	if pins, err := (Pins{}).WithAuthorities([]byte(" \n# none\n"), "192.0.2.1", 22); err != nil || !pins.Empty() {
		t.Errorf("a blank entry: %v", err)
	}
}
