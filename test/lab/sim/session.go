package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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
	command = sshtest.Rewrite(command, m.fleet.replacements())
	if diskFull {
		// As near to a full disk as one gets without root: nothing can be written to a file. Ignored, the signal becomes an error.
		command = "trap '' XFSZ; ulimit -f 0\n" + command
	}
	cmd := exec.Command(m.fleet.bash, "-c", command)
	cmd.Dir, cmd.Env = filepath.Join(m.root, "root"), append(m.environment(), "SIM_USER="+user)
	// As sshd does; and the processes of a command can be told from others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	defer m.forget(cmd)
	code, err := converse(ctx, cmd, func() { m.remember(cmd) }, sshtest.RewriteStream(stdin, m.fleet.replacements()), stdout, stderr)
	if err != nil {
		fmt.Fprintf(m.fleet.opts.Log, "sim: %s: %v\n", m.spec.Name, err)
	}
	return code
}

// converse runs a command until it has ended and nobody holds its output any more, as sshd does. When the connection goes (ctx),
// nothing is killed: the pipes break, and the command has to notice. The result is negative if there is no exit code.
func converse(ctx context.Context, cmd *exec.Cmd, started func(), stdin io.Reader, stdout, stderr io.Writer) (int, error) {
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
	started()
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

func (m *Machine) remember(cmd *exec.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commands[cmd] = true
}

func (m *Machine) forget(cmd *exec.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.commands, cmd)
}

// runningCommands are the process IDs of commands that have not been waited for.
func (m *Machine) runningCommands() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pids []int
	for cmd := range m.commands {
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}
