package sim

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// killProcesses ends every process of the machine, or of all machines if it is nil, until there is none.
func (f *Fleet) killProcesses(m *Machine) {
	marker, machines := "SIM_RUN="+f.token+"/", f.Machines()
	if m != nil {
		marker, machines = m.marker(), []*Machine{m}
	}
	for range 50 {
		var pids []int
		if f.portable {
			var commands []int
			for _, machine := range machines {
				commands = append(commands, machine.runningCommands()...)
			}
			pids = append(descendants(listProcesses(), commands), shownWith(marker)...)
		} else {
			pids = processesWith(marker)
		}
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// processesWith finds them by their environment, which Linux shows to their owner.
func processesWith(marker string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
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

// shownWith finds them by their environment on a Mac, which does not show that of programs that Apple ships.
func shownWith(marker string) []int {
	output, err := exec.Command("ps", "-Eww", "-axo", "pid=,command=").Output()
	if err != nil {
		return nil // another system's ps
	}
	var pids []int
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

type process struct{ pid, parent, group int }

// listProcesses lists all that are not dead, as every ps can.
func listProcesses() []process {
	output, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat=").Output()
	if err != nil {
		return nil
	}
	return parseProcesses(string(output))
}

func parseProcesses(output string) []process {
	var all []process
	scanner := bufio.NewScanner(strings.NewReader(output))
	for scanner.Scan() {
		var p process
		var state string
		if _, err := fmt.Sscan(scanner.Text(), &p.pid, &p.parent, &p.group, &state); err == nil && !strings.HasPrefix(state, "Z") {
			all = append(all, p)
		}
	}
	return all
}

// descendants of some roots, the roots themselves, and whoever shares a process group with one of them. Every root leads a group of
// its own.
func descendants(all []process, roots []int) []int {
	found, groups := map[int]bool{}, map[int]bool{}
	for again := true; again; {
		again = false
		for _, p := range all {
			if !found[p.pid] && (found[p.parent] || groups[p.group] || slices.Contains(roots, p.pid)) {
				found[p.pid], groups[p.group], again = true, true, true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
