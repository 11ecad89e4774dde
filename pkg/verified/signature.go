package verified

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Namespaces of signatures: neither kind passes for the other.
const (
	// ScriptNamespace is that of a signature over the bytes of a script.
	ScriptNamespace = "kpssh"
	// ManifestNamespace is that of a signature over a Manifest.
	ManifestNamespace = "kpssh-manifest"
)

// Reasons for which a script is not sent; all are faults of the configuration.
const (
	ReasonSignatureMissing = "SignatureMissing"
	// ReasonSignatureMalformed: what is there is no signature of OpenSSH, or is damaged.
	ReasonSignatureMalformed = "SignatureMalformed"
	// ReasonSignatureNamespace: it was made for another use.
	ReasonSignatureNamespace = "SignatureNamespace"
	// ReasonSignatureAlgorithm: key, hash or algorithm is too weak, or of a kind that is not known.
	ReasonSignatureAlgorithm = "SignatureAlgorithm"
	// ReasonSignatureInvalid: it is not over this text.
	ReasonSignatureInvalid = "SignatureInvalid"
	ReasonSignerUnknown    = "SignerUnknown"
)

// The armored form and the wire form of SSHSIG: PROTOCOL.sshsig of OpenSSH.
const (
	beginArmor = "-----BEGIN SSH SIGNATURE-----"
	endArmor   = "-----END SSH SIGNATURE-----"
	magic      = "SSHSIG"
	version    = 1
	// maxSignature is what a signature's armor may take; SSHJoinProfile has the same limit.
	maxSignature = 16384
	// minRSABits is more than OpenSSH asks for: what runs as root is worth that.
	minRSABits = 2048
)

// algorithms that a signature may have, by the key's type. SHA-1 with RSA, which x/crypto would take, is not among them (section 2 #7).
var algorithms = map[string][]string{
	ssh.KeyAlgoED25519:    {ssh.KeyAlgoED25519},
	ssh.KeyAlgoRSA:        {ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512},
	ssh.KeyAlgoECDSA256:   {ssh.KeyAlgoECDSA256},
	ssh.KeyAlgoECDSA384:   {ssh.KeyAlgoECDSA384},
	ssh.KeyAlgoECDSA521:   {ssh.KeyAlgoECDSA521},
	ssh.KeyAlgoSKED25519:  {ssh.KeyAlgoSKED25519},
	ssh.KeyAlgoSKECDSA256: {ssh.KeyAlgoSKECDSA256},
}

// signed is a signature's wire form after the magic.
type signed struct {
	Version       uint32
	PublicKey     []byte
	Namespace     string
	Reserved      string
	HashAlgorithm string
	Signature     []byte
}

// toSign is what the key signs, after the magic.
type toSign struct {
	Namespace     string
	Reserved      string
	HashAlgorithm string
	Hash          []byte
}

// signature is one that has been read.
type signature struct {
	signed
	key   ssh.PublicKey
	inner ssh.Signature
}

func malformed(err error, format string, args ...any) error {
	return fault.New(fault.Configuration, ReasonSignatureMalformed, err, format, args...)
}

func algorithm(format string, args ...any) error {
	return fault.New(fault.Configuration, ReasonSignatureAlgorithm, nil, format, args...)
}

// parseSignature reads an armored signature and refuses what no signer of ours makes. Faults, the configuration's: SignatureMalformed, SignatureAlgorithm.
func parseSignature(armored []byte) (signature, error) {
	s := signature{}
	blob, err := dearmor(string(armored))
	if err != nil {
		return s, malformed(err, "the signature is no armored SSH signature: make it with `kubectl kpssh sign` or `ssh-keygen -Y sign`")
	}
	if err := ssh.Unmarshal(blob[len(magic):], &s.signed); err != nil {
		return s, malformed(err, "the signature is damaged")
	}
	if s.Version != version {
		return s, malformed(nil, "the signature is of version %d, and only version %d is known", s.Version, version)
	}
	if s.key, err = ssh.ParsePublicKey(s.PublicKey); err != nil {
		return s, malformed(err, "the signature's public key is damaged, or of a kind that is not known")
	}
	allowed, known := algorithms[s.key.Type()]
	if !known {
		return s, algorithm("keys of type %s may not sign scripts", s.key.Type())
	}
	if err := ssh.Unmarshal(s.Signature, &s.inner); err != nil {
		return s, malformed(err, "the signature is damaged")
	}
	if !slices.Contains(allowed, s.inner.Format) {
		return s, algorithm("the signature's algorithm is %s: a key of type %s signs with %s", printable(s.inner.Format), s.key.Type(), strings.Join(allowed, " or "))
	}
	if len(s.inner.Rest) > 0 && !strings.HasPrefix(s.key.Type(), "sk-") {
		return s, malformed(nil, "the signature is damaged: there is something after its end")
	}
	return s, strongEnough(s.key)
}

// strongEnough refuses RSA keys that are too short. Fault: Configuration/SignatureAlgorithm.
func strongEnough(key ssh.PublicKey) error {
	if bits := rsaBits(key); bits > 0 && bits < minRSABits {
		return algorithm("the signing key is an RSA key of %d bits: %d are the least", bits, minRSABits)
	}
	return nil
}

func rsaBits(key ssh.PublicKey) int {
	if crypto, ok := key.(ssh.CryptoPublicKey); ok {
		if public, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok {
			return public.N.BitLen()
		}
	}
	return 0
}

// verify checks a signature over a message. Faults, the configuration's: SignatureNamespace, SignatureAlgorithm, SignatureInvalid.
func (s signature) verify(message []byte, namespace string) error {
	if s.Namespace != namespace {
		return fault.New(fault.Configuration, ReasonSignatureNamespace, nil,
			"the signature is for namespace %q, and %q is needed: sign with `ssh-keygen -Y sign -n %s`", printable(s.Namespace), namespace, namespace)
	}
	content, err := signedContent(message, s.Namespace, s.HashAlgorithm)
	if err != nil {
		return err
	}
	if err := s.key.Verify(content, &s.inner); err != nil {
		return fault.New(fault.Configuration, ReasonSignatureInvalid, nil,
			"the signature of %s does not fit the text: it was edited after it was signed", ssh.FingerprintSHA256(s.key))
	}
	return nil
}

// signedContent is the bytes that the key signs. What a signature has in its reserved field is not among them, as in OpenSSH.
func signedContent(message []byte, namespace, hash string) ([]byte, error) {
	var sum []byte
	switch hash {
	case "sha256":
		digest := sha256.Sum256(message)
		sum = digest[:]
	case "sha512":
		digest := sha512.Sum512(message)
		sum = digest[:]
	default:
		return nil, algorithm("the signature's hash is %q: sha256 and sha512 are known", printable(hash))
	}
	return append([]byte(magic), ssh.Marshal(toSign{Namespace: namespace, HashAlgorithm: hash, Hash: sum})...), nil
}

// Sign signs a message, by its SHA-512. An RSA key signs with rsa-sha2-512, as ssh-keygen does. Fault: Configuration/SignatureAlgorithm for a key that
// Verify would refuse; what the signer says is passed on.
func Sign(random io.Reader, signer ssh.Signer, message []byte, namespace string) (armored string, err error) {
	allowed, known := algorithms[signer.PublicKey().Type()]
	if !known {
		return "", algorithm("keys of type %s may not sign scripts", signer.PublicKey().Type())
	}
	if err := strongEnough(signer.PublicKey()); err != nil {
		return "", err
	}
	content, err := signedContent(message, namespace, "sha512")
	if err != nil {
		return "", err
	}
	inner, err := sign(random, signer, content, allowed[len(allowed)-1])
	if err != nil {
		return "", fmt.Errorf("signing: %w", err)
	}
	blob := append([]byte(magic), ssh.Marshal(signed{
		Version: version, PublicKey: signer.PublicKey().Marshal(), Namespace: namespace, HashAlgorithm: "sha512", Signature: ssh.Marshal(inner),
	})...)
	return armor(blob), nil
}

func sign(random io.Reader, signer ssh.Signer, content []byte, algorithm string) (*ssh.Signature, error) {
	if choosy, ok := signer.(ssh.AlgorithmSigner); ok {
		return choosy.SignWithAlgorithm(random, content, algorithm)
	}
	if signer.PublicKey().Type() == ssh.KeyAlgoRSA {
		return nil, errors.New("this RSA key signs with SHA-1 only")
	}
	return signer.Sign(random, content)
}

func dearmor(armored string) ([]byte, error) {
	if len(armored) > maxSignature {
		return nil, fmt.Errorf("it has %d bytes, and %d are the most", len(armored), maxSignature)
	}
	text := strings.TrimSpace(strings.ReplaceAll(armored, "\r\n", "\n"))
	inner, ok := strings.CutPrefix(text, beginArmor)
	if !ok {
		return nil, errors.New("it does not begin with " + beginArmor)
	}
	inner, ok = strings.CutSuffix(inner, endArmor)
	if !ok {
		return nil, errors.New("it does not end with " + endArmor)
	}
	blob, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(inner), ""))
	if err != nil {
		return nil, errors.New("what is between is no base64")
	}
	if !bytes.HasPrefix(blob, []byte(magic)) {
		return nil, errors.New("what is between is no signature")
	}
	return blob, nil
}

func armor(blob []byte) string {
	text := base64.StdEncoding.EncodeToString(blob)
	var b strings.Builder
	b.WriteString(beginArmor + "\n")
	for len(text) > 0 {
		n := min(70, len(text))
		b.WriteString(text[:n] + "\n")
		text = text[n:]
	}
	b.WriteString(endArmor + "\n")
	return b.String()
}

// printable is a text from outside, short and without what a terminal would act on.
func printable(text string) string {
	const most = 64
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(clean) > most {
		return clean[:most] + "..."
	}
	return clean
}
