package credentials

import (
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// CertificateEntry holds an OpenSSH certificate of the login key, as in a file id_*-cert.pub. Optional.
const CertificateEntry = "certificate"

// certificateExpiry is when a certificate expires; zero if there is none, or it does not.
func certificateExpiry(entry []byte) time.Time {
	certificate, err := ssh.ParseCertificate(entry)
	if err != nil {
		return time.Time{} // Target says what is wrong with it
	}
	return certificate.Expires()
}

// Expiries are the certificates in login Secrets that hosts use, for metrics.Expiries.
func (r *Resolver) Expiries() map[metrics.Credential]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	expiries := map[metrics.Credential]time.Time{}
	for key, parsed := range r.keys {
		if !parsed.expires.IsZero() {
			expiries[metrics.Credential{Kind: "ssh_certificate", Name: key.Name}] = parsed.expires
		}
	}
	return expiries
}
