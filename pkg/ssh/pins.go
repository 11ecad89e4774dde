package ssh

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" // the hash of hashed known_hosts names; not a signature
	"encoding/base64"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Pins are the host keys that a person allowed, and those that were revoked.
type Pins struct {
	keys         []gossh.PublicKey
	fingerprints []string
	revoked      []gossh.PublicKey
	// authorities sign the certificates of host keys that are allowed.
	authorities []gossh.PublicKey
}

// Empty tells whether nothing is allowed by name, so that trust on first use applies. Revoked keys are refused even then.
func (p Pins) Empty() bool {
	return len(p.keys) == 0 && len(p.fingerprints) == 0 && len(p.authorities) == 0
}

// Fingerprints of what is allowed, in the order of the input.
func (p Pins) Fingerprints() []string {
	out := make([]string, 0, len(p.keys)+len(p.fingerprints))
	for _, key := range p.keys {
		out = append(out, gossh.FingerprintSHA256(key))
	}
	out = append(out, p.fingerprints...)
	for _, authority := range p.authorities {
		out = append(out, "a certificate by "+gossh.FingerprintSHA256(authority))
	}
	return out
}

func (p Pins) allows(key gossh.PublicKey) bool {
	if contains(p.keys, key) {
		return true
	}
	fingerprint := gossh.FingerprintSHA256(key)
	for _, pinned := range p.fingerprints {
		if pinned == fingerprint {
			return true
		}
	}
	return false
}

func contains(keys []gossh.PublicKey, key gossh.PublicKey) bool {
	for _, k := range keys {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}

var fingerprintForm = regexp.MustCompile(`^SHA256:[A-Za-z0-9+/]{43}$`)

// ParsePins reads the `knownHost` entry of a host's Secret: one pin a line, each a SHA256 fingerprint, a public key
// (`ssh-ed25519 AAAA...`) or a known_hosts line (plain, hashed, with patterns, or @revoked). Lines of a known_hosts file that
// name other machines than address and port are passed over. A non-empty input that pins nothing for this machine is an error,
// never "anything goes". Faults (Configuration): HostPinsInvalid, AddressInvalid.
func ParsePins(knownHost []byte, address string, port int) (Pins, error) {
	var pins Pins
	host, err := bareHost(address)
	if err != nil {
		return pins, err
	}
	if port == 0 {
		port = DefaultPort
	}
	passed, lines := 0, 0
	for number, line := range strings.Split(string(knownHost), "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		lines++
		other, err := pins.add(line, host, port)
		if err != nil {
			return Pins{}, fault.New(fault.Configuration, "HostPinsInvalid", nil, "line %d of knownHost %s", number+1, err)
		}
		if other {
			passed++
		}
	}
	if passed == lines && lines > 0 {
		return Pins{}, fault.New(fault.Configuration, "HostPinsInvalid", nil,
			"none of the %d lines of knownHost names %s with a key that SSH still uses: use a line of this machine (ssh-keyscan -p %d %s), its public key, or its fingerprint",
			lines, net.JoinHostPort(host, strconv.Itoa(port)), port, host)
	}
	return pins, nil
}

// pinError says what is wrong with a line, to follow "line N of knownHost".
type pinError string

func (e pinError) Error() string { return string(e) }

const (
	errPinForm pinError = "is neither a SHA256:<43 characters> fingerprint nor a public key nor a known_hosts line"
	errPinMD5  pinError = "is an MD5 fingerprint, which proves nothing: use the SHA256 one (ssh-keygen -lf)"
	errPinCA   pinError = "is a @cert-authority line: put it into the Secret's entry hostCA"
)

// add takes one line; other is true when it says nothing about this machine.
func (p *Pins) add(line, host string, port int) (other bool, err error) {
	fields := strings.Fields(line)
	switch {
	case strings.HasPrefix(fields[0], "SHA256:"):
		// ssh-keygen -l pads nothing, but other tools do.
		fingerprint := strings.TrimRight(fields[0], "=")
		if !fingerprintForm.MatchString(fingerprint) {
			return false, errPinForm
		}
		p.fingerprints = append(p.fingerprints, fingerprint)
		return false, nil
	case len(fields) > 1 && strings.HasPrefix(fields[1], "SHA256:"): // the whole line of ssh-keygen -l
		return p.add(strings.Join(fields[1:], " "), host, port)
	case strings.HasPrefix(fields[0], "MD5:"), len(fields) > 1 && strings.HasPrefix(fields[1], "MD5:"):
		return false, errPinMD5
	case fields[0] == "@cert-authority":
		return false, errPinCA
	}
	if slices.Contains(fields, "ssh-dss") {
		return true, nil // SSH no longer uses DSA: the line can match nothing
	}
	if key, ok := publicKey(fields); ok {
		return false, p.addKey(key, false)
	}
	revoked := fields[0] == "@revoked"
	if revoked {
		fields = fields[1:]
		if key, ok := publicKey(fields); ok { // without host names: revoked everywhere
			return false, p.addKey(key, true)
		}
	} else if strings.HasPrefix(fields[0], "@") {
		return false, errPinForm
	}
	if len(fields) < 3 {
		return false, errPinForm
	}
	// Another machine's key may be of a type that is not known here.
	if _, err := base64.StdEncoding.DecodeString(fields[2]); err == nil && !names(fields[0], host, port) {
		return true, nil
	}
	key, ok := publicKey(fields[1:])
	if !ok {
		return false, errPinForm
	}
	return false, p.addKey(key, revoked)
}

func (p *Pins) addKey(key gossh.PublicKey, revoked bool) error {
	if revoked {
		p.revoked = append(p.revoked, key)
		return nil
	}
	if familyOf(key.Type()) == nil {
		return pinError("is a key of type " + key.Type() + ", which no host key can have here")
	}
	p.keys = append(p.keys, key)
	return nil
}

// publicKey reads "<type> <base64> [comment]". The type named must be the key's own: a mislabelled line is a mistake worth telling.
func publicKey(fields []string) (gossh.PublicKey, bool) {
	if len(fields) < 2 {
		return nil, false
	}
	wire, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return nil, false
	}
	key, err := gossh.ParsePublicKey(wire)
	if err != nil || key.Type() != fields[0] {
		return nil, false
	}
	return key, true
}

// names tells whether a known_hosts host field stands for this machine. A later "!pattern" wins over any match.
func names(field, host string, port int) bool {
	want := []string{host}
	if port != DefaultPort {
		want = []string{"[" + host + "]:" + strconv.Itoa(port)}
	} else {
		want = append(want, "["+host+"]:22", "["+host+"]")
	}
	if strings.HasPrefix(field, "|1|") {
		return hashedName(field, want)
	}
	found := false
	for _, pattern := range strings.Split(field, ",") {
		negated := strings.HasPrefix(pattern, "!")
		pattern = strings.ToLower(strings.TrimPrefix(pattern, "!"))
		for _, name := range want {
			if wildcard(pattern, strings.ToLower(name)) || sameIP(pattern, name) {
				if negated {
					return false
				}
				found = true
			}
		}
	}
	return found
}

// hashedName checks |1|<salt>|<HMAC-SHA1 of the name>.
func hashedName(field string, want []string) bool {
	parts := strings.Split(field, "|")
	if len(parts) != 4 {
		return false
	}
	salt, err1 := base64.StdEncoding.DecodeString(parts[2])
	sum, err2 := base64.StdEncoding.DecodeString(parts[3])
	if err1 != nil || err2 != nil {
		return false
	}
	for _, name := range want {
		mac := hmac.New(sha1.New, salt)
		mac.Write([]byte(name))
		if hmac.Equal(mac.Sum(nil), sum) {
			return true
		}
	}
	return false
}

// wildcard matches * and ?, the only patterns known_hosts has. Linear in the product of both lengths at worst.
func wildcard(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]) && pattern[p] != '*':
			p, i = p+1, i+1
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// sameIP compares two IPv6 spellings of one address, with or without brackets and port.
func sameIP(a, b string) bool {
	hostA, portA := splitBrackets(a)
	hostB, portB := splitBrackets(b)
	ipA, ipB := net.ParseIP(hostA), net.ParseIP(hostB)
	return ipA != nil && ipB != nil && portA == portB && ipA.Equal(ipB)
}

func splitBrackets(s string) (host, port string) {
	if host, port, err := net.SplitHostPort(s); err == nil && strings.HasPrefix(s, "[") {
		if port == strconv.Itoa(DefaultPort) {
			port = ""
		}
		return host, port
	}
	return strings.Trim(s, "[]"), ""
}
