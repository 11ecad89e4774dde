package ssh

import (
	"strings"
	"testing"
	"time"
)

func TestRunReturnsBothStreamsAndTheExitCode(t *testing.T) {
	m := newMachine(t)
	result, err := m.run("echo out; echo err >&2; printf 'no newline'")
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Stdout.String(); got != "out\nno newline" {
		t.Errorf("stdout %q", got)
	}
	if got := result.Stderr.String(); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	if result.ExitCode != 0 || result.Stdout.Total() != int64(len("out\nno newline")) {
		t.Errorf("exit %d, total %d", result.ExitCode, result.Stdout.Total())
	}
	result, err = m.run("echo why >&2; exit 3")
	if result.ExitCode != 3 || err == nil || !strings.Contains(err.Error(), "exit code 3: why") {
		t.Errorf("exit %d, %v", result.ExitCode, err)
	}
}

func TestMutatingPhaseWritesOwner(t *testing.T) {
	m := newMachine(t)
	c := m.dial(&Dialer{})
	owner := &Owner{Cluster: "c1", Instance: "default", Host: "h1", Claim: "n1", Epoch: 4}
	if _, err := c.Run(t.Context(), Script{Phase: "install", Body: "true", Timeout: time.Minute, Owner: owner}); err != nil {
		t.Fatal(err)
	}
	t.Log(m.file("state/owner"), m.file("state/epoch.h1"), m.file("state/run"))
	if _, err := c.Run(t.Context(), Script{Phase: "leave", Body: "true", Timeout: time.Minute, Owner: owner}); err != nil {
		t.Fatal(err)
	}
	if m.file("state/owner") != "" {
		t.Error("owner survives a leave")
	}
}
