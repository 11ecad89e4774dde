package sshtest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// patience is how long a command may take to end by itself once its client is gone.
const patience = 30 * time.Second

// drain is how long output is still read after a command has ended while a process it left behind holds the pipes.
const drain = 200 * time.Millisecond

// Shell runs commands as sshd does for an account: `<Path> -c <command>` in Dir. A lost connection kills nothing; it only closes the
// pipes, which is what the provider has to cope with.
type Shell struct {
	// Path of the login shell, default /bin/sh.
	Path string
	// Dir is the working directory.
	Dir string
	// Env is the whole environment, NAME=value.
	Env []string
	// Started is told the process id of each command; may be nil.
	Started func(pid int)
}

// Exec is a Server's Exec.
//
// A command that is still there half a minute after ctx has ended is killed, so that a test never waits for ever; its children are not.
func (s Shell) Exec(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int {
	path := s.Path
	if path == "" {
		path = "/bin/sh"
	}
	cmd := exec.Command(path, "-c", command) // running what the client says, past the connection's end, is the point
	cmd.Dir, cmd.Env = s.Dir, s.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	pipes, err := newPipes()
	if err != nil {
		return 255
	}
	defer pipes.close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes.in[0], pipes.out[1], pipes.err[1]
	if err := cmd.Start(); err != nil {
		_, _ = io.WriteString(stderr, err.Error()+"\n")
		return 127
	}
	if s.Started != nil {
		s.Started(cmd.Process.Pid)
	}
	pipes.closeTheirs()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
		}
	}()
	go func() {
		_, _ = io.Copy(pipes.in[1], stdin)
		_ = pipes.in[1].Close()
	}()
	var reading sync.WaitGroup
	reading.Go(func() { copyOut(stdout, pipes.out[0]) })
	reading.Go(func() { copyOut(stderr, pipes.err[0]) })
	err = cmd.Wait()
	_ = pipes.out[0].SetReadDeadline(time.Now().Add(drain))
	_ = pipes.err[0].SetReadDeadline(time.Now().Add(drain))
	reading.Wait()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed) && failed.ExitCode() >= 0:
		return failed.ExitCode()
	default:
		return -1 // killed: sshd sends a signal, not a status
	}
}

// copyOut closes the pipe when the client is gone, so that the command is told by its next write.
func copyOut(to io.Writer, from *os.File) {
	_, _ = io.Copy(to, from)
	_ = from.Close()
}

// pipes are a command's standard streams; index 0 is the end that is read.
type pipes struct{ in, out, err [2]*os.File }

func newPipes() (*pipes, error) {
	p := &pipes{}
	for _, pair := range []*[2]*os.File{&p.in, &p.out, &p.err} {
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, err
		}
		pair[0], pair[1] = r, w
	}
	return p, nil
}

func (p *pipes) closeTheirs() {
	_ = p.in[0].Close()
	_ = p.out[1].Close()
	_ = p.err[1].Close()
}

func (p *pipes) close() {
	for _, pair := range [][2]*os.File{p.in, p.out, p.err} {
		for _, f := range pair {
			if f != nil {
				_ = f.Close()
			}
		}
	}
}
