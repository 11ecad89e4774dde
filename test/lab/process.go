package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Process is a child with its log. It never outlives this process.
type Process struct {
	name    string
	logPath string
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // why it ended; valid once done is closed
}

// spawner starts all children from one OS thread that lives until close. Linux delivers the parent-death signal when the *thread*
// that started a child ends, and Go ends threads as it likes.
type spawner struct {
	work chan func()
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

func (s *spawner) close() { close(s.work) }

// start runs a program with its output in logDir/<name>.log.
func (s *spawner) start(name, logDir, path string, args, env []string) (*Process, error) {
	p := &Process{name: name, logPath: filepath.Join(logDir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), env...)
	// A group of its own: Ctrl-C on the terminal is for us, who then stop the children in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tieToParent(p.cmd.SysProcAttr)
	started := make(chan error)
	s.work <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	untie, err := watchParent(p.cmd.Process.Pid)
	if err != nil {
		p.signal(syscall.SIGKILL)
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		untie()
		close(p.done)
	}()
	return p, nil
}

// LogPath is the file that has the process's output.
func (p *Process) LogPath() string { return p.logPath }

// Pid of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is why it ended; valid once Done is closed, nil for exit code 0.
func (p *Process) Err() error { return p.err }

// LogTail is the end of its output.
func (p *Process) LogTail(lines int) string { return string(tail(p.logPath, lines)) }

// signal goes to the whole group.
func (p *Process) signal(sig syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, sig)
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	select {
	case <-p.done:
	default:
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// Stop asks (SIGTERM), and kills after the grace period.
func (p *Process) Stop(grace time.Duration) {
	select {
	case <-p.done:
		return
	default:
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// failure explains a process that ended by itself, or is not ready in time, with the end of its log.
func (p *Process) failure(why error) error {
	return fmt.Errorf("%s: %w; end of %s:\n%s", p.name, why, p.logPath, tail(p.logPath, 25))
}

func tail(path string, lines int) []byte {
	content, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	content = bytes.TrimRight(content, "\n")
	for i := len(content) - 1; i >= 0; i-- {
		if content[i] == '\n' {
			if lines--; lines == 0 {
				return content[i+1:]
			}
		}
	}
	return content
}
