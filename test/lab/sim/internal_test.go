package sim

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestPathsAreReplacedWithoutChangingTheLength(t *testing.T) {
	input := "cat /proc/meminfo; cat </proc/sys/kernel/random/boot_id; ls /proc /pro /proc/mem\n/"
	want := `cat "$` + memInfoVariable + `"; cat <"$` + bootIDVariable + `"; ls /proc /pro /proc/mem` + "\n/"
	if len(want) != len(input) {
		t.Fatalf("%d bytes became %d", len(input), len(want))
	}
	for name, reader := range map[string]io.Reader{
		"whole":        strings.NewReader(input),
		"byte by byte": iotest.OneByteReader(strings.NewReader(input)),
		"halves":       iotest.HalfReader(strings.NewReader(input)),
	} {
		got, err := io.ReadAll(&replacer{source: reader})
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// What is sent is a conversation: a line must not wait for the next one.
func TestALineIsPassedOnAtOnce(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close()
	go func() { _, _ = writer.Write([]byte("go\n")) }()
	buffer := make([]byte, 10)
	n, err := (&replacer{source: reader}).Read(buffer)
	if err != nil || string(buffer[:n]) != "go\n" {
		t.Errorf("%q, %v", buffer[:n], err)
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
