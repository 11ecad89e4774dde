package sshtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

func start(t *testing.T, s *sshtest.Server) gossh.Signer {
	t.Helper()
	key, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	if s.AuthorizedKeys == nil {
		s.AuthorizedKeys = []gossh.PublicKey{key.PublicKey()}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return key
}

func dial(t *testing.T, s *sshtest.Server, key gossh.Signer) (*gossh.Client, error) {
	t.Helper()
	client, err := gossh.Dial("tcp", s.Addr().String(), &gossh.ClientConfig{
		User: "root", Auth: []gossh.AuthMethod{gossh.PublicKeys(key)}, HostKeyCallback: gossh.FixedHostKey(s.HostKeys[0].PublicKey()),
	})
	if err == nil {
		t.Cleanup(func() { _ = client.Close() })
	}
	return client, err
}

func session(t *testing.T, s *sshtest.Server) *gossh.Session {
	t.Helper()
	client, err := dial(t, s, start(t, s))
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func TestCommandsRunInAShell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := session(t, &sshtest.Server{Exec: sshtest.Shell{Dir: dir, Env: []string{"A=1", "PATH=/usr/bin:/bin"}}.Exec})
	var out, errs bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader("in"), &out, &errs
	err := s.Run(`cat; echo " $A $(pwd)"; echo err >&2; exit 3`)
	var exit *gossh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 3 {
		t.Errorf("%v", err)
	}
	if out.String() != "in 1 "+dir+"\n" || errs.String() != "err\n" {
		t.Errorf("%q %q", out.String(), errs.String())
	}
}

// As with sshd, a process that a command leaves behind does not keep its exit status back.
func TestLeftoverProcessDoesNotHoldTheSession(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := session(t, &sshtest.Server{Exec: sshtest.Shell{Dir: dir, Env: os.Environ()}.Exec})
	out, err := s.Output("mkfifo told; cat told & echo started")
	if err != nil || string(out) != "started\n" {
		t.Errorf("%q %v", out, err)
	}
	// It still reads; told, it ends.
	if err := os.WriteFile(filepath.Join(dir, "told"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// As with sshd, a lost connection kills nothing; the command's stdin ends.
func TestLostConnectionEndsStdin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "told")
	server := &sshtest.Server{Exec: sshtest.Shell{Dir: dir, Env: os.Environ()}.Exec}
	s := session(t, server)
	if _, err := s.StdinPipe(); err != nil { // stays open
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("mkfifo told; echo up; cat; echo over > told"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	server.Drop()
	told, err := os.ReadFile(fifo) // waits for the command's word
	if err != nil || string(told) != "over\n" {
		t.Errorf("%q %v", told, err)
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	s := &sshtest.Server{Exec: func(_ context.Context, _ string, _ io.Reader, out, _ io.Writer) int {
		_, _ = io.WriteString(out, "x")
		return 0
	}}
	key := start(t, s)
	stranger, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, s, stranger); err == nil {
		t.Error("a stranger logs in")
	}
	client, err := dial(t, s, key)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		one, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := one.Output("anything"); err != nil || string(out) != "x" {
			t.Errorf("%q %v", out, err)
		}
	}
	got := [5]int{s.Connections(), s.Handshakes(), s.AuthAttempts(), s.Logins(), s.Sessions()}
	if want := [5]int{2, 2, 2, 1, 2}; got != want {
		t.Errorf("connections, handshakes, attempts, logins, sessions: %v, want %v", got, want)
	}
}

func TestCloseEndsAStalledServer(t *testing.T) {
	t.Parallel()
	s := &sshtest.Server{}
	key := start(t, s)
	s.Stall(sshtest.StallAuthentication)
	ended := make(chan error, 1)
	go func() { _, err := dial(t, s, key); ended <- err }()
	for s.Handshakes() == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it did not stall: %v", err)
		default:
		}
	}
	s.Close()
	if err := <-ended; err == nil {
		t.Error("it let the client in")
	}
}
