//go:build linux

package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// roleVariable tells a copy of the program which part it plays. Unset: the outside.
	roleVariable = "KPSSH_ENCLOSURE_ROLE"
	roleInit     = "init"
	roleInside   = "inside"
	// keyVariable is the name of the enclosure's cgroups, by which the outside finds what is left of it.
	keyVariable = "KPSSH_ENCLOSURE"
	// stateDir is where everything of an enclosure lives: a tmpfs of its own.
	stateDir = "/run/kpssh"
)

// Enclose puts the rest of the program into process, mount and network namespaces of its own, and is the first thing in TestMain:
//
//	if code, inside := machine.Enclose(prepare); !inside {
//		os.Exit(code)
//	}
//
// It runs the program again, with the same arguments, as a child of an init inside the namespaces. Outside, it first calls
// prepare, which is the last to have a network: builds and downloads belong there. It then waits, checks that nothing is left,
// and returns the child's exit code, with inside false. In the child it returns inside true. If the outside dies, even by SIGKILL,
// the kernel kills everything inside.
func Enclose(prepare func() error) (code int, inside bool) {
	switch os.Getenv(roleVariable) {
	case roleInside:
		return 0, true
	case roleInit:
		code, err := beInit()
		if err != nil {
			fmt.Fprintln(os.Stderr, "enclosure:", err)
			return 1, false
		}
		return code, false
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "enclosure: prepare:", err)
		return 1, false
	}
	code, err := runEnclosed()
	if err != nil {
		fmt.Fprintln(os.Stderr, "enclosure:", err)
		if code == 0 {
			code = 1
		}
	}
	return code, false
}

func runEnclosed() (int, error) {
	sweepCgroups()
	before, err := traces()
	if err != nil {
		return 1, err
	}
	key := fmt.Sprintf("%s%d", cgroupPrefix, os.Getpid())
	// The parent-death signal below comes when the *thread* that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roleVariable+"="+roleInit, keyVariable+"="+key)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL,
		// Ctrl-C on the terminal comes to us alone and is passed on below; the machines must not see it.
		Setsid: true,
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start in new namespaces: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-signals:
				_ = cmd.Process.Signal(sig)
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	code := cmd.ProcessState.ExitCode()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = nil
		if code < 0 {
			err = fmt.Errorf("the enclosed program was killed: %w", exit)
			code = 1
		}
	}
	return code, errors.Join(err, removeCgroups(key), leftovers(before))
}

// beInit is process 1 of the enclosure: it makes the mounts, starts the program once more and reaps orphans. When it returns,
// the kernel kills whatever still runs.
func beInit() (int, error) {
	if os.Getpid() != 1 {
		// Left over from somewhere in the environment; each copy would start another, without end.
		return 1, fmt.Errorf("%s=%s in a process that is not an enclosure's first", roleVariable, roleInit)
	}
	if err := privateMounts(); err != nil {
		return 1, err
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	if err := os.Setenv(roleVariable, roleInside); err != nil {
		return 1, err
	}
	process, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, fmt.Errorf("start inside: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for sig := range signals {
			_ = process.Signal(sig)
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 1, fmt.Errorf("wait: %w", err)
		}
		if pid != process.Pid {
			continue
		}
		if status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return status.ExitStatus(), nil
	}
}

func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// Hides the box's own /run/netns and systemd-nspawn's state, and takes ours away with the namespace.
	if err := unix.Mount("kpssh", "/run", "tmpfs", unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"machines", "tmp"} {
		if err := os.MkdirAll(filepath.Join(stateDir, dir), 0o755); err != nil {
			return err
		}
	}
	// Temporary files, a control plane's data among them, are to end like everything else.
	return os.Setenv("TMPDIR", filepath.Join(stateDir, "tmp"))
}
