package sim

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// execute runs a command as sshd would on this machine, whose login shell is bash.
func (m *Machine) execute(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int {
	m.mu.Lock()
	on, diskFull := m.on, m.diskFull
	m.mu.Unlock()
	if !on {
		return -1
	}
	m.journal.add(EntrySessionBegin, "", "")
	defer m.journal.add(EntrySessionEnd, "", "")
	for _, replacement := range replacements {
		command = strings.ReplaceAll(command, string(replacement[0]), string(replacement[1]))
	}
	if diskFull {
		// As near to a full disk as one gets without root: nothing can be written to a file. Ignored, the signal becomes an error.
		command = "trap '' XFSZ; ulimit -f 0\n" + command
	}
	shell := sshtest.Shell{Path: m.fleet.bash, Dir: filepath.Join(m.root, "root"), Env: m.environment()}
	return shell.Exec(ctx, command, &replacer{source: stdin}, stdout, stderr)
}

// killProcesses ends every process whose environment carries the marker, until there is none.
func killProcesses(marker string) {
	for range 50 {
		pids := processesWith(marker)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func processesWith(marker string) []int {
	var pids []int
	if runtime.GOOS != "linux" {
		// ps shows the environment of one's own processes behind the command.
		output, err := exec.Command("ps", "-Eww", "-axo", "pid=,command=").Output()
		if err != nil {
			return nil
		}
		for line := range bytes.Lines(output) {
			fields := bytes.Fields(line)
			if len(fields) > 1 && bytes.Contains(line, []byte(marker)) {
				if pid, err := strconv.Atoi(string(fields[0])); err == nil && pid != os.Getpid() {
					pids = append(pids, pid)
				}
			}
		}
		return pids
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process of somebody else, or one that is gone: not ours. The environment of a zombie is empty.
		environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, environment...), []byte("\x00"+marker)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
