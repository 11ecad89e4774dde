package ssh

import (
	"bytes"
	"crypto/rsa"
	"errors"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// minRSABits is what OpenSSH itself asks of an RSA key (RequiredRSASize); x/crypto would sign with less.
const minRSABits = 1024

// Signer is a private key to log in with. It prints as its fingerprint.
type Signer struct {
	inner gossh.Signer
}

// NewSigner makes a Signer of a key that is in memory already. RSA keys sign with SHA-2 only.
func NewSigner(inner gossh.Signer) (Signer, error) {
	if inner == nil {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", nil, "there is no private key")
	}
	if inner.PublicKey().Type() != gossh.KeyAlgoRSA {
		return Signer{inner: inner}, nil
	}
	algorithmic, ok := inner.(gossh.AlgorithmSigner)
	if !ok {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", nil, "the RSA key can only sign with SHA-1: use an ed25519 key")
	}
	sha2, err := gossh.NewSignerWithAlgorithms(algorithmic, []string{gossh.KeyAlgoRSASHA512, gossh.KeyAlgoRSASHA256})
	if err != nil {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", err, "the RSA key cannot sign with SHA-2")
	}
	return Signer{inner: sha2}, nil
}

// Fingerprint is SHA256:<43 characters> of the public half, empty for the zero Signer.
func (s Signer) Fingerprint() string {
	if s.inner == nil {
		return ""
	}
	return gossh.FingerprintSHA256(plain(s.inner.PublicKey()))
}

// certified tells whether the key logs in by a certificate.
func (s Signer) certified() bool {
	if s.inner == nil {
		return false
	}
	_, is := s.inner.PublicKey().(*gossh.Certificate)
	return is
}

// Type is the key's type as SSH spells it, such as ssh-ed25519.
func (s Signer) Type() string {
	if s.inner == nil {
		return ""
	}
	return s.inner.PublicKey().Type()
}

// IsZero tells whether there is no key.
func (s Signer) IsZero() bool { return s.inner == nil }

// String is the type and the fingerprint.
func (s Signer) String() string { return s.Type() + " " + s.Fingerprint() }

// GoString keeps %#v from walking into the key.
func (s Signer) GoString() string { return "ssh.Signer(" + s.String() + ")" }

// ParseKey reads a private key (ed25519, ECDSA or RSA; OpenSSH or PEM format). Surrounding white space is forgiven, as Secrets
// made by hand carry it. Faults (Configuration): KeyInvalid, PassphraseMissing, PassphraseWrong.
func ParseKey(pem, passphrase []byte) (Signer, error) {
	pem = append(bytes.Clone(bytes.TrimSpace(pem)), '\n') // a copy: the caller's may be a cache's
	raw, err := gossh.ParseRawPrivateKey(pem)
	var locked *gossh.PassphraseMissingError
	if errors.As(err, &locked) {
		// A passphrase file almost always ends in a newline that is not part of it.
		if passphrase = bytes.TrimRight(passphrase, "\r\n"); len(passphrase) == 0 {
			return Signer{}, fault.New(fault.Configuration, "PassphraseMissing", nil,
				"the private key is encrypted: add its passphrase to the Secret as `passphrase`")
		}
		raw, err = gossh.ParseRawPrivateKeyWithPassphrase(pem, passphrase)
		if err != nil {
			// Any failure after the key was recognised as encrypted means that decryption gave no key; the parser's own text is left
			// out because it quotes what it decrypted.
			return Signer{}, fault.New(fault.Configuration, "PassphraseWrong", nil,
				"the private key could not be decrypted: `passphrase` in the Secret is not the one it was encrypted with")
		}
	}
	if err != nil {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", nil,
			"`privateKey` is not a private key in OpenSSH or PEM format (ed25519, ECDSA or RSA)")
	}
	if key, ok := raw.(*rsa.PrivateKey); ok && key.N.BitLen() < minRSABits {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", nil,
			"the RSA key has %d bits; SSH servers refuse fewer than %d: use an ed25519 key", key.N.BitLen(), minRSABits)
	}
	inner, err := gossh.NewSignerFromKey(raw)
	if err != nil || familyOf(inner.PublicKey().Type()) == nil {
		return Signer{}, fault.New(fault.Configuration, "KeyInvalid", nil,
			"the private key's type is not supported: use ed25519, ECDSA or RSA")
	}
	return NewSigner(inner)
}
