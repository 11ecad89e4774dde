package shim

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// shells that the shim must run in: sh is what the machine has.
var shells = map[string][]string{"sh": {"sh"}, "dash": {"dash"}, "bash": {"bash", "--posix"}, "busybox": {"busybox", "sh"}}

// inEveryShell runs a test in each shell that is installed.
func inEveryShell(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	inShells(t, slices.Sorted(maps.Keys(shells)), test)
}

// inShells runs a test in some; a long table need not be gone through in all.
func inShells(t *testing.T, names []string, test func(t *testing.T, m *machine)) {
	t.Helper()
	seen := map[string]bool{}
	for _, name := range names {
		at, err := exec.LookPath(shells[name][0])
		if err != nil {
			t.Logf("%s is not installed", name)
			continue
		}
		if at, err = filepath.EvalSymlinks(at); err != nil || seen[at] {
			continue // sh is one of the others
		}
		seen[at] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newMachine(t, shells[name]...))
		})
	}
}

// machine is a directory with what a machine has in /etc/kpssh, /var/lib/kpssh and /tmp, and the keys of people who sign.
type machine struct {
	t     *testing.T
	dir   string
	shell []string
	// env is added to the shim's environment.
	env []string
}

// newMachine trusts the signer "trusted".
func newMachine(t *testing.T, shell ...string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), shell: shell}
	for _, dir := range []string{"etc", "tmp", "bin", "work"} {
		if err := os.Mkdir(m.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if shell[0] == "busybox" {
		m.applets()
		path = m.path("applets") + ":" + m.path("bin")
	}
	m.env = []string{"PATH=" + path, "KPSSH_PATH=" + path, "HOME=" + m.dir, "TMPDIR=" + m.path("tmp"), "KPSSH_SHIM_SUDO=",
		"KPSSH_SHIM_CONF=" + m.path("etc/shim.conf"), "KPSSH_STATE_DIR=" + m.path("state")}
	m.write("shim", Script)
	m.write("etc/allowed_signers", "kpssh "+m.publicKey("trusted"))
	t.Cleanup(func() {
		if left, err := os.ReadDir(m.path("tmp")); err != nil || len(left) > 0 {
			t.Errorf("the shim leaves files behind: %v, %v", left, err)
		}
	})
	return m
}

// applets puts busybox in the place of coreutils, and leaves what it has not.
func (m *machine) applets() {
	m.t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		m.t.Skip("busybox is not installed")
	}
	if out, err := exec.Command("sh", "-c", `mkdir "$1" && "$0" --list | while read -r applet; do ln -s "$0" "$1/$applet"; done`, busybox, m.path("applets")).CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	for _, tool := range []string{"bash", "ssh-keygen", "flock", "setsid"} {
		if at, err := exec.LookPath(tool); err == nil {
			if err := os.Symlink(at, m.path("bin/"+tool)); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) write(name, content string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(content), 0o755); err != nil { // some must be executable
		m.t.Fatal(err)
	}
}

// read reads a file of the machine; empty when there is none.
func (m *machine) read(name string) string {
	data, _ := os.ReadFile(m.path(name))
	return string(data)
}

// publicKey makes a person's key and gives its public half, without comment.
func (m *machine) publicKey(person string) string {
	m.t.Helper()
	if _, err := os.Stat(m.path(person)); err != nil {
		m.tool("", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", m.path(person))
	}
	fields := strings.Fields(m.read(person + ".pub"))
	return fields[0] + " " + fields[1] + "\n"
}

// sign is the armored signature that a person makes with ssh-keygen.
func (m *machine) sign(person, namespace, message string) string {
	m.t.Helper()
	m.publicKey(person)
	return m.tool(message, "ssh-keygen", "-q", "-Y", "sign", "-f", m.path(person), "-n", namespace)
}

func (m *machine) tool(stdin, name string, args ...string) string {
	m.t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("%s: %v: %s", name, err, stderr.String())
	}
	return string(out)
}

// envelope is what a client sends; a field that is empty is not sent. With another version than 1, params are NAME=base64 of value.
type envelope struct {
	version, phase, script string
	params                 []string
	sig                    string
	manifest, manifestSig  string
	fence                  string
	// extra lines before the end.
	extra string
}

// text is the envelope's wire form.
func (e envelope) text() string {
	var b strings.Builder
	encoded := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %s\n", key, base64.StdEncoding.EncodeToString([]byte(value)))
		}
	}
	fmt.Fprintf(&b, "kpssh-envelope: %s\nphase: %s\n", e.version, e.phase)
	encoded("params-b64", e.paramText())
	encoded("sig-b64", e.sig)
	encoded("manifest-b64", e.manifest)
	encoded("manifest-sig-b64", e.manifestSig)
	encoded("script-b64", e.script)
	encoded("fence-b64", e.fence)
	b.WriteString(e.extra)
	if e.version == "2" {
		b.WriteString("end:\n")
	}
	return b.String()
}

func (e envelope) paramText() string {
	var b strings.Builder
	for _, param := range e.params {
		if name, value, found := strings.Cut(param, "="); found && e.version == "2" {
			param = name + "=" + base64.StdEncoding.EncodeToString([]byte(value))
		}
		b.WriteString(param + "\n")
	}
	return b.String()
}

// signed is an envelope of version 1 that the shim accepts.
func (m *machine) signed(script string) envelope {
	m.t.Helper()
	return envelope{version: "1", phase: "install", script: script, sig: m.sign("trusted", "kpssh", script)}
}

// withManifest is an envelope of version 2 that the shim accepts.
func (m *machine) withManifest(script string, change ...func(*manifest)) envelope {
	m.t.Helper()
	digest := sha256.Sum256([]byte(script))
	of := manifest{version: "1", profile: "kubeadm", of: "7", phase: "install", digest: hex.EncodeToString(digest[:]), expires: "never", signer: "trusted", namespace: "kpssh-manifest"}
	for _, c := range change {
		c(&of)
	}
	e := envelope{version: "2", phase: "install", script: script, fence: fence(nil), manifest: of.text()}
	if of.signer != "" {
		e.manifestSig = m.sign(of.signer, of.namespace, e.manifest)
	}
	return e
}

type manifest struct{ version, profile, of, phase, digest, expires, signer, namespace string }

func (f manifest) text() string {
	return fmt.Sprintf("kpssh-manifest: %s\nprofile: %s\nversion: %s\nphase: %s\nscript-sha256: %s\nexpires: %s\n", f.version, f.profile, f.of, f.phase, f.digest, f.expires)
}

const nonce = "0123456789abcdef0123456789abcdef"

// fence is the fence of a client, with changes; a value "-" takes the line away.
func fence(changes map[string]string) string {
	var b strings.Builder
	for _, line := range [][2]string{{"nonce", nonce}, {"token", strings.Repeat("ab", 16)}, {"limit", "6000"}, {"silence", "6000"}, {"wait", "1"},
		{"cluster", "c"}, {"instance", "i"}, {"host", "h"}, {"claim", "n"}, {"epoch", "3"}, {"takeover", ""}} {
		value := line[1]
		if changed, found := changes[line[0]]; found {
			value = changed
		}
		if value != "-" {
			fmt.Fprintf(&b, "%s=%s\n", line[0], value)
		}
	}
	return b.String()
}

// answer is what the shim said and ended with.
type answer struct {
	stdout, stderr string
	code           int
}

// word is the last marker on stdout.
func (a answer) word() string {
	last := ""
	for line := range strings.SplitSeq(a.stdout, "\n") {
		if mark, found := strings.CutPrefix(line, "@kpssh-"+nonce+" "); found {
			last = mark
		}
	}
	return last
}

// send sends an envelope as a client does: it says "go" when it is asked to, and stays until the shim has ended. A client of version 1
// ends its input.
func (m *machine) send(wire string, env ...string) answer {
	m.t.Helper()
	cmd := exec.Command(m.shell[0], append(m.shell[1:len(m.shell):len(m.shell)], m.path("shim"))...)
	cmd.Dir, cmd.Env = m.path("work"), append(append([]string{}, m.env...), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stderr = &stderr
	ready := &watcher{to: &stdout, text: "@kpssh-" + nonce + " ready\n", then: func() { _, _ = io.WriteString(stdin, "go\n") }}
	cmd.Stdout = ready
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	killer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer killer.Stop()
	_, _ = io.WriteString(stdin, wire) // a shim that refuses early does not read the rest
	if !strings.HasSuffix(wire, "\nend:\n") {
		_ = stdin.Close()
	}
	err = cmd.Wait()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		m.t.Fatal(err)
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// watcher calls then once a text has come by.
type watcher struct {
	to   *bytes.Buffer
	text string
	then func()
}

func (w *watcher) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if w.then != nil && strings.Contains(w.to.String(), w.text) {
		w.then()
		w.then = nil
	}
	return n, err
}

// refused fails the test unless the shim ended with this status, said these words, and ran nothing.
func (m *machine) refused(a answer, code int, words ...string) {
	m.t.Helper()
	if a.code != code {
		m.t.Errorf("exit status %d, want %d: %s", a.code, code, a.stderr)
	}
	for _, word := range words {
		if !strings.Contains(a.stderr, word) {
			m.t.Errorf("%q does not say %q", a.stderr, word)
		}
	}
	if m.read("work/ran") != "" {
		m.t.Error("the script ran")
		_ = os.Remove(m.path("work/ran"))
	}
}
