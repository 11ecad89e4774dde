// Command utillinux stands in for flock(1) and setsid(1) of util-linux on computers that have none, such as Macs; it is the program
// whose name it is called by. It does what the remote half of the transport asks of them, and no more.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	programs := map[string]func([]string) (int, error){"flock": flock, "setsid": setsid}
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: call this as flock or setsid\n", name)
		os.Exit(64)
	}
	code, err := program(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(code)
}

// flock [-x|-s|-u] [-n] [-w SECONDS] DESCRIPTOR: the lock belongs to what the descriptor stands for, and stays with the caller.
func flock(args []string) (int, error) {
	flags := flag.NewFlagSet("flock", flag.ContinueOnError)
	flags.Bool("x", true, "exclusive")
	shared := flags.Bool("s", false, "shared")
	release := flags.Bool("u", false, "unlock")
	never := flags.Bool("n", false, "do not wait")
	wait := flags.Float64("w", -1, "seconds to wait")
	if err := flags.Parse(args); err != nil {
		return 64, nil // Parse has said it
	}
	descriptor, err := strconv.Atoi(flags.Arg(0))
	if err != nil || flags.NArg() != 1 {
		return 64, errors.New("it takes one descriptor")
	}
	how := unix.LOCK_EX
	switch {
	case *release:
		how = unix.LOCK_UN
	case *shared:
		how = unix.LOCK_SH
	}
	deadline := make(<-chan time.Time) // never
	switch {
	case *never:
		*wait = 0
		fallthrough
	case *wait >= 0:
		deadline = time.After(time.Duration(*wait * float64(time.Second)))
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := unix.Flock(descriptor, how|unix.LOCK_NB)
		if err == nil {
			return 0, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return 65, fmt.Errorf("descriptor %d: %w", descriptor, err)
		}
		select {
		case <-deadline:
			return 1, nil
		case <-ticker.C:
		}
	}
}

// setsid COMMAND [ARGUMENT...]: in this process where that is possible, else in a child that nobody waits for.
func setsid(args []string) (int, error) {
	if len(args) == 0 {
		return 64, errors.New("it takes a command")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return 127, err
	}
	// Go's runtime has put handlers in the place of what the caller ignored, and a handler does not outlive exec. A full disk is
	// simulated by a limit on files and by ignoring this signal; without the limit it never comes.
	signal.Ignore(unix.SIGXFSZ)
	if unix.Getpgrp() == os.Getpid() {
		child := exec.Command(path, args[1:]...)
		child.Args[0] = args[0]
		child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		child.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			return 126, err
		}
		return 0, nil
	}
	if _, err := unix.Setsid(); err != nil {
		return 126, err
	}
	return 126, fmt.Errorf("%s: %w", path, unix.Exec(path, args, os.Environ()))
}
