package bootstrap

import (
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// lastExpiry is when the last certificate of a bundle expires; zero if it holds none. While a CA is being replaced a bundle holds the old
// one, too, whose end does not matter any more.
func lastExpiry(bundle []byte) (last time.Time) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err == nil && certificate.NotAfter.After(last) {
			last = certificate.NotAfter
		}
	}
	return last
}

// Expiries are the cluster CAs that machines of the classes given are told to believe, for metrics.Expiries. Others are forgotten.
func (d *Discovery) Expiries(classes []string) map[metrics.Credential]time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	expiries, kept := map[metrics.Credential]time.Time{}, map[string]time.Time{}
	for _, class := range classes {
		if at, known := d.expires[class]; known {
			expiries[metrics.Credential{Kind: "cluster_ca", Name: class}], kept[class] = at, at
		}
	}
	d.expires = kept
	return expiries
}
