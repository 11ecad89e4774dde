package ssh

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// WithAuthorities adds the `hostCA` entry of a host's Secret: the keys whose host certificates are accepted, one a line, each a public
// key, or a known_hosts line that begins with @cert-authority or @revoked. Lines for other machines are passed over. A non-empty input
// that holds no authority for this machine is an error. Faults (Configuration): HostCAInvalid, AddressInvalid.
func (p Pins) WithAuthorities(hostCA []byte, address string, port int) (Pins, error) {
	host, err := bareHost(address)
	if err != nil {
		return Pins{}, err
	}
	if port == 0 {
		port = DefaultPort
	}
	p.authorities, p.revoked = slices.Clone(p.authorities), slices.Clone(p.revoked)
	lines := 0
	for number, line := range strings.Split(string(hostCA), "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		if err := p.addAuthority(strings.Fields(line), host, port); err != nil {
			return Pins{}, fault.New(fault.Configuration, "HostCAInvalid", nil, "line %d of hostCA %s", number+1, err)
		}
	}
	if lines > 0 && len(p.authorities) == 0 {
		return Pins{}, fault.New(fault.Configuration, "HostCAInvalid", nil, "none of the %d lines of hostCA is the key of an authority for %s", lines, host)
	}
	return p, nil
}

const errAuthorityForm pinError = "is neither a public key nor a @cert-authority line"

func (p *Pins) addAuthority(fields []string, host string, port int) error {
	marker := ""
	if strings.HasPrefix(fields[0], "@") || fields[0] == "cert-authority" {
		marker, fields = strings.TrimPrefix(fields[0], "@"), fields[1:]
	}
	if marker != "" && marker != "cert-authority" && marker != "revoked" {
		return errAuthorityForm
	}
	key, ok := publicKey(fields)
	if !ok && marker != "" && len(fields) >= 3 {
		if _, err := base64.StdEncoding.DecodeString(fields[2]); err == nil && !names(fields[0], host, port) {
			return nil
		}
		key, ok = publicKey(fields[1:])
	}
	if _, certificate := key.(*gossh.Certificate); !ok || certificate {
		return errAuthorityForm
	}
	if marker == "revoked" {
		p.revoked = append(p.revoked, key)
		return nil
	}
	p.authorities = append(p.authorities, key)
	return nil
}

// certifies tells what is wrong with a host certificate; empty: it is one of the authorities', for this address, and valid now. One that
// names nobody would be good for every machine, so it counts for none.
func (p Pins) certifies(certificate *gossh.Certificate, address string, now func() time.Time) string {
	serial := fmt.Sprintf("certificate %d (%s)", certificate.Serial, certificate.KeyId)
	if certificate.CertType != gossh.HostCert {
		return serial + " is not one for hosts"
	}
	if !contains(p.authorities, certificate.SignatureKey) {
		return serial + " was signed by " + describe(certificate.SignatureKey) + ", which hostCA does not hold"
	}
	host, err := bareHost(address)
	if err != nil {
		return err.Error()
	}
	principal := ""
	for _, name := range certificate.ValidPrincipals {
		if wildcard(strings.ToLower(name), strings.ToLower(host)) || sameIP(name, host) {
			principal = name
		}
	}
	if principal == "" {
		return fmt.Sprintf("%s is for %s, not for %s", serial, list(certificate.ValidPrincipals), host)
	}
	if why := outside(certificate, now()); why != "" {
		return serial + " " + why
	}
	checker := &gossh.CertChecker{
		Clock: now,
		IsRevoked: func(c *gossh.Certificate) bool {
			return contains(p.revoked, c.Key) || contains(p.revoked, c.SignatureKey)
		},
	}
	if err := checker.CheckCert(principal, certificate); err != nil {
		return serial + ": " + err.Error()
	}
	return ""
}

// outside tells on which side of a certificate's validity a time lies; empty: inside.
func outside(certificate *gossh.Certificate, now time.Time) string {
	from, until := validity(certificate)
	switch {
	case now.Before(from):
		return "is valid from " + from.UTC().Format(time.RFC3339) + " on"
	case !until.IsZero() && !now.Before(until):
		return "expired at " + until.UTC().Format(time.RFC3339)
	}
	return ""
}

// validity is the time in which a certificate is valid; until is zero if it has no end.
func validity(certificate *gossh.Certificate) (from, until time.Time) {
	const farAway = 1 << 40 // seconds, the year 36812: as good as never, and safe in every computation
	from = time.Unix(int64(min(certificate.ValidAfter, farAway)), 0)
	if certificate.ValidBefore < farAway {
		until = time.Unix(int64(certificate.ValidBefore), 0)
	}
	return from, until
}
