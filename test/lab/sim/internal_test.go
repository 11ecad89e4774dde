package sim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Senders announce how much they send.
func TestReplacedPathsKeepTheirLength(t *testing.T) {
	for _, r := range replacements {
		if len(r.Old) != len(r.New) {
			t.Errorf("%s becomes %s", r.Old, r.New)
		}
	}
}

// What a power cut must reach where environments are not shown: children, their children, what left its parent but not its group,
// and nobody else.
func TestProcessesOfACommandAreFoundWithoutTheirEnvironment(t *testing.T) {
	all := parseProcesses(strings.Join([]string{
		"    1     0     1 Ss", "  100     1   100 Ss", // the lab
		"  200   100   200 Ss", "  201   200   200 S+", // a command, its child
		"  210   201   210 Ss", "  211     1   210 T", // the script in a session of its own, an orphan of its group
		"  220   210   220 S", "  221   220   210 Z", // another group, a zombie
		"  300   100   300 Ss", "  301   300   300 R", // another machine's
		"  garbage",
	}, "\n"))
	if got, want := descendants(all, []int{200}), []int{200, 201, 210, 211, 220}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := descendants(all, nil); len(got) != 0 {
		t.Errorf("without commands: %v", got)
	}
}

func TestSystemctl(t *testing.T) {
	unitDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(unitDir, "kubelet.service"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	starts := make(chan string, 100)
	s := newServices(unitDir, func(ctx context.Context, unit string) {
		starts <- unit
		<-ctx.Done()
	})
	s.powerOn()
	defer s.powerOff()
	if unit := <-starts; unit != "containerd" {
		t.Errorf("%s started at boot", unit)
	}
	for i, step := range []struct {
		args   string
		code   int
		stream int
		text   string
	}{
		{"is-active kubelet", 3, 1, "inactive\n"},
		{"is-enabled kubelet.service", 1, 1, "disabled\n"},
		{"enable kubelet", 0, 1, ""},
		{"is-active kubelet", 3, 1, "inactive\n"},
		{"start kubelet", 0, 1, ""},
		{"is-active --quiet kubelet", 0, 1, ""},
		{"show --property=ActiveState,UnitFileState -- kubelet", 0, 1, "ActiveState=active\nUnitFileState=enabled\n"},
		{"show --property=ActiveState,UnitFileState -- k3s", 0, 1, "ActiveState=inactive\nUnitFileState=\n"},
		{"disable --now kubelet", 0, 1, ""},
		{"show --property=ActiveState,UnitFileState -- kubelet", 0, 1, "ActiveState=inactive\nUnitFileState=disabled\n"},
		{"start k3s", 5, 2, "Failed to start k3s.service: Unit k3s.service not found.\n"},
		{"stop k3s", 5, 2, "Failed to stop k3s.service: Unit k3s.service not loaded.\n"},
		{"daemon-reload", 0, 1, ""},
		{"start", 1, 2, "systemctl start: too few arguments\n"},
		{"isolate kubelet", 1, 2, "Unknown command verb isolate, or the simulated machine does not know it.\n"},
	} {
		code, stream, text := s.systemctl(strings.Fields(step.args))
		if code != step.code || stream != step.stream || text != step.text {
			t.Errorf("%d: systemctl %s: %d, %d, %q; want %d, %d, %q", i, step.args, code, stream, text, step.code, step.stream, step.text)
		}
	}
}

func TestOnlyEnabledUnitsComeBackAfterAPowerCut(t *testing.T) {
	unitDir := t.TempDir()
	for _, unit := range []string{"kubelet", "other"} {
		if err := os.WriteFile(filepath.Join(unitDir, unit+".service"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newServices(unitDir, func(ctx context.Context, _ string) { <-ctx.Done() })
	s.powerOn()
	s.systemctl([]string{"enable", "--now", "kubelet"})
	s.systemctl([]string{"start", "other"})
	s.powerOff()
	if s.isActive("kubelet") || s.isActive("other") {
		t.Error("units are active without power")
	}
	s.start("other")
	if s.isActive("other") {
		t.Error("a unit started without power")
	}
	s.powerOn()
	defer s.powerOff()
	if !s.isActive("kubelet") || s.isActive("other") {
		t.Errorf("kubelet %t, other %t", s.isActive("kubelet"), s.isActive("other"))
	}
}

func TestTheControlPortAnswersOnlyItsOwnMachines(t *testing.T) {
	f := &Fleet{token: "secret", machines: map[string]*Machine{}}
	c := &control{fleet: f}
	for _, fields := range [][]string{nil, {"secret"}, {"guess", "m", "phase", "install"}, {"secret", "nobody", "phase", "install"}} {
		if code, stream, _ := c.answer(fields); code == 0 || stream != 2 {
			t.Errorf("%q: %d on stream %d", fields, code, stream)
		}
	}
}

// The profile must stay what the scripts of a fleet need: it is parsed, and its scripts are.
func TestTheProfileIsSound(t *testing.T) {
	profile := Profile()
	bash, err := findBash()
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{"install": profile.Spec.Scripts.Install, "join": profile.Spec.Scripts.Join, "leave": profile.Spec.Scripts.Leave} {
		if !strings.HasPrefix(script, fmt.Sprintf("simulated-phase %s\n", name)) {
			t.Errorf("%s does not count its run", name)
		}
		if output, err := exec.Command(bash, "-n", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}

// The simulated machines of the demo have whatever bash their computer has; macOS has 3.2.
func TestNoScriptOfASimulatedMachineNeedsANewBash(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	probe, err := os.ReadFile(filepath.Join(root, "pkg/controllers/probe/probe.sh"))
	if err != nil {
		t.Fatal(err)
	}
	scripts := Profile().Spec.Scripts
	all := map[string]string{"probe": string(probe), "install": scripts.Install, "join": scripts.Join, "leave": scripts.Leave}
	entries, err := standIns.ReadDir("bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := standIns.ReadFile("bin/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(content)
	}
	for name, script := range all {
		if lines := sshtest.NewerThanBash3(script); len(lines) > 0 {
			t.Errorf("%s: bash 3.2 does not understand\n%s", name, strings.Join(lines, "\n"))
		}
	}
}
