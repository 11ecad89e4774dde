package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The test binary is the programs when it is called by their names.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == "flock" || name == "setsid" {
		main()
	}
	os.Exit(m.Run())
}

// shell runs a script that finds the programs first.
func shell(t *testing.T, script string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"flock", "setsid"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	output, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// The lock is the caller's, for as long as the descriptor is open somewhere.
func TestTheLockBelongsToTheDescriptor(t *testing.T) {
	output, err := shell(t, `
		exec 9>>lock 8>>lock
		flock -w 5 9; echo "$?"
		flock -n 8; echo "$?"
		flock -w 0.1 8; echo "$?"
		exec 9>&-
		flock -w 5 8; echo "$?"
		flock -w 1 7 2>/dev/null; echo "$?"`)
	if err != nil || strings.Join(strings.Fields(output), " ") != "0 1 1 0 65" {
		t.Errorf("%q, %v", output, err)
	}
}

// What the wrapper relies on: the same process, descriptors and exit code, in a session of its own.
func TestSetsidBecomesTheCommandInASessionOfItsOwn(t *testing.T) {
	output, err := shell(t, `
		exec 3<<<three
		setsid bash -c 'read -r word <&3; echo "$1 $word $$ $PPID $(ps -o pgid= -p $$)"; exit 7' name arg
		echo "$? $$"`)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(output)
	if len(f) != 7 || f[0] != "arg" || f[1] != "three" || f[2] != f[4] || f[3] != f[6] || f[5] != "7" {
		t.Errorf("%q", output)
	}
}

func TestALimitOnFilesIsAnErrorBehindSetsid(t *testing.T) {
	output, err := shell(t, `trap '' XFSZ; ulimit -f 0; setsid bash -c 'echo x >file || echo "cannot write"'; echo "$?"`)
	if err != nil || !strings.HasSuffix(output, "cannot write\n0") {
		t.Errorf("%q, %v", output, err)
	}
}

// A leader of a group cannot leave it: setsid(1) starts another process then.
func TestSetsidOfAGroupLeader(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "setsid")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "sh", "-c", "echo $$; ps -o pgid= -p $$")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	output, err := cmd.Output() // until nobody holds its end any more
	f := strings.Fields(string(output))
	if err != nil || len(f) != 2 || f[0] != f[1] {
		t.Errorf("%q, %v", output, err)
	}
}
