package verified

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Principal is whom signers sign for, in allowed_signers files.
const Principal = "kpssh"

// ReasonSignersInvalid means that spec.trustedSigners of an SSHHost cannot be read.
const ReasonSignersInvalid = "SignersInvalid"

// Signers are the keys that may sign what runs on a host.
type Signers struct {
	all []signer
}

type signer struct {
	key ssh.PublicKey
	// namespaces for which the key may sign; nil for all.
	namespaces []*regexp.Regexp
	// after and before bound the time in which it may; zero for no bound.
	after, before time.Time
}

// ParseSigners reads SSHHost.spec.trustedSigners. A line is a public key, or a line of an allowed_signers file (ssh-keygen(1)) whose principals include
// kpssh; its options namespaces, valid-after and valid-before hold, in UTC unless a time zone is given. Fault: Configuration/SignersInvalid, which
// names the entry by its number.
func ParseSigners(lines []string) (Signers, error) {
	var signers Signers
	for index, line := range lines {
		one, err := parseSigner(strings.TrimSpace(line))
		if err != nil {
			return Signers{}, fault.New(fault.Configuration, ReasonSignersInvalid, err, "entry %d of spec.trustedSigners cannot be used", index+1)
		}
		signers.all = append(signers.all, one)
	}
	if len(signers.all) == 0 {
		return Signers{}, fault.New(fault.Configuration, ReasonSignersInvalid, nil, "spec.trustedSigners is empty: name the public keys whose scripts may run on the machine")
	}
	return signers, nil
}

func parseSigner(line string) (signer, error) {
	if line == "" || strings.HasPrefix(line, "#") {
		return signer{}, fmt.Errorf("it is empty")
	}
	if first, _, _ := strings.Cut(line, " "); !isKeyType(first) {
		principals, rest := cutWord(line)
		if !matches(patterns(strings.Trim(principals, `"`)), Principal) {
			return signer{}, fmt.Errorf("it is neither a public key nor a line of an allowed_signers file for principal %s", Principal)
		}
		line = rest
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || len(rest) > 0 {
		return signer{}, fmt.Errorf("it holds no public key on one line")
	}
	one := signer{key: key}
	if _, known := algorithms[key.Type()]; !known {
		return signer{}, fmt.Errorf("a key of type %s may not sign scripts", printable(key.Type()))
	}
	if err := strongEnough(key); err != nil {
		return signer{}, err
	}
	for _, option := range options {
		if err := one.set(option); err != nil {
			return signer{}, err
		}
	}
	return one, nil
}

// set applies an option of an allowed_signers line.
func (s *signer) set(option string) (err error) {
	name, value, _ := strings.Cut(option, "=")
	value = strings.Trim(value, `"`)
	switch strings.ToLower(name) {
	case "namespaces":
		s.namespaces = patterns(value)
	case "valid-after":
		s.after, err = parseTime(value)
	case "valid-before":
		s.before, err = parseTime(value)
	case "cert-authority":
		err = fmt.Errorf("certificates may not sign scripts: name the keys themselves")
	default:
		err = fmt.Errorf("option %s is not known", printable(name))
	}
	return err
}

func isKeyType(word string) bool {
	_, known := algorithms[word]
	return known || strings.HasPrefix(word, "ssh-") || strings.HasPrefix(word, "ecdsa-") || strings.HasPrefix(word, "sk-")
}

// cutWord cuts a line after its first word, which may be quoted.
func cutWord(line string) (word, rest string) {
	quoted := false
	for index, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case (r == ' ' || r == '\t') && !quoted:
			return line[:index], strings.TrimSpace(line[index:])
		}
	}
	return line, ""
}

// patterns reads a comma-separated list in which * and ? stand for any text and any character. What follows a ! is forbidden: matches knows.
func patterns(list string) []*regexp.Regexp {
	all := []*regexp.Regexp{}
	for _, one := range strings.Split(list, ",") {
		pattern := regexp.QuoteMeta(strings.TrimSpace(one))
		pattern = strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(pattern)
		all = append(all, regexp.MustCompile("^"+pattern+"$"))
	}
	return all
}

// matches tells whether a pattern of the list fits and none forbids. A pattern that fits the text with a ! before it and not the text itself is
// one that was written with the !.
func matches(list []*regexp.Regexp, text string) bool {
	found := false
	for _, pattern := range list {
		fits := pattern.MatchString(text)
		if !fits && pattern.MatchString("!"+text) {
			return false
		}
		found = found || fits
	}
	return found
}

// parseTime reads a time as allowed_signers files have it: YYYYMMDD[HHMM[SS]][Z].
func parseTime(text string) (time.Time, error) {
	text = strings.TrimSuffix(text, "Z")
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time such as 20270101 or 202701011200Z", printable(text))
}

// Verify checks an armored signature over a message at a time, and gives the fingerprint of the key that made it. Faults, all the configuration's:
// SignatureMissing, SignatureMalformed, SignatureAlgorithm, SignatureNamespace, SignerUnknown, which names the key's fingerprint, and SignatureInvalid.
func (s Signers) Verify(message, armored []byte, namespace string, now time.Time) (keyFingerprint string, err error) {
	if len(bytes.TrimSpace(armored)) == 0 {
		return "", fault.New(fault.Configuration, ReasonSignatureMissing, nil, "it is not signed: sign it with `kubectl kpssh sign`, or `ssh-keygen -Y sign -n %s`", namespace)
	}
	parsed, err := parseSignature(armored)
	if err != nil {
		return "", err
	}
	if err := s.allow(parsed.key, namespace, now); err != nil {
		return "", err
	}
	if err := parsed.verify(message, namespace); err != nil {
		return "", err
	}
	return ssh.FingerprintSHA256(parsed.key), nil
}

// allow tells whether a key may sign for a namespace at a time.
func (s Signers) allow(key ssh.PublicKey, namespace string, now time.Time) error {
	why := "it is not among them"
	wire := string(key.Marshal())
	for _, one := range s.all {
		switch {
		case string(one.key.Marshal()) != wire:
		case one.namespaces != nil && !matches(one.namespaces, namespace):
			why = "it may not sign in namespace " + namespace
		case !one.after.IsZero() && now.Before(one.after):
			why = "it may sign from " + one.after.UTC().Format(time.RFC3339) + " on"
		case !one.before.IsZero() && !now.Before(one.before):
			why = "it could sign until " + one.before.UTC().Format(time.RFC3339)
		default:
			return nil
		}
	}
	return fault.New(fault.Configuration, ReasonSignerUnknown, nil,
		"it is signed by %s, and the host's spec.trustedSigners do not allow that: %s", ssh.FingerprintSHA256(key), why)
}
