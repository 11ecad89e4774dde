package probe

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func said(edit ...string) string {
	lines := map[string]string{
		"cpu": "4", "memory": "16318480", "arch": "x86_64", "time": "1750000000", "boot": "0a1b-2c", "owner": "", "unit.0": "inactive/disabled",
	}
	for i := 0; i+1 < len(edit); i += 2 {
		if edit[i+1] == "-" {
			delete(lines, edit[i])
			continue
		}
		lines[edit[i]] = edit[i+1]
	}
	var out strings.Builder
	for key, value := range lines {
		out.WriteString("kpssh." + key + "=" + value + "\n")
	}
	return out.String()
}

// Section 3 #20: output that makes no sense is never a success, and a banner shifts nothing.
func TestParseFacts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stdout string
		wrong  string // part of the error; empty: it parses
		arch   string
	}{
		{name: "plain", stdout: said(), arch: "amd64"},
		{name: "banner before, noise after", stdout: "Welcome!\n4 16318480 mips\n" + said() + "bye", arch: "amd64"},
		{name: "aarch64 is arm64", stdout: said("arch", "aarch64"), arch: "arm64"},
		{name: "other architectures pass as they are", stdout: said("arch", "riscv64"), arch: "riscv64"},
		{name: "nothing", stdout: "", wrong: "kpssh.cpu is missing"},
		{name: "one missing", stdout: said("memory", "-"), wrong: "kpssh.memory is missing"},
		{name: "not a number", stdout: said("cpu", "many"), wrong: `kpssh.cpu is "many"`},
		{name: "zero", stdout: said("cpu", "0"), wrong: "kpssh.cpu is 0"},
		{name: "negative", stdout: said("memory", "-5"), wrong: `kpssh.memory is "-5"`},
		{name: "overflow", stdout: said("memory", "999999999999999999"), wrong: "kpssh.memory is"},
		{name: "no value", stdout: said() + "kpssh.cpu\n", wrong: `line "kpssh.cpu" is not`},
		{name: "said twice, as a hostile banner would", stdout: "kpssh.cpu=64\n" + said(), wrong: "kpssh.cpu was said twice"},
		{name: "not asked for", stdout: said("gpu", "8"), wrong: "kpssh.gpu is no fact"},
		{name: "junk architecture", stdout: said("arch", "x86_64; rm -rf"), wrong: "kpssh.arch is"},
		{name: "junk unit state", stdout: said("unit.0", "active"), wrong: "kpssh.unit.0 is"},
		{name: "control characters in the owner", stdout: said("owner", "cluster=a\x1b[2J"), wrong: "kpssh.owner is"},
		{name: "carriage return", stdout: said("cpu", "4\r"), wrong: "kpssh.cpu is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := parseFacts(tc.stdout, []string{"kubelet"})
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Fatalf("want an error with %q, got %v", tc.wrong, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.arch != tc.arch || f.cpu.Value() != 4 || f.memory.Value() != 16318480*1024 || !f.clock.Equal(time.Unix(1750000000, 0)) || len(f.units) != 1 {
				t.Fatalf("got %+v", f)
			}
		})
	}
}

// Section 3 #22: a kubelet that crashes in a loop, or waits for the next boot, counts; so does another unit's name.
func TestKubeletOfUnits(t *testing.T) {
	for _, tc := range []struct {
		states []string // of units kubelet, k3s-agent
		unit   string   // empty: none
	}{
		{states: []string{"inactive/disabled", "inactive/"}},
		{states: []string{"failed/disabled", "inactive/masked"}},
		{states: []string{"inactive/static", "absent/"}},
		{states: []string{"active/disabled", "inactive/"}, unit: "kubelet is active"},
		{states: []string{"activating/enabled", "inactive/"}, unit: "kubelet is activating and enabled"},
		{states: []string{"inactive/enabled", "inactive/"}, unit: "kubelet is enabled"},
		{states: []string{"inactive/enabled-runtime", "inactive/"}, unit: "kubelet is enabled"},
		{states: []string{"inactive/enabled", "active/enabled"}, unit: "k3s-agent is active and enabled"},
	} {
		f, err := parseFacts(said("unit.0", tc.states[0], "unit.1", tc.states[1]), []string{"kubelet", "k3s-agent"})
		if err != nil {
			t.Fatal(err)
		}
		u, found := f.kubelet()
		if found != (tc.unit != "") || (found && u.String() != tc.unit) {
			t.Errorf("%v: want %q, got %v %v", tc.states, tc.unit, found, u)
		}
	}
}

// The script, in a real bash with a stand-in systemctl, says what parseFacts reads.
func TestScriptSaysFacts(t *testing.T) {
	for _, tc := range []struct {
		name      string
		systemctl string // body of the stand-in
		owner     string // owner file
		wantUnits string
		wantOwner string
	}{
		{name: "never joined", systemctl: "echo ActiveState=inactive; echo UnitFileState=", wantUnits: "[{kubelet inactive } {k3s-agent inactive }]"},
		{name: "running", systemctl: `test "$4" = kubelet && echo UnitFileState=enabled && echo ActiveState=active || { echo ActiveState=failed; echo UnitFileState=disabled; }`,
			owner: "cluster=c1\nhost=h1\n", wantUnits: "[{kubelet active enabled} {k3s-agent failed disabled}]", wantOwner: "cluster=c1 host=h1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "systemctl"), "#!/bin/bash\n"+tc.systemctl+"\n", 0o755)
			if tc.owner != "" {
				write(t, filepath.Join(dir, "owner"), tc.owner, 0o600)
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -euo pipefail\n"+script)
			cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "LANG=C", "KPSSH_STATE_DIR=" + dir, unitsVariable + "=kubelet k3s-agent"}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			f, err := parseFacts(string(out), []string{"kubelet", "k3s-agent"})
			if err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			var units []string
			for _, u := range f.units {
				units = append(units, "{"+u.name+" "+u.active+" "+u.file+"}")
			}
			if got := "[" + strings.Join(units, " ") + "]"; got != tc.wantUnits || f.owner != tc.wantOwner {
				t.Fatalf("got units %s owner %q", got, f.owner)
			}
			if since := time.Since(f.clock); since < 0 || since > time.Minute {
				t.Fatalf("the machine's clock reads %s", f.clock)
			}
		})
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// Whatever a machine says, reading it ends with facts that make sense or with an error that can be shown.
func FuzzFacts(f *testing.F) {
	for _, seed := range []string{said(), "", "kpssh.cpu\n", said("owner", "cluster=c instance=i host=h claim=n epoch=1"), "Welcome!\n" + said("arch", "aarch64")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, said string) {
		read, err := parseFacts(said, []string{"kubelet"})
		if err != nil {
			if text := err.Error(); len(text) > 4096 || !utf8.ValidString(text) {
				t.Fatalf("an error of %d bytes: %.200q", len(text), text)
			}
			return
		}
		if read.cpu.Sign() <= 0 || read.memory.Sign() <= 0 || read.arch == "" || len(read.units) != 1 {
			t.Fatalf("%q was read as %+v", said, read)
		}
	})
}
