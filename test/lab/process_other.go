//go:build unix && !linux

package lab

import (
	"fmt"
	"os/exec"
	"syscall"
)

func tieToParent(*syscall.SysProcAttr) {}

// watchParent starts a shell that kills the child's group once the pipe from this process closes, which it does however this
// process dies: systems other than Linux have no parent-death signal.
func watchParent(pid int) (untie func(), err error) {
	watcher := exec.Command("/bin/sh", "-c", fmt.Sprintf("cat >/dev/null; kill -KILL -- -%d 2>/dev/null", pid))
	watcher.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := watcher.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := watcher.Start(); err != nil {
		return nil, err
	}
	return func() {
		// The child is gone and its number may be somebody else's soon: the watcher must not act on it.
		_ = syscall.Kill(-watcher.Process.Pid, syscall.SIGKILL)
		_ = watcher.Wait()
		pipe.Close()
	}, nil
}
