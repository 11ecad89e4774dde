package plugin

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// A profile with what an edit could spoil: comments, other documents, a script that ends with a comment, quotes, long lines.
const profileFile = `# Before everything.
apiVersion: v1
kind: ConfigMap # not ours
metadata: {name: other}
data:
  dashes: |
    --- not a document
---
# The profile.
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHJoinProfile
metadata:
    name: "p" # quoted, and deep
spec:
  version: "3"

  scripts:
    install: |
      set -euo pipefail
      echo 'one'   # spaces stay
    # About join.
    join: "set -e\necho two\n"
    leave: |
      set -u
      echo three
      # the last line is a comment

# After the profile.
---
apiVersion: v1
kind: Secret
metadata: {name: last}
`

// bench is a directory with keys and files, and the plugin over it.
type bench struct {
	t              *testing.T
	dir            string
	stdout, stderr bytes.Buffer
	env            map[string]string
	now            time.Time
	asked          int
}

func newBench(t *testing.T) *bench {
	return &bench{t: t, dir: t.TempDir(), env: map[string]string{}, now: noon}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(name, content string) string {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return b.path(name)
}

// key writes a key pair, and the files that trust it.
func (b *bench) key(name string, key crypto.Signer, passphrase string) ssh.PublicKey {
	b.t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		b.t.Fatal(err)
	}
	line := string(ssh.MarshalAuthorizedKey(public))
	b.write(name, string(pem.EncodeToMemory(block)))
	b.write(name+".pub", line)
	b.write(name+".allowed", "# those who may sign\n\nkpssh "+line)
	return public
}

func (b *bench) run(args ...string) error {
	b.stdout.Reset()
	b.stderr.Reset()
	cmd := command(surroundings{
		in: strings.NewReader(profileFile), out: &b.stdout, err: &b.stderr, now: func() time.Time { return b.now }, env: func(name string) string { return b.env[name] },
		ask: func(string) ([]byte, error) { b.asked++; return []byte("from the terminal"), nil },
	})
	cmd.SetArgs(args)
	return cmd.ExecuteContext(b.t.Context())
}

func newEd25519(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// says checks an error's text; an empty text wants no error.
func says(t *testing.T, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("got error %v, want %q", err, text)
	}
}

func profileOf(t *testing.T, content []byte) *document {
	t.Helper()
	all, err := parse(content)
	if err != nil {
		t.Fatal(err)
	}
	for index := range all {
		if all[index].profile != nil {
			return &all[index]
		}
	}
	return nil
}

// What it signs, ssh-keygen accepts: that is what machines check with. Nothing else of the file changes.
func TestSigned(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ed25519": newEd25519(t), "rsa": rsaKey} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			public := b.key("key", key, "")
			if err := b.run("sign", "-f", "-", "-i", b.path("key"), "--manifest", "--expires", "90d"); err != nil {
				t.Fatal(err)
			}
			signed := b.stdout.String()
			for _, want := range []string{ssh.FingerprintSHA256(public), "trustedSigners", `kpssh namespaces="kpssh,kpssh-manifest" ` + public.Type(), "scripts.leave has no `set -e`"} {
				if !strings.Contains(b.stderr.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, &b.stderr)
				}
			}
			if strings.Count(b.stderr.String(), "warning") != 1 {
				t.Errorf("warnings:\n%s", &b.stderr)
			}
			from, to := strings.Index(signed, "  signatures:\n"), strings.Index(signed, "\n# After the profile.")
			if from < 0 || signed[:from]+signed[to:] != profileFile {
				t.Errorf("the rest of the file is not what it was:\n%s", signed)
			}
			spec := &profileOf(t, []byte(signed)).profile.Spec
			if want := "expires: 2027-03-01T12:00:00Z\n"; !strings.Contains(spec.Manifests.Join.Manifest, want) || !strings.Contains(spec.Manifests.Join.Manifest, "version: 3\n") {
				t.Errorf("the manifest is %s", spec.Manifests.Join.Manifest)
			}
			b.keygenAccepts("kpssh", "set -e\necho two\n", spec.Signatures.Join)
			b.keygenAccepts("kpssh", "set -u\necho three\n# the last line is a comment\n", spec.Signatures.Leave)
			b.keygenAccepts("kpssh-manifest", spec.Manifests.Leave.Manifest, spec.Manifests.Leave.Signature)

			b.write("signed.yaml", signed)
			says(t, b.run("verify", "-f", b.path("signed.yaml"), "--signers", b.path("key.allowed")), "")
			if out := b.stdout.String(); !strings.Contains(out, "p install: ok, "+ssh.FingerprintSHA256(public)+", by a manifest that expires: 2027-03-01T12:00:00Z\n") {
				t.Errorf("verify says:\n%s", out)
			}
		})
	}
}

func (b *bench) keygenAccepts(namespace, text, signature string) {
	b.t.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		if os.Getenv("CI") != "" {
			b.t.Fatal("ssh-keygen is missing: make e2e-deps installs it")
		}
		b.t.Skip("ssh-keygen is missing: make e2e-deps installs it")
	}
	allowed := b.path("key.allowed")
	cmd := exec.CommandContext(b.t.Context(), "ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "kpssh", "-n", namespace, "-s", b.write("sig", signature))
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Errorf("ssh-keygen refuses it in namespace %s: %s", namespace, out)
	}
}

// What `ssh-keygen -Y sign` makes, verify accepts.
func TestVerifyTakesWhatOpenSSHSigned(t *testing.T) {
	b := newBench(t)
	b.key("key", newEd25519(t), "")
	doc := profileOf(t, []byte(profileFile))
	for _, phase := range []string{"install", "join", "leave"} {
		file := b.write(phase, verified.Script(&doc.profile.Spec, phase))
		if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-Y", "sign", "-f", b.path("key"), "-n", "kpssh", file).CombinedOutput(); err != nil {
			if os.Getenv("CI") == "" && errors.Is(err, exec.ErrNotFound) {
				t.Skip("ssh-keygen is missing: make e2e-deps installs it")
			}
			t.Fatalf("%v: %s", err, out)
		}
		signature, err := os.ReadFile(file + ".sig")
		if err != nil {
			t.Fatal(err)
		}
		if err := doc.set([]string{"spec", "signatures", phase}, string(signature)); err != nil {
			t.Fatal(err)
		}
	}
	b.write("signed.yaml", doc.text)
	says(t, b.run("verify", "-f", b.path("signed.yaml"), "--signers", b.path("key.pub")), "")
}

// Verify says for each script whether it would be sent, and why not.
func TestVerifyRefuses(t *testing.T) {
	b := newBench(t)
	b.key("key", newEd25519(t), "")
	b.key("rogue", newEd25519(t), "")
	file := b.path("p.yaml")
	if err := b.run("sign", "-f", "-", "-i", b.path("key"), "-o", file, "--manifest", "--expires", "2027-01-01T00:00:00Z"); err != nil {
		t.Fatal(err)
	}
	signed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		old, edited, signers string
		now                  time.Time
		says                 []string
	}{
		"an unsigned profile":  {says: []string{"p install: SignatureMissing", "p leave: SignatureMissing"}},
		"an edited script":     {old: "'one'", edited: "'1'", says: []string{"p install: ManifestMismatch", "p join: ok"}},
		"a raised version":     {old: `version: "3"`, edited: `version: "4"`, says: []string{"p join: ManifestMismatch"}},
		"a signer not trusted": {old: "x", edited: "x", signers: "rogue.allowed", says: []string{"p join: SignerUnknown"}},
		"a manifest's end":     {old: "x", edited: "x", now: noon.AddDate(1, 0, 0), says: []string{"p join: ManifestExpired", "p leave: ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			content := profileFile
			if row.old != "" {
				content = strings.Replace(string(signed), row.old, row.edited, 1)
			}
			b.now = noon
			if !row.now.IsZero() {
				b.now = row.now
			}
			if row.signers == "" {
				row.signers = "key.allowed"
			}
			says(t, b.run("verify", "-f", b.write("edited.yaml", content), "--signers", b.path(row.signers)), "not every script")
			for _, want := range row.says {
				if !strings.Contains(b.stdout.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, &b.stdout)
				}
			}
		})
	}
}

// Signing again replaces what is there; phases that are not asked for keep theirs.
func TestSignedAgain(t *testing.T) {
	b := newBench(t)
	b.key("key", newEd25519(t), "")
	b.key("next", newEd25519(t), "")
	file := b.write("p.yaml", profileFile)
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	says(t, b.run("sign", "-f", file, "-i", b.path("key"), "-o", file), "")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	says(t, b.run("sign", "-f", file, "-i", b.path("key"), "-o", file), "")
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, first) { // ed25519 signs the same twice
		t.Errorf("signed again by the same key, the file differs: %v\n%s", err, again)
	}
	says(t, b.run("sign", "-f", file, "-i", b.path("next"), "-o", file, "--phases", "join"), "")
	if err := b.run("verify", "-f", file, "--signers", b.path("key.allowed")); err == nil || !strings.Contains(b.stdout.String(), "p join: SignerUnknown") ||
		!strings.Contains(b.stdout.String(), "p leave: ok") {
		t.Errorf("%v\n%s", err, &b.stdout)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(b.path(".kpssh-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// What could not run is not signed, and what cannot be done is said before anything is written.
func TestSignRefuses(t *testing.T) {
	b := newBench(t)
	b.key("key", newEd25519(t), "")
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // what must be refused
	if err != nil {
		t.Fatal(err)
	}
	b.key("weak", weak, "")
	manifest := "  manifests:\n    join: {manifest: m, signature: s}\n  scripts:"
	for name, row := range map[string]struct {
		old, edited string
		args        []string
		says        string
	}{
		"a template":                     {"echo three", "echo {{ .NodeName }}", nil, "the leave script of SSHJoinProfile p: it is a template"},
		"a phase without a script":       {"", "", []string{"--phases", "uninstall"}, "the uninstall script of SSHJoinProfile p: there is none"},
		"a phase that there is not":      {"", "", []string{"--phases", "probe"}, `no phase "probe"`},
		"a bare signature by a manifest": {"  scripts:", manifest, nil, "take spec.manifests.join out"},
		"an end without a manifest":      {"", "", []string{"--expires", "90d"}, "add --manifest"},
		"an end that is over":            {"", "", []string{"--manifest", "--expires", "2020-01-01T00:00:00Z"}, "that is over"},
		"an end that is none":            {"", "", []string{"--manifest", "--expires", "soon"}, "give days"},
		"no days":                        {"", "", []string{"--manifest", "--expires", "0d"}, "that is over"},
		"too many days":                  {"", "", []string{"--manifest", "--expires", "99999999d"}, "no number of days"},
		"no profile":                     {"kind: SSHJoinProfile", "kind: SSHHost", nil, "no SSHJoinProfile"},
		"no name":                        {`name: "p" # quoted, and deep`, "labels: {}", nil, "has no name"},
		"a field that nobody knows":      {"  version:", "  vintage: x\n  version:", nil, "vintage"},
		"signatures in braces":           {"  scripts:", "  signatures: {join: x}\n  scripts:", nil, "lines of its own"},
		"a weak key":                     {"", "", []string{"-i", b.path("weak")}, "1024 bits"},
		"no key":                         {"", "", []string{"-i", b.write("nokey", "hello")}, "no private key"},
		"a key without its agent":        {"", "", []string{"-i", b.path("key.pub")}, "SSH_AUTH_SOCK is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			out := b.path("never.yaml")
			file := b.write("p.yaml", strings.Replace(profileFile, row.old, row.edited, 1))
			says(t, b.run(append([]string{"sign", "-f", file, "-i", b.path("key"), "-o", out}, row.args...)...), row.says)
			if _, err := os.Stat(out); err == nil {
				t.Error("it wrote the file")
			}
		})
	}
}

// A manifest that never expires is told of; one is put in the other's place.
func TestManifestsForEver(t *testing.T) {
	b := newBench(t)
	b.key("key", newEd25519(t), "")
	file := b.path("p.yaml")
	says(t, b.run("sign", "-f", "-", "-i", b.path("key"), "-o", file, "--manifest"), "")
	if !strings.Contains(b.stderr.String(), "never expire") {
		t.Errorf("it says:\n%s", &b.stderr)
	}
	says(t, b.run("verify", "-f", file, "--signers", b.path("key.pub")), "")
	if !strings.Contains(b.stdout.String(), "a manifest that expires: never") {
		t.Errorf("verify says:\n%s", &b.stdout)
	}
	says(t, b.run("sign", "-f", file, "-i", b.path("key"), "-o", file, "--manifest", "--expires", "2027-06-01T02:00:00+02:00"), "")
	if strings.Contains(b.stderr.String(), "never expire") {
		t.Errorf("it says:\n%s", &b.stderr)
	}
	says(t, b.run("verify", "-f", file, "--signers", b.path("key.pub")), "")
	if !strings.Contains(b.stdout.String(), "a manifest that expires: 2027-06-01T00:00:00Z") {
		t.Errorf("verify says:\n%s", &b.stdout)
	}
}

// A passphrase is asked for when the environment has none, and is in no error.
func TestPassphrase(t *testing.T) {
	b := newBench(t)
	b.key("asked", newEd25519(t), "from the terminal")
	b.key("set", newEd25519(t), "from the environment")
	says(t, b.run("sign", "-f", "-", "-i", b.path("asked")), "")
	if b.asked != 1 {
		t.Errorf("asked %d times", b.asked)
	}
	b.env[passphraseEnv] = "from the environment"
	says(t, b.run("sign", "-f", "-", "-i", b.path("set")), "")
	err := b.run("sign", "-f", "-", "-i", b.path("asked"))
	says(t, err, "no private key that can be used")
	if b.asked != 1 || strings.Contains(err.Error(), "from the environment") {
		t.Errorf("asked %d times; %v", b.asked, err)
	}
}

// A .pub file stands for the key that the ssh-agent has: so do keys in security tokens sign.
func TestAgent(t *testing.T) {
	b := newBench(t)
	held, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b.key("key", held, "")
	b.key("absent", newEd25519(t), "")
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: held}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "a") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = agent.ServeAgent(ring, conn)
				_ = conn.Close()
			}()
		}
	}()
	b.env["SSH_AUTH_SOCK"] = filepath.Join(dir, "s")
	file := b.path("p.yaml")
	says(t, b.run("sign", "-f", "-", "-i", b.path("key.pub"), "-o", file), "")
	says(t, b.run("verify", "-f", file, "--signers", b.path("key.pub")), "")
	says(t, b.run("sign", "-f", "-", "-i", b.path("absent.pub")), "add it with ssh-add")
}

// Section 2 #58: nothing is put before a signed script, so it is warned about one that goes on after a failure.
func TestScriptsThatStopAtAFailure(t *testing.T) {
	for script, want := range map[string]bool{
		"set -e\n": true, "set -euo pipefail\n": true, "#!/bin/bash\n  set -u -e\n": true, "set -o errexit\n": true, "set -uo pipefail -o errexit\n": true,
		"": false, "set -u\n": false, "set -o pipefail\n": false, "# set -e\n": false, "echo set -e\n": false, "set +e\n": false, "offset -e\n": false,
	} {
		if got := stops.MatchString(script); got != want {
			t.Errorf("%q: %v", script, got)
		}
	}
}
