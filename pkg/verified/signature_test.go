package verified

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // what must be refused
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
			if err := verify(ScriptNamespace, byHand(t, s, func(*signed) {})); err != nil { // rsa-sha2-256, if it is RSA
				t.Errorf("ssh-keygen refuses the other algorithm: %v", err)
			}
			signers := trust(t, lineOf(s))
			for _, hash := range []string{"sha256", "sha512"} {
				text := file("text-"+hash, script)
				if output, err := keygen(t, "", "-Y", "sign", "-f", private, "-n", ScriptNamespace, "-O", "hashalg="+hash, text); err != nil {
					t.Fatal(output)
				}
				theirs, err := os.ReadFile(text + ".sig")
				if err != nil {
					t.Fatal(err)
				}
				_, err = signers.Verify([]byte(script), theirs, ScriptNamespace, noon)
				wants(t, err, "")
				_, err = signers.Verify([]byte(script), theirs, ManifestNamespace, noon)
				wants(t, err, ReasonSignatureNamespace)
			}
			_, err = signers.Verify([]byte(script), []byte(byHand(t, s, func(*signed) {})), ScriptNamespace, noon)
			wants(t, err, "")
		})
	}
}

// Keys that live in a token sign something else around the text; here a token made of software does.
func TestKeysInTokensAgreeWithOpenSSH(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const application = "ssh:"
	wire := ssh.Marshal(struct {
		Type        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, public, application})
	key, err := ssh.ParsePublicKey(wire)
	if err != nil {
		t.Fatal(err)
	}
	content, err := signedContent([]byte(script), ScriptNamespace, "sha512")
	if err != nil {
		t.Fatal(err)
	}
	app, text, state := sha256.Sum256([]byte(application)), sha256.Sum256(content), []byte{1, 0, 0, 0, 7} // touched; its seventh signature
	inner := ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(private, slices.Concat(app[:], state, text[:])), Rest: state}
	armored := armor(append([]byte(magic), ssh.Marshal(signed{
		Version: 1, PublicKey: wire, Namespace: ScriptNamespace, HashAlgorithm: "sha512", Signature: ssh.Marshal(inner)})...))
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	_, err = trust(t, line).Verify([]byte(script), []byte(armored), ScriptNamespace, noon)
	wants(t, err, "")
	_, err = trust(t, line).Verify([]byte(script+"#"), []byte(armored), ScriptNamespace, noon)
	wants(t, err, ReasonSignatureInvalid)

	dir := t.TempDir()
	for name, content := range map[string]string{"allowed": Principal + " " + line + "\n", "sig": armored} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if output, err := keygen(t, script, "-Y", "verify", "-f", filepath.Join(dir, "allowed"), "-I", Principal, "-n", ScriptNamespace, "-s", filepath.Join(dir, "sig")); err != nil {
		t.Errorf("ssh-keygen: %s", output)
	}
}

func TestSignatures(t *testing.T) {
	good, other := anEd25519(t), anEd25519(t)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // what must be refused
	if err != nil {
		t.Fatal(err)
	}
	armored := mustSign(t, good, script, ScriptNamespace)
	signers := trust(t, lineOf(good))
	for name, row := range map[string]struct {
		text, signature, reason string
	}{
		"good":                          {script, armored, ""},
		"with the line ends of Windows": {script, strings.ReplaceAll(armored, "\n", "\r\n"), ""},
		"none":                          {script, " \n", ReasonSignatureMissing},
		"of another text":               {script + " ", armored, ReasonSignatureInvalid},
		"of somebody else":              {script, mustSign(t, other, script, ScriptNamespace), ReasonSignerUnknown},
		"of another namespace":          {script, mustSign(t, good, script, "file"), ReasonSignatureNamespace},
		"no armor":                      {script, "hello", ReasonSignatureMalformed},
		"cut off":                       {script, armored[:len(armored)/2], ReasonSignatureMalformed},
		"no base64 inside":              {script, beginArmor + "\n!!\n" + endArmor, ReasonSignatureMalformed},
		"no signature inside":           {script, armor([]byte("SSHSIG")), ReasonSignatureMalformed},
		"too long":                      {script, armored + strings.Repeat("\n", maxSignature), ReasonSignatureMalformed},
		"a weak key":                    {script, byHand(t, signerOf(t, weak), func(*signed) {}), ReasonSignatureAlgorithm},
	} {
		t.Run(name, func(t *testing.T) {
			signer, err := signers.Verify([]byte(row.text), []byte(row.signature), ScriptNamespace, noon)
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
	content, err := signedContent([]byte(script), ScriptNamespace, "sha512")
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
	_, err = trust(t, lineOf(s)).Verify([]byte(script), []byte(armored), ScriptNamespace, noon)
	wants(t, err, ReasonSignatureAlgorithm)
	if !strings.Contains(err.Error(), "rsa-sha2-256") {
		t.Errorf("the error does not say what to use: %v", err)
	}
}

// byHand is a signature that Sign would not make.
func byHand(t *testing.T, s ssh.Signer, edit func(*signed)) string {
	t.Helper()
	form := signed{Version: 1, PublicKey: s.PublicKey().Marshal(), Namespace: ScriptNamespace, HashAlgorithm: "sha512"}
	content, err := signedContent([]byte(script), form.Namespace, form.HashAlgorithm)
	if err != nil {
		t.Fatal(err)
	}
	allowed := algorithms[s.PublicKey().Type()]
	inner, err := sign(rand.Reader, s, content, allowed[0])
	if err != nil {
		t.Fatal(err)
	}
	form.Signature = ssh.Marshal(inner)
	edit(&form)
	return armor(append([]byte(magic), ssh.Marshal(form)...))
}

// An unknown hash and a future version are refused, not guessed; what OpenSSH ignores is ignored.
func TestUnknownFormsAreRefused(t *testing.T) {
	s := anEd25519(t)
	sum := sha512.Sum512([]byte(script))
	dsa := ssh.Marshal(struct {
		Type       string
		P, Q, G, Y *big.Int
	}{"ssh-dss", big.NewInt(1), big.NewInt(1), big.NewInt(1), big.NewInt(1)})
	for name, row := range map[string]struct {
		edit   func(*signed)
		reason string
	}{
		"as it should be":       {func(*signed) {}, ""},
		"a reserved field":      {func(f *signed) { f.Reserved = "later" }, ""},
		"version 2":             {func(f *signed) { f.Version = 2 }, ReasonSignatureMalformed},
		"hash md5":              {func(f *signed) { f.HashAlgorithm = "md5" }, ReasonSignatureAlgorithm},
		"another hash":          {func(f *signed) { f.HashAlgorithm = "sha256" }, ReasonSignatureInvalid},
		"no key":                {func(f *signed) { f.PublicKey = nil }, ReasonSignatureMalformed},
		"a DSA key":             {func(f *signed) { f.PublicKey = dsa }, ReasonSignatureMalformed},
		"no inner":              {func(f *signed) { f.Signature = nil }, ReasonSignatureMalformed},
		"odd content":           {func(f *signed) { f.Signature = sum[:] }, ReasonSignatureMalformed},
		"something after it":    {func(f *signed) { f.Signature = append(f.Signature, 0) }, ReasonSignatureMalformed},
		"an algorithm not ours": {func(f *signed) { f.Signature = ssh.Marshal(ssh.Signature{Format: "ecdsa-sha2-nistp256", Blob: sum[:]}) }, ReasonSignatureAlgorithm},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trust(t, lineOf(s)).Verify([]byte(script), []byte(byHand(t, s, row.edit)), ScriptNamespace, noon)
			wants(t, err, row.reason)
		})
	}
}

// A weak key is refused wherever it is met.
func TestWeakKeysNeitherSignNorAreTrusted(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // what must be refused
	if err != nil {
		t.Fatal(err)
	}
	weak := signerOf(t, key)
	_, err = Sign(rand.Reader, weak, []byte(script), ScriptNamespace)
	wants(t, err, ReasonSignatureAlgorithm)
	_, err = ParseSigners([]string{lineOf(weak)})
	if fault.Of(err).Reason != ReasonSignersInvalid || !strings.Contains(err.Error(), "1024 bits") {
		t.Errorf("got %v", err)
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
			_, err = signers.Verify([]byte(script), []byte(armored), ScriptNamespace, noon)
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
		if _, err := signers.Verify([]byte("another text"), []byte(text), ScriptNamespace, noon); err == nil {
			t.Fatal("it verifies a text that nobody signed")
		} else if fault.Of(err).Blame != fault.Configuration {
			t.Fatalf("blames %s: %v", fault.Of(err).Blame, err)
		}
	})
}
