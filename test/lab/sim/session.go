package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
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
	user := sshtest.User(ctx)
	m.journal.add(EntrySessionBegin, user, "")
	defer m.journal.add(EntrySessionEnd, user, "")
	for _, replacement := range replacements {
		command = strings.ReplaceAll(command, string(replacement[0]), string(replacement[1]))
	}
	if diskFull {
		// As near to a full disk as one gets without root: nothing can be written to a file. Ignored, the signal becomes an error.
		command = "trap '' XFSZ; ulimit -f 0\n" + command
	}
	cmd := exec.Command(m.fleet.bash, "-c", command)
	cmd.Dir, cmd.Env = filepath.Join(m.root, "root"), append(m.environment(), "SIM_USER="+user)
	code, err := converse(ctx, cmd, &replacer{source: stdin}, stdout, stderr)
	if err != nil {
		fmt.Fprintf(m.fleet.opts.Log, "sim: %s: %v\n", m.spec.Name, err)
	}
	return code
}

// converse runs a command until it has ended and nobody holds its output any more, as sshd does. When the connection goes (ctx),
// nothing is killed: the pipes break, and the command has to notice. The result is negative if there is no exit code.
func converse(ctx context.Context, cmd *exec.Cmd, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	// Not cmd.Run with readers and writers: it would wait for the client to end stdin.
	in, err := cmd.StdinPipe()
	if err != nil {
		return -1, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return -1, errors.Join(err, outRead.Close(), outWrite.Close())
	}
	letGo := func() {
		outRead.Close()
		errRead.Close()
	}
	defer letGo()
	cmd.Stdout, cmd.Stderr = outWrite, errWrite
	err = cmd.Start()
	outWrite.Close()
	errWrite.Close()
	if err != nil {
		return -1, err
	}
	go func() {
		_, _ = io.Copy(in, stdin) // until the client ends it, or the command does
		in.Close()
	}()
	defer context.AfterFunc(ctx, letGo)()
	var output sync.WaitGroup
	output.Go(func() { _, _ = io.Copy(stdout, outRead) })
	output.Go(func() { _, _ = io.Copy(stderr, errRead) })
	output.Wait()
	if err := cmd.Wait(); err != nil {
		return cmd.ProcessState.ExitCode(), nil
	}
	return 0, nil
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
