package ssh

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// family is the signature algorithms that one type of host key can make.
type family struct {
	keyType    string
	algorithms []string
}

// families in the order of preference, the order by which trust on first use picks a key. SHA-1 (ssh-rsa) and DSA are not among them.
var families = []*family{
	{gossh.KeyAlgoED25519, []string{gossh.KeyAlgoED25519}},
	{gossh.KeyAlgoECDSA256, []string{gossh.KeyAlgoECDSA256}},
	{gossh.KeyAlgoECDSA384, []string{gossh.KeyAlgoECDSA384}},
	{gossh.KeyAlgoECDSA521, []string{gossh.KeyAlgoECDSA521}},
	{gossh.KeyAlgoRSA, []string{gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256}},
}

// certified are the host certificates of the same keys, in the same order.
var certified = []*family{
	{gossh.CertAlgoED25519v01, []string{gossh.CertAlgoED25519v01}},
	{gossh.CertAlgoECDSA256v01, []string{gossh.CertAlgoECDSA256v01}},
	{gossh.CertAlgoECDSA384v01, []string{gossh.CertAlgoECDSA384v01}},
	{gossh.CertAlgoECDSA521v01, []string{gossh.CertAlgoECDSA521v01}},
	{gossh.CertAlgoRSAv01, []string{gossh.CertAlgoRSASHA512v01, gossh.CertAlgoRSASHA256v01}},
}

// plain is the key in a certificate, or the key itself.
func plain(key gossh.PublicKey) gossh.PublicKey {
	if certificate, ok := key.(*gossh.Certificate); ok {
		return certificate.Key
	}
	return key
}

func familyOf(keyType string) *family {
	for _, f := range families {
		if f.keyType == keyType {
			return f
		}
	}
	return nil
}

// HostKeyMismatch is the cause of the fault Host/HostKeyMismatch.
type HostKeyMismatch struct {
	// Presented are the fingerprints of the keys that the machine showed, each preceded by its type.
	Presented []string
	// Expected are the fingerprints that are pinned or were seen first.
	Expected []string
}

func (e *HostKeyMismatch) Error() string {
	return fmt.Sprintf("host key presented: %s; expected: %s", strings.Join(e.Presented, ", "), strings.Join(e.Expected, ", "))
}

// refused is the host key callback's verdict on one handshake.
type refused struct {
	key     gossh.PublicKey
	revoked bool
	// why a certificate does not count; empty for a plain key.
	why string
}

func (e *refused) Error() string {
	return "host key " + describe(plain(e.key)) + " is not the expected one"
}

func describe(key gossh.PublicKey) string { return key.Type() + " " + gossh.FingerprintSHA256(key) }

// recognition is the search for a pinned key among those that a machine has. A server shows one key per handshake, of a type that
// the client's list selects, so that a pinned machine with several keys must be asked by type.
type recognition struct {
	pins    Pins
	trusted string
	// address that certificates must be for, and the clock that they are judged by.
	address string
	now     func() time.Time
	// groups of families to ask for, the first one first.
	groups [][]*family
	seen   []gossh.PublicKey
	// whyNot holds what was wrong with the certificates that were seen.
	whyNot []string
}

// recognise plans the search. hint is the type of the key that was recognised last time, if any.
func recognise(pins Pins, trusted, hint, address string, now func() time.Time) *recognition {
	r := &recognition{pins: pins, trusted: trusted, address: address, now: now}
	if !pins.Empty() {
		r.trusted = "" // what a person pinned outranks what was seen first
	}
	var pinned, rest []*family
	for _, f := range families {
		if slices.ContainsFunc(pins.keys, func(k gossh.PublicKey) bool { return k.Type() == f.keyType }) {
			pinned = append(pinned, f)
		} else {
			rest = append(rest, f)
		}
	}
	// Stable: apart from the hint, the order of preference stays.
	last := func(a, b *family) int { return rank(a, hint) - rank(b, hint) }
	slices.SortStableFunc(pinned, last)
	slices.SortStableFunc(rest, last)
	if len(pins.authorities) > 0 {
		pinned = append(slices.Clone(certified), pinned...)
	}
	if len(pinned) > 0 {
		r.groups = append(r.groups, pinned)
	}
	r.groups = append(r.groups, rest)
	return r
}

func rank(f *family, hint string) int {
	if f.keyType == hint {
		return 0
	}
	return 1
}

// expects lists what would be accepted; empty when anything would.
func (r *recognition) expects() []string {
	if r.trusted != "" {
		return []string{r.trusted}
	}
	return r.pins.Fingerprints()
}

// bare tells whether a fingerprint, whose key's type is unknown, is among what is expected.
func (r *recognition) bare() bool { return r.trusted != "" || len(r.pins.fingerprints) > 0 }

// algorithms to offer in the next handshake.
func (r *recognition) algorithms() []string {
	var out []string
	for _, f := range r.groups[0] {
		out = append(out, f.algorithms...)
	}
	return out
}

// check is the host key callback.
func (r *recognition) check(key gossh.PublicKey) error {
	if contains(r.pins.revoked, plain(key)) {
		return &refused{key: key, revoked: true}
	}
	if certificate, ok := key.(*gossh.Certificate); ok {
		if r.pins.allows(certificate.Key) {
			return nil
		}
		if why := r.pins.certifies(certificate, r.address, r.now); why != "" {
			return &refused{key: key, revoked: contains(r.pins.revoked, certificate.SignatureKey), why: why}
		}
		return nil
	}
	switch {
	case r.trusted != "":
		if gossh.FingerprintSHA256(key) == r.trusted {
			return nil
		}
	case r.pins.Empty(), r.pins.allows(key):
		return nil
	}
	return &refused{key: key}
}

// another takes note of a key that was refused and tells whether to shake hands again for a key of another type.
func (r *recognition) another(e *refused) bool {
	if e.revoked {
		return false
	}
	r.seen = append(r.seen, plain(e.key))
	if e.why != "" {
		r.whyNot = append(r.whyNot, e.why)
	}
	r.groups[0] = slices.DeleteFunc(slices.Clone(r.groups[0]), func(f *family) bool { return f.keyType == e.key.Type() })
	return len(r.groups[0]) > 0 || r.advance()
}

// advance goes on to the types that are not pinned: where a bare fingerprint may be meant, or where no key was seen yet, to
// learn (and refuse) the one that the machine has, because the person who must decide needs to see it.
func (r *recognition) advance() bool {
	if len(r.groups) < 2 || (!r.bare() && len(r.seen) > 0) {
		return false
	}
	r.groups = r.groups[1:]
	return true
}

// mismatch is the final verdict.
func (r *recognition) mismatch(t Target) error {
	cause := &HostKeyMismatch{Expected: r.expects()}
	for _, key := range r.seen {
		cause.Presented = append(cause.Presented, describe(key))
	}
	if len(r.whyNot) > 0 {
		return fault.New(fault.Host, "HostCertificateInvalid", cause,
			"handshake with %s: its host certificate does not count, because %s; nothing was sent to it; sign its host key anew for this address", t, strings.Join(r.whyNot, ", and "))
	}
	return fault.New(fault.Host, "HostKeyMismatch", cause,
		"handshake with %s: its host key is not the expected one, so either the machine was installed anew or another machine answers in its place; "+
			"nothing was sent to it; if it was installed anew, compare the fingerprint on its console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub) "+
			"and replace the pin", t)
}

func revokedFault(t Target, e *refused) error {
	return fault.New(fault.Host, "HostKeyRevoked", nil,
		"handshake with %s: it presents the host key %s, which, or whose authority, the Secret marks @revoked: make new host keys on the machine and pin one of them",
		t, describe(plain(e.key)))
}

// callback adapts check to x/crypto and reports the key that was accepted.
func (r *recognition) callback(accepted func(gossh.PublicKey)) gossh.HostKeyCallback {
	return func(_ string, _ net.Addr, key gossh.PublicKey) error {
		if err := r.check(key); err != nil {
			return err
		}
		accepted(key)
		return nil
	}
}
