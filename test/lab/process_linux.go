package lab

import "syscall"

// tieToParent makes the kernel kill the child when this process dies, however it dies.
func tieToParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

func watchParent(int) (untie func(), err error) { return func() {}, nil }
