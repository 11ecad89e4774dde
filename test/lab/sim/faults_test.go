package sim_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

func TestFaultsLookLikeThemselves(t *testing.T) {
	owner := &ssh.Owner{Cluster: "c", Instance: "i", Host: "h", Claim: "n", Epoch: 1}
	install := ssh.Script{Phase: "install", Body: sim.Profile().Spec.Scripts.Install, Owner: owner}
	for _, test := range []struct {
		name   string
		make   func(*sim.Machine) error // the fault
		undo   func(*sim.Machine) error // nil: Heal
		reason string                   // that the transport gives
		text   string                   // somewhere in the error
	}{
		{
			name:   "a script that fails",
			make:   func(m *sim.Machine) error { m.Fail("install", 7, "it's the disk's fault"); return nil },
			reason: "ScriptFailed", text: "it's the disk's fault",
		},
		{
			name: "a disk that is full",
			make: func(m *sim.Machine) error { m.FillDisk(true); return nil },
			text: "cannot write",
		},
		{
			name:   "a machine without power",
			make:   func(m *sim.Machine) error { m.PowerOff(); return nil },
			undo:   (*sim.Machine).PowerOn,
			reason: "DialFailed", text: "refused",
		},
		{
			name:   "a machine off the network",
			make:   func(m *sim.Machine) error { m.Disconnect(); return nil },
			reason: "DialFailed", text: "refused",
		},
	} {
		withAndWithoutLinux(t, test.name, func(t *testing.T, opts sim.Options) {
			fleet := newFleet(t, opts)
			m := add(t, fleet, sim.Spec{Name: "m"})[0]
			if err := test.make(m); err != nil {
				t.Fatal(err)
			}
			_, err := run(t.Context(), fleet, m, install)
			if err == nil {
				t.Fatal("it worked")
			}
			if reason := fault.Of(err).Reason; test.reason != "" && reason != test.reason {
				t.Errorf("reason %s, want %s: %v", reason, test.reason, err)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("%q does not say %q", err, test.text)
			}
			undo := test.undo
			if undo == nil {
				undo = (*sim.Machine).Heal
			}
			if err := undo(m); err != nil {
				t.Fatal(err)
			}
			if _, err := run(t.Context(), fleet, m, install); err != nil {
				t.Errorf("after the fault was undone: %v", err)
			}
		})
	}
}

func TestAChangedHostKeyIsNoticed(t *testing.T) {
	fleet := newFleet(t, sim.Options{})
	m := add(t, fleet, sim.Spec{Name: "m"})[0]
	pinned := fleet.LoginSecret("ns", "s", true)
	if err := m.ChangeHostKey(); err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParseKey(pinned.Data["privateKey"], nil)
	if err != nil {
		t.Fatal(err)
	}
	pins, err := ssh.ParsePins(pinned.Data["knownHost"], m.Address(), m.Port())
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&ssh.Dialer{}).Dial(t.Context(), ssh.Target{Address: m.Address(), Port: m.Port(), User: "root", Key: key, Pins: pins})
	if err == nil || fault.Of(err).Reason != "HostKeyMismatch" {
		t.Errorf("want HostKeyMismatch, got %v", err)
	}
}

func TestATarpitKeepsTheConnectionOpen(t *testing.T) {
	fleet := newFleet(t, sim.Options{})
	m := add(t, fleet, sim.Spec{Name: "m"})[0]
	m.Stall(sshtest.StallHandshake)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := dial(ctx, fleet, m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want a dial that hangs, got %v", err)
	}
	m.Stall(sshtest.StallNowhere)
	conn, err := dial(t.Context(), fleet, m)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestAPowerCutEndsEveryProcessAndKeepsTheDisk(t *testing.T) {
	withAndWithoutLinux(t, "power cut", aPowerCutEndsEveryProcess)
}

func aPowerCutEndsEveryProcess(t *testing.T, opts sim.Options) {
	fleet := newFleet(t, opts)
	m := add(t, fleet, sim.Spec{Name: "m"})[0]
	beat := filepath.Join(m.Root(), "beat")
	ended := make(chan error, 1)
	go func() {
		_, err := run(t.Context(), fleet, m, ssh.Script{Phase: "probe", Body: `
			setsid bash -c 'while :; do echo beat >>"$SIM_ROOT/beat"; sleep 0.02; done' >/dev/null 2>&1 </dev/null &
			wait`})
		ended <- err
	}()
	size := func() int64 {
		info, err := os.Stat(beat)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, func() string {
		if size() == 0 {
			return "the script has not begun"
		}
		return ""
	})
	m.PowerOff()
	before := size()
	if err := <-ended; err == nil || !fault.Is(err, fault.Network) {
		t.Errorf("want a lost connection, got %v", err)
	}
	if err := m.PowerOn(); err != nil {
		t.Fatal(err)
	}
	// Several beats' time passes in here.
	if _, err := run(t.Context(), fleet, m, ssh.Script{Phase: "probe", Body: `sleep 0.1; test -e "$SIM_ROOT/beat"`}); err != nil {
		t.Fatal(err)
	}
	if after := size(); before != after {
		t.Errorf("something went on beating: %d, then %d bytes", before, after)
	}
}
