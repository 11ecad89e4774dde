package shim

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Root is asked for once, and what the client put into its environment is forgotten with that.
func TestTheShimBecomesRootOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	if err := os.Chmod(m.path("shim"), 0o755); err != nil {
		t.Fatal(err)
	}
	wire := m.signed("id -u >got; echo x >ran").text()
	m.write("bin/id", "#!/bin/sh\necho 1000\n") // until sudo sets another PATH
	m.write("bin/sudo", "#!/bin/sh\n[ \"$1 $2\" = '-n --' ] && [ $# = 3 ] || exit 99\necho x >>"+m.path("asked")+"\n"+
		"[ ! -e "+m.path("denied")+" ] || { echo 'sudo: a password is required' >&2; exit 1; }\nshift 2\nSUDO_UID=1000 exec \"$@\"\n")
	path := "KPSSH_PATH=" + m.path("bin") + ":/usr/bin:/bin"
	as := []string{path, "PATH=" + m.path("bin") + ":/usr/bin:/bin", "KPSSH_SHIM_SUDO=sudo"}
	if os.Geteuid() == 0 {
		// The client's own word on who may sign is not heard: /etc/kpssh is asked, which on this machine has nobody.
		m.refused(m.send(wire, as...), 2, "/etc/kpssh/allowed_signers")
	} else {
		m.refused(m.send(wire, as...), 1, "sudo did not make this root")
	}
	if m.read("asked") != "x\n" {
		t.Errorf("sudo was asked %q", m.read("asked"))
	}
	m.write("denied", "")
	m.refused(m.send(wire, as...), 1, "sudo: a password is required")
	m.refused(m.send(wire, path, "KPSSH_SHIM_SUDO=doas-that-is-missing"), 1, "doas-that-is-missing is not installed")
}

// An old controller watches nothing, so the shim does: one phase at a time, and none for ever.
func TestVersionOneIsFencedByTheShim(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	a := m.send(m.signed("trap '' TERM; echo x >started; sleep 3217 & sleep 3217").text(), "KPSSH_DEADLINE=2")
	if a.code != 10 || !strings.Contains(a.stderr, "took too long and was killed") {
		t.Errorf("a script without end: %+v", a)
	}
	if out, _ := exec.Command("pgrep", "-fx", "sleep 3217").Output(); len(out) > 0 {
		t.Errorf("processes survive: %s", out)
	}
	if m.read("state/run") != "" || m.read("state/owner") != "" {
		t.Errorf("left behind: run %q, owner %q", m.read("state/run"), m.read("state/owner"))
	}

	holder := exec.Command("flock", m.path("state/lock"), "sh", "-c", "echo held; read -r _")
	release, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	held, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	// The client of version 2 says how long it waits: a second, here.
	m.refused(m.send(m.withManifest("echo x >ran").text()), 1, "busy another phase")
	if waited := time.Since(started); waited < time.Second {
		t.Errorf("it waited %s", waited)
	}
	_ = release.Close()
	_ = holder.Wait()

	if a := m.send(m.withManifest("true").text()); a.code != 0 {
		t.Fatalf("%+v", a)
	}
	m.refused(m.send(m.signed("echo x >ran").text()), 1, m.path("state/owner"))
}

// A client that goes away takes its phase with it.
func TestVersionTwoEndsWithItsClient(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	cmd := exec.Command("sh", m.path("shim"))
	cmd.Dir, cmd.Env = m.path("work"), m.env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wire := m.withManifest("echo x >up; sleep 3218; sleep 3218").text()
	if _, err := stdin.Write([]byte(wire)); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for said, rounds := false, 0; m.read("work/up") == "" && rounds < 3000; rounds++ {
		if !said && m.read("state/run") != "" {
			_, _ = stdin.Write([]byte("go\n"))
			said = true
		}
		<-tick.C
	}
	_ = stdin.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 10 {
		t.Error(err)
	}
	if out, _ := exec.Command("pgrep", "-fx", "sleep 3218").Output(); len(out) > 0 {
		t.Errorf("processes survive: %s", out)
	}
}

func TestProbesNeedNoSignature(t *testing.T) {
	t.Parallel()
	inEveryShell(t, func(t *testing.T, m *machine) {
		_ = os.Remove(m.path("etc/allowed_signers"))
		old := m.send(envelope{version: "1", phase: "probe"}.text())
		if fields := strings.Fields(old.stdout); old.code != 0 || len(fields) < 4 || len(fields) > 5 || fields[len(fields)-1] != "kpssh.shim=2" {
			t.Errorf("version 1: %+v", old)
		}
		// What a probe is sent besides is not run.
		present := m.send(envelope{version: "2", phase: "probe", params: []string{"KPSSH_KUBELET_UNITS=kubelet.service k3s.service"},
			script: "echo x >ran", fence: fence(nil)}.text())
		m.refused(present, 4)
		alone := strings.Join(strings.SplitAfter(fence(nil), "\n")[:5], "")
		present = m.send(envelope{version: "2", phase: "probe", params: []string{"KPSSH_KUBELET_UNITS=kubelet.service k3s.service"},
			script: "echo x >ran", fence: alone}.text())
		for _, fact := range []string{"kpssh.cpu=", "kpssh.memory=", "kpssh.arch=", "kpssh.owner=\n", "kpssh.unit.1=", "kpssh.shim=2\n"} {
			if !strings.Contains(present.stdout, "\n"+fact) {
				t.Errorf("version 2 does not tell %s: %+v", fact, present)
			}
		}
		m.refused(present, 0)
		if _, err := os.Stat(m.path("state")); err == nil {
			t.Error("a probe changes the machine")
		}
	})
}
