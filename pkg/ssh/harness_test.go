package ssh

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// machine is an SSH server whose commands run in a directory of their own, with real shells.
type machine struct {
	*sshtest.Server
	t   *testing.T
	dir string
	bin string // first on PATH
	key Signer
}

// newMachine starts one; configure may change the server before.
func newMachine(t *testing.T, configure ...func(*sshtest.Server, *sshtest.Shell)) *machine {
	t.Helper()
	key, pub := newKey(t)
	m := &machine{t: t, dir: t.TempDir(), bin: t.TempDir(), key: key}
	shell := sshtest.Shell{Dir: m.dir, Env: []string{
		"PATH=" + m.bin + ":" + os.Getenv("PATH"), "HOME=" + m.dir, "KPSSH_STATE_DIR=" + m.state(), "LANG=de_DE.UTF-8",
	}}
	m.Server = &sshtest.Server{AuthorizedKeys: []gossh.PublicKey{pub}}
	for _, c := range configure {
		c(m.Server, &shell)
	}
	if m.Exec == nil {
		m.Exec = shell.Exec
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func newKey(t *testing.T) (Signer, gossh.PublicKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(pem.EncodeToMemory(block), nil)
	if err != nil {
		t.Fatal(err)
	}
	return key, key.inner.PublicKey()
}

func (m *machine) state() string { return filepath.Join(m.dir, "state") }

func (m *machine) target() Target {
	return Target{Address: m.Host(), Port: m.Port(), User: "root", Key: m.key}
}

// dial connects with the defaults.
func (m *machine) dial(d *Dialer) *Conn {
	m.t.Helper()
	conn, err := d.Dial(m.t.Context(), m.target())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// run runs a reading phase.
func (m *machine) run(body string, opts ...Option) (Result, error) {
	m.t.Helper()
	return m.dial(&Dialer{}).Run(m.t.Context(), Script{Phase: "probe", Body: body, Timeout: time.Minute}, opts...)
}

// file reads a file of the machine; empty when there is none.
func (m *machine) file(name string) string {
	data, _ := os.ReadFile(filepath.Join(m.dir, name))
	return string(data)
}

// await waits for a condition on the real file system or process table, which tell nobody when they change.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// processes counts those whose command line contains the text; tests make it unique.
func processes(t *testing.T, text string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range lines {
		data, err := os.ReadFile(line)
		if err == nil && strings.Contains(string(data), text) {
			n++
		}
	}
	return n
}

// shellPath skips nothing: the tests name only shells that every Linux has.
func shellPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// program puts a shell script on the machine's PATH.
func program(m *machine, name, body string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.bin, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil { // it must be executable
		m.t.Fatal(err)
	}
}

// notRoot makes the account an ordinary one, whoever runs the tests.
func notRoot(m *machine) { program(m, "id", "echo 1000") }

// onlyBin leaves nothing on PATH but what the test put there.
func onlyBin(m *machine) {
	m.Exec = sshtest.Shell{Dir: m.dir, Env: []string{"PATH=" + m.bin}}.Exec
}

// kill ends a process that a test left stopped, and its children.
func kill(t *testing.T, text string) {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
