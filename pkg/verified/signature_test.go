package verified

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // what must be refused
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

var (
	noon   = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	script = "set -euo pipefail\necho 'hello'\n"
)

// keys of every kind that may sign, but those that live in a token.
func keys(t *testing.T) map[string]crypto.Signer {
	t.Helper()
	all := map[string]crypto.Signer{}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	all["ed25519"] = ed
	for name, curve := range map[string]elliptic.Curve{"ecdsa-256": elliptic.P256(), "ecdsa-384": elliptic.P384(), "ecdsa-521": elliptic.P521()} {
		if all[name], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	if all["rsa"], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	return all
}

func signerOf(t *testing.T, key crypto.Signer) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func anEd25519(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signerOf(t, key)
}

func lineOf(s ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey())))
}

func trust(t *testing.T, lines ...string) Signers {
	t.Helper()
	signers, err := ParseSigners(lines)
	if err != nil {
		t.Fatal(err)
	}
	return signers
}

func mustSign(t *testing.T, s ssh.Signer, text, namespace string) string {
	t.Helper()
	armored, err := Sign(rand.Reader, s, []byte(text), namespace)
	if err != nil {
		t.Fatal(err)
	}
	return armored
}

// wants checks an error's party and reason; an empty reason wants none.
func wants(t *testing.T, err error, reason string) {
	t.Helper()
	switch f := (*fault.Error)(nil); {
	case reason == "":
		if err != nil {
			t.Errorf("unexpected: %v", err)
		}
	case !errors.As(err, &f) || f.Reason != reason || f.Blame != fault.Configuration:
		t.Errorf("got %v, want Configuration/%s", err, reason)
	}
}

// keygen runs ssh-keygen, which every machine with OpenSSH has.
func keygen(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("ssh-keygen is missing: make e2e-deps installs it")
		}
		t.Skip("ssh-keygen is missing: make e2e-deps installs it")
	}
	cmd := exec.CommandContext(t.Context(), "ssh-keygen", args...)
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// What this signs, OpenSSH accepts, and the other way round, for keys of every kind; and neither accepts the other's namespace.
func TestOpenSSHAgrees(t *testing.T) {
	for name, key := range keys(t) {
		t.Run(name, func(t *testing.T) {
			dir, s := t.TempDir(), signerOf(t, key)
			file := func(name, content string) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			block, err := ssh.MarshalPrivateKey(key, "")
			if err != nil {
				t.Fatal(err)
			}
			private := file("key", string(pem.EncodeToMemory(block)))
			allowed := file("allowed", Principal+" "+lineOf(s)+"\n")
			verify := func(namespace, signature string) error {
				output, err := keygen(t, script, "-Y", "verify", "-f", allowed, "-I", Principal, "-n", namespace, "-s", file("sig", signature))
				t.Log(strings.TrimSpace(output))
				return err
			}
			ours := mustSign(t, s, script, ScriptNamespace)
			if err := verify(ScriptNamespace, ours); err != nil {
				t.Errorf("ssh-keygen refuses what this signed: %v", err)
			}
			if verify(ManifestNamespace, ours) == nil {
				t.Error("ssh-keygen takes a script's signature for a manifest's")
			}
			text := file("text", script)
			if output, err := keygen(t, "", "-Y", "sign", "-f", private, "-n", ScriptNamespace, text); err != nil {
				t.Fatal(output)
			}
			theirs, err := os.ReadFile(text + ".sig")
			if err != nil {
				t.Fatal(err)
			}
			signers := trust(t, lineOf(s))
			_, err = signers.Verify([]byte(script), string(theirs), ScriptNamespace, noon)
			wants(t, err, "")
			_, err = signers.Verify([]byte(script), string(theirs), ManifestNamespace, noon)
			wants(t, err, ReasonSignatureInvalid)
		})
	}
}

func TestSignatures(t *testing.T) {
	good, other := anEd25519(t), anEd25519(t)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // what must be refused
	if err != nil {
		t.Fatal(err)
	}
	armored := mustSign(t, good, script, ScriptNamespace)
	signers := trust(t, lineOf(good), lineOf(signerOf(t, weak)))
	for name, row := range map[string]struct {
		text, signature, reason string
	}{
		"good":                          {script, armored, ""},
		"with the line ends of Windows": {script, strings.ReplaceAll(armored, "\n", "\r\n"), ""},
		"none":                          {script, " \n", ReasonSignatureMissing},
		"of another text":               {script + " ", armored, ReasonSignatureInvalid},
		"of somebody else":              {script, mustSign(t, other, script, ScriptNamespace), ReasonSignerUnknown},
		"of another namespace":          {script, mustSign(t, good, script, "file"), ReasonSignatureInvalid},
		"no armor":                      {script, "hello", ReasonSignatureInvalid},
		"cut off":                       {script, armored[:len(armored)/2], ReasonSignatureInvalid},
		"no base64 inside":              {script, beginArmor + "\n!!\n" + endArmor, ReasonSignatureInvalid},
		"no signature inside":           {script, armor([]byte("SSHSIG")), ReasonSignatureInvalid},
		"too long":                      {script, armored + strings.Repeat("\n", maxSignature), ReasonSignatureInvalid},
		"a weak key":                    {script, mustSign(t, signerOf(t, weak), script, ScriptNamespace), ReasonSignatureInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			signer, err := signers.Verify([]byte(row.text), row.signature, ScriptNamespace, noon)
			wants(t, err, row.reason)
			if row.reason == "" && signer != ssh.FingerprintSHA256(good.PublicKey()) {
				t.Errorf("signer is %q", signer)
			}
		})
	}
}

// Section 2 #7: x/crypto would accept RSA with SHA-1, and the machine's OpenSSH does not.
func TestSHA1IsRefused(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	s := signerOf(t, key)
	content, err := signedContent([]byte(script), ScriptNamespace, "", "sha512")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum(content) //nolint:gosec // what must be refused
	blob, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA1, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	inner := &ssh.Signature{Format: ssh.KeyAlgoRSA, Blob: blob}
	if err := s.PublicKey().Verify(content, inner); err != nil {
		t.Fatalf("the signature is not what it should be: %v", err)
	}
	armored := armor(append([]byte(magic), ssh.Marshal(signed{
		Version: 1, PublicKey: s.PublicKey().Marshal(), Namespace: ScriptNamespace, HashAlgorithm: "sha512", Signature: ssh.Marshal(inner)})...))
	_, err = trust(t, lineOf(s)).Verify([]byte(script), armored, ScriptNamespace, noon)
	wants(t, err, ReasonSignatureInvalid)
	if !strings.Contains(err.Error(), "rsa-sha2-256") {
		t.Errorf("the error does not say what to use: %v", err)
	}
}

// An unknown hash and a future version are refused, not guessed.
func TestUnknownFormsAreRefused(t *testing.T) {
	s := anEd25519(t)
	sum := sha512.Sum512([]byte(script))
	for name, edit := range map[string]func(*signed){
		"version 2":   func(f *signed) { f.Version = 2 },
		"hash md5":    func(f *signed) { f.HashAlgorithm = "md5" },
		"no key":      func(f *signed) { f.PublicKey = nil },
		"no inner":    func(f *signed) { f.Signature = nil },
		"odd content": func(f *signed) { f.Signature = sum[:] },
	} {
		form := signed{Version: 1, PublicKey: s.PublicKey().Marshal(), Namespace: ScriptNamespace, HashAlgorithm: "sha512",
			Signature: ssh.Marshal(ssh.Signature{Format: ssh.KeyAlgoED25519, Blob: make([]byte, 64)})}
		edit(&form)
		_, err := trust(t, lineOf(s)).Verify([]byte(script), armor(append([]byte(magic), ssh.Marshal(form)...)), ScriptNamespace, noon)
		t.Log(name)
		wants(t, err, ReasonSignatureInvalid)
	}
}

func TestTrustedSigners(t *testing.T) {
	s := anEd25519(t)
	line := lineOf(s)
	armored := mustSign(t, s, script, ScriptNamespace)
	for name, row := range map[string]struct{ line, unread, reason string }{
		"a public key":                     {line: line},
		"with a comment":                   {line: line + " ops@example.com"},
		"an allowed_signers line":          {line: "kpssh " + line},
		"several principals":               {line: "ops@example.com,kpssh " + line},
		"any principal":                    {line: "* " + line},
		"quoted principals":                {line: `"ops team,kpssh" ` + line},
		"its namespace":                    {line: `kpssh namespaces="git,kpssh" ` + line},
		"any of our namespaces":            {line: `kpssh namespaces="kpssh*" ` + line},
		"in its time":                      {line: `kpssh valid-after="20260101",valid-before="202701011200Z" ` + line},
		"another namespace":                {line: `kpssh namespaces="git" ` + line, reason: ReasonSignerUnknown},
		"too early":                        {line: `kpssh valid-after="20270101" ` + line, reason: ReasonSignerUnknown},
		"too late":                         {line: `kpssh valid-before="20261201" ` + line, reason: ReasonSignerUnknown},
		"another principal":                {line: "ops " + line, unread: "principal kpssh"},
		"a forbidden principal":            {line: "*,!kpssh " + line, unread: "principal kpssh"},
		"an authority":                     {line: "kpssh cert-authority " + line, unread: "certificates"},
		"an option that nobody knows":      {line: "kpssh restrict " + line, unread: "restrict"},
		"a time that is none":              {line: `kpssh valid-before="soon" ` + line, unread: "no time"},
		"nothing":                          {line: " ", unread: "empty"},
		"a comment":                        {line: "# " + line, unread: "empty"},
		"no key":                           {line: "kpssh hello", unread: "no public key"},
		"a key of a kind that cannot sign": {line: "ssh-dss AAAAB3NzaC1kc3MAAAABAAAAAQAAAAEAAAAB", unread: ""},
	} {
		t.Run(name, func(t *testing.T) {
			signers, err := ParseSigners([]string{row.line})
			if row.unread != "" || name == "a key of a kind that cannot sign" {
				wants(t, err, ReasonSignersInvalid)
				if !strings.Contains(err.Error(), row.unread) || !strings.Contains(err.Error(), "entry 1") {
					t.Errorf("the error says %v", err)
				}
				return
			}
			wants(t, err, "")
			_, err = signers.Verify([]byte(script), armored, ScriptNamespace, noon)
			wants(t, err, row.reason)
		})
	}
	_, err := ParseSigners(nil)
	wants(t, err, ReasonSignersInvalid)
}

// Whatever arrives, reading it ends with a signature or a fault; and what was read verifies nothing it did not sign.
func FuzzSignature(f *testing.F) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	s, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		f.Fatal(err)
	}
	armored, err := Sign(rand.Reader, s, []byte(script), ScriptNamespace)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{armored, "", beginArmor + endArmor, armor([]byte(magic)), armor([]byte(magic + "\x00\x00\x00\x01\xff\xff\xff\xff"))} {
		f.Add(seed)
	}
	signers, err := ParseSigners([]string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey())))})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := signers.Verify([]byte("another text"), text, ScriptNamespace, noon); err == nil {
			t.Fatal("it verifies a text that nobody signed")
		} else if fault.Of(err).Blame != fault.Configuration {
			t.Fatalf("blames %s: %v", fault.Of(err).Blame, err)
		}
	})
}
