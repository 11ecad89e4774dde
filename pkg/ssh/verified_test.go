package ssh

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// shimmed is a machine with a shim, and the key that it trusts.
type shimmed struct {
	*machine
	command string
	trusted gossh.Signer
}

func newSigner(t *testing.T) gossh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func newShimmed(t *testing.T) *shimmed {
	t.Helper()
	s := &shimmed{trusted: newSigner(t)}
	s.machine = newMachine(t, func(_ *sshtest.Server, shell *sshtest.Shell) {
		command, env, err := sshtest.InstallShim(filepath.Join(shell.Dir, "shim"), s.trusted.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		s.command, shell.Env = command, append(shell.Env, env...)
	})
	t.Cleanup(func() {
		// The shim may be cleaning up after its client has gone.
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		left, err := os.ReadDir(filepath.Join(s.dir, "shim", "tmp"))
		for round := 0; round < 100 && len(left) > 0; round++ {
			<-tick.C
			left, err = os.ReadDir(filepath.Join(s.dir, "shim", "tmp"))
		}
		if err != nil || len(left) > 0 {
			t.Errorf("the shim leaves files behind: %v, %v", left, err)
		}
	})
	return s
}

// signedBy is the proof of a script.
func signedBy(t *testing.T, signer gossh.Signer, body string) verified.Proof {
	t.Helper()
	signature, err := verified.Sign(rand.Reader, signer, []byte(body), verified.ScriptNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return verified.Proof{Signature: signature}
}

// manifested is the proof of a script with a manifest, that some change.
func manifested(t *testing.T, signer gossh.Signer, body string, change func(*verified.Manifest)) verified.Proof {
	t.Helper()
	m := verified.NewManifest("p", "1", "join", body, time.Time{})
	if change != nil {
		change(&m)
	}
	signature, err := verified.Sign(rand.Reader, signer, []byte(m.String()), verified.ManifestNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return verified.Proof{Manifest: m.String(), ManifestSignature: signature}
}

// script is a join of this machine with this proof.
func (s *shimmed) script(body string, proof verified.Proof) Script {
	owner := mine()
	return Script{Phase: "join", Body: body, Timeout: time.Minute, Owner: &owner, Verified: &Verified{Command: s.command, Proof: proof}}
}

func (s *shimmed) ran() bool { return s.file("ran") != "" }

func TestVerifiedScriptsBehaveLikeRawOnes(t *testing.T) {
	t.Parallel()
	s := newShimmed(t)
	c := s.dial(&Dialer{})
	body := "printf %s \"$KPSSH_VALUE\"; echo complained >&2; exit ${KPSSH_CODE:-0}"
	script := s.script(body, signedBy(t, s.trusted, body))
	// Section 3 #28: values of several lines.
	script.Env = map[string]string{"KPSSH_VALUE": "it's\n\"many\"\nlines\n\n", "KPSSH_EMPTY": ""}
	result, err := c.Run(t.Context(), script)
	if err != nil || result.Stdout.String() != "it's\n\"many\"\nlines\n\n" || result.Stderr.String() != "complained\n" || result.ExitCode != 0 || result.Shim != 2 {
		t.Errorf("%+v, %v", result, err)
	}
	if owner := s.file("state/owner"); !strings.Contains(owner, "claim=claim-1") {
		t.Errorf("owner %q", owner)
	}
	if s.Sessions() != 2 {
		t.Errorf("%d sessions for the first script, want one to learn which version the shim speaks and one for it", s.Sessions())
	}
	// Section 2 #5: what the shim would say with these statuses is not what the script says.
	for _, code := range []string{"1", "2", "3", "4", "5", "10", "75"} {
		script.Env = map[string]string{"KPSSH_CODE": code, "KPSSH_VALUE": ""}
		result, err := c.Run(t.Context(), script)
		wantFault(t, err, fault.Host, "ScriptFailed", "exit code "+code, "complained")
		if string(rune('0'+result.ExitCode%10)) != code[len(code)-1:] {
			t.Errorf("exit code %d, want %s", result.ExitCode, code)
		}
	}
	stale := script
	older := mine()
	older.Epoch = 1
	stale.Owner = &older
	_, err = c.Run(t.Context(), stale)
	wantFault(t, err, fault.Cluster, "StaleEpoch")
	other := mine()
	other.Host = "another"
	stale.Owner = &other
	_, err = c.Run(t.Context(), stale)
	wantFault(t, err, fault.Host, "HostOwnedElsewhere")
	manifest := s.script(body, manifested(t, s.trusted, body, nil))
	manifest.Env = map[string]string{"KPSSH_VALUE": "by manifest"}
	if result, err := c.Run(t.Context(), manifest); err != nil || result.Stdout.String() != "by manifest" {
		t.Errorf("%+v, %v", result, err)
	}
}

// Section 3 #29: what the shim refuses is the configuration's fault, and the machine is what it was.
func TestWhatTheShimRefusesIsNotTheMachinesFault(t *testing.T) {
	t.Parallel()
	s := newShimmed(t)
	c := s.dial(&Dialer{})
	body := "echo x > ran"
	for name, tc := range map[string]struct {
		proof  verified.Proof
		phase  string
		reason string
		words  string
	}{
		"rogue signer":      {proof: signedBy(t, newSigner(t), body), reason: verified.ReasonShimSignatureRejected, words: "signature rejected"},
		"tampered":          {proof: signedBy(t, s.trusted, body+" "), reason: verified.ReasonShimSignatureRejected, words: "signature rejected"},
		"expired manifest":  {proof: manifested(t, s.trusted, body, func(m *verified.Manifest) { m.Expires = time.Unix(1e9, 0) }), reason: verified.ReasonShimSignatureRejected, words: "p@1 has expired"},
		"wrong phase":       {proof: manifested(t, s.trusted, body, func(m *verified.Manifest) { m.Phase = "leave" }), reason: verified.ReasonShimSignatureRejected, words: "is for leave"},
		"replayed manifest": {proof: manifested(t, s.trusted, body+" ", nil), reason: verified.ReasonShimSignatureRejected, words: "another script"},
		"unknown phase":     {proof: signedBy(t, s.trusted, body), phase: "reboot", reason: verified.ReasonShimPhaseUnknown, words: "reboot"},
	} {
		script := s.script(body, tc.proof)
		if tc.phase != "" {
			script.Phase = tc.phase
		}
		_, err := c.Run(t.Context(), script)
		t.Log(name, err)
		wantFault(t, err, fault.Configuration, tc.reason, tc.words)
		if !fault.Of(err).Before || s.ran() {
			t.Errorf("%s: %+v, ran %v", name, fault.Of(err), s.ran())
		}
	}
	unsigned := s.script(body, verified.Proof{})
	_, err := c.Run(t.Context(), unsigned)
	wantFault(t, err, fault.Configuration, "ScriptInvalid", "not signed")
	// Section 2 #6.
	if err := os.Remove(filepath.Join(s.dir, "shim", "allowed_signers")); err != nil {
		t.Fatal(err)
	}
	_, err = c.Run(t.Context(), s.script(body, signedBy(t, s.trusted, body)))
	wantFault(t, err, fault.Configuration, verified.ReasonShimSignatureRejected, "allowed_signers does not exist")
	missing := s.script(body, signedBy(t, s.trusted, body))
	missing.Verified.Command = "/nonexistent/kpssh-shim"
	_, err = c.Run(t.Context(), missing)
	wantFault(t, err, fault.Host, verified.ReasonShimMissing, "/nonexistent/kpssh-shim")
	missing.Verified.Command = "true"
	if _, err = c.Run(t.Context(), missing); err == nil || s.ran() {
		t.Errorf("a command that is no shim: %v", err)
	}
}

func TestCancelledVerifiedScriptIsKilled(t *testing.T) {
	t.Parallel()
	s, id := newShimmed(t), uniqueID()
	ctx, cancel := context.WithCancel(t.Context())
	c := s.dial(&Dialer{Timeouts: Timeouts{Stop: time.Minute}})
	body := "echo x > up; sleep " + id + " & setsid sleep " + id + " & sleep " + id
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, s.script(body, signedBy(t, s.trusted, body)))
		ended <- err
	}()
	await(t, "the script", func() bool { return s.file("up") != "" })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := processes(t, id); n != 0 {
		t.Errorf("%d processes", n)
	}
	late := s.script(body, signedBy(t, s.trusted, body))
	late.Timeout = time.Second
	_, err := c.Run(t.Context(), late)
	wantFault(t, err, fault.Host, "ScriptTimeout")
}

// A shim of the existing provider gets what it knows, and nothing else is tried on it.
func TestOldShimsAreSpokenToInVersionOne(t *testing.T) {
	t.Parallel()
	s := newShimmed(t)
	if err := sshtest.OldShim(filepath.Join(s.dir, "shim")); err != nil {
		t.Fatal(err)
	}
	c := s.dial(&Dialer{})
	probe := Script{Phase: "probe", Body: "not sent", Timeout: time.Minute, Env: map[string]string{"KPSSH_KUBELET_UNITS": "kubelet.service"}, Verified: &Verified{Command: s.command}}
	result, err := c.Run(t.Context(), probe)
	if err != nil || result.Shim != 1 || len(strings.Fields(result.Stdout.String())) < 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	body := "echo said; echo \"$KPSSH_VALUE\" > ran; exit ${KPSSH_CODE:-0}"
	script := s.script(body, signedBy(t, s.trusted, body))
	script.Env = map[string]string{"KPSSH_VALUE": "one line"}
	result, err = c.Run(t.Context(), script)
	if err != nil || result.ExitCode != 0 || result.Shim != 1 || !strings.Contains(result.Stdout.String(), "said") || s.file("ran") != "one line\n" {
		t.Errorf("%+v, %v, %q", result, err, s.file("ran"))
	}
	script.Env["KPSSH_CODE"] = "2"
	_, err = c.Run(t.Context(), script)
	wantFault(t, err, fault.Host, "ScriptFailed")
	if err := os.Remove(filepath.Join(s.dir, "ran")); err != nil {
		t.Fatal(err)
	}
	script.Env = map[string]string{"KPSSH_VALUE": "two\nlines"}
	_, err = c.Run(t.Context(), script)
	wantFault(t, err, fault.Configuration, verified.ReasonValueMultiline, "install the present shim")
	_, err = c.Run(t.Context(), s.script(body, manifested(t, s.trusted, body, nil)))
	wantFault(t, err, fault.Configuration, verified.ReasonShimEnvelopeRejected, "cannot read manifests")
	_, err = c.Run(t.Context(), s.script(body, signedBy(t, newSigner(t), body)))
	wantFault(t, err, fault.Configuration, verified.ReasonShimSignatureRejected)
	if s.ran() {
		t.Error("it ran")
	}
	// Once it is replaced, the next phase finds out.
	if err := os.Rename(filepath.Join(s.dir, "shim", "present-shim"), filepath.Join(s.dir, "shim", "kpssh-shim")); err != nil {
		t.Fatal(err)
	}
	script.Env = map[string]string{"KPSSH_VALUE": "two\nlines"}
	if result, err := c.Run(t.Context(), script); err != nil || result.Shim != 2 || s.file("ran") != "two\nlines\n" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestProbeByTheShimCostsOneSession(t *testing.T) {
	t.Parallel()
	s := newShimmed(t)
	c := s.dial(&Dialer{})
	probe := Script{Phase: "probe", Body: "echo x > ran", Timeout: time.Minute, Env: map[string]string{"KPSSH_KUBELET_UNITS": "kubelet.service"}, Verified: &Verified{Command: s.command}}
	for _, sessions := range []int{2, 3} {
		result, err := c.Run(t.Context(), probe)
		if err != nil || result.Shim != 2 || !strings.Contains(result.Stdout.String(), "\nkpssh.unit.0=") || int(s.Sessions()) != sessions {
			t.Errorf("%d sessions, want %d: %+v, %v", s.Sessions(), sessions, result, err)
		}
	}
	if s.ran() {
		t.Error("the body ran")
	}
}

// D10: sudo's refusal is named in Verified mode too.
func TestSudoThatRefusesTheShimIsNamed(t *testing.T) {
	t.Parallel()
	s := newShimmed(t)
	shell := s.Exec
	s.Exec = func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int {
		if strings.Contains(command, "kpssh-shim") {
			command = "echo 'sudo: a password is required' >&2; exit 1"
		}
		return shell(ctx, command, stdin, stdout, stderr)
	}
	_, err := s.dial(&Dialer{}).Run(t.Context(), s.script("true", signedBy(t, s.trusted, "true")))
	wantFault(t, err, fault.Host, "SudoPasswordRequired")
}
