package ssh

import (
	"crypto/dsa" //nolint:staticcheck // to see it refused
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := gossh.MarshalPrivateKey(private, "comment")
	if err != nil {
		t.Fatal(err)
	}
	locked, err := gossh.MarshalPrivateKeyWithPassphrase(private, "", []byte("öffne dich"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	oldRSA := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(r)})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // what old ssh-keygen wrote
	oldLocked, err := x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(r), []byte("pw"), x509.PEMCipherAES128)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pem, passphrase string
		keyType         string
		reason          string
	}{
		"ed25519":                     {pem: string(pem.EncodeToMemory(plain)), keyType: "ssh-ed25519"},
		"white space around":          {pem: "\n  " + strings.TrimSpace(string(pem.EncodeToMemory(plain))) + "\n\n", keyType: "ssh-ed25519"},
		"needless passphrase":         {pem: string(pem.EncodeToMemory(plain)), passphrase: "x", keyType: "ssh-ed25519"},
		"RSA, PKCS#1":                 {pem: string(oldRSA), keyType: "ssh-rsa"},
		"PKCS#8":                      {pem: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})), keyType: "ssh-ed25519"},
		"encrypted":                   {pem: string(pem.EncodeToMemory(locked)), passphrase: "öffne dich", keyType: "ssh-ed25519"},
		"passphrase with newline":     {pem: string(pem.EncodeToMemory(locked)), passphrase: "öffne dich\n", keyType: "ssh-ed25519"},
		"encrypted, no passphrase":    {pem: string(pem.EncodeToMemory(locked)), reason: "PassphraseMissing"},
		"encrypted, only a newline":   {pem: string(pem.EncodeToMemory(locked)), passphrase: "\n", reason: "PassphraseMissing"},
		"encrypted, wrong passphrase": {pem: string(pem.EncodeToMemory(locked)), passphrase: "falsch", reason: "PassphraseWrong"},
		"old encryption":              {pem: string(pem.EncodeToMemory(oldLocked)), passphrase: "pw", keyType: "ssh-rsa"},
		"old encryption, wrong":       {pem: string(pem.EncodeToMemory(oldLocked)), passphrase: "no", reason: "PassphraseWrong"},
		"empty":                       {reason: "KeyInvalid"},
		"public key":                  {pem: edLine, reason: "KeyInvalid"},
		"truncated":                   {pem: string(pem.EncodeToMemory(plain))[:150], reason: "KeyInvalid"},
		"DSA":                         {pem: dsaKey(t), reason: "KeyInvalid"},
	} {
		key, err := ParseKey([]byte(tc.pem), []byte(tc.passphrase))
		if tc.reason != "" {
			if err == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			wantFault(t, err, fault.Configuration, tc.reason)
			if tc.passphrase != "" && len(tc.passphrase) > 3 && strings.Contains(err.Error(), tc.passphrase) {
				t.Errorf("%s: the error shows the passphrase", name)
			}
			continue
		}
		if err != nil || key.Type() != tc.keyType || key.IsZero() {
			t.Errorf("%s: %s %v", name, key, err)
		}
	}
}

func dsaKey(t *testing.T) string {
	t.Helper()
	var key dsa.PrivateKey
	if err := dsa.GenerateParameters(&key.Parameters, rand.Reader, dsa.L1024N160); err != nil {
		t.Fatal(err)
	}
	if err := dsa.GenerateKey(&key, rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Version       int
		P, Q, G, Y, X *big.Int
	}{0, key.P, key.Q, key.G, key.Y, key.X})
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "DSA PRIVATE KEY", Bytes: der}))
}
