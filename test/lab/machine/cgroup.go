//go:build linux

package machine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cgroupPrefix and the outside's process ID name an enclosure's cgroups.
	cgroupPrefix = "kpssh-lab-"
	cgroupRoot   = "/sys/fs/cgroup"
)

// hierarchies are the mounted cgroup trees: one on a v2 box, one per controller on v1, both kinds on a hybrid.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && (fields[2] == "cgroup" || fields[2] == "cgroup2") && strings.HasPrefix(fields[1], cgroupRoot) {
			dirs = append(dirs, fields[1])
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no cgroup file system is mounted below " + cgroupRoot)
	}
	return dirs, nil
}

// base is where in a hierarchy enclosures are made: where this process is, for on a box that is itself a container only that is
// ours; but the root of a pure v2 tree, since v2 gives no controllers to children of a cgroup that has processes.
func base(hierarchy string) string {
	if hierarchy == cgroupRoot {
		return hierarchy
	}
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return hierarchy
	}
	name := filepath.Base(hierarchy)
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(strings.TrimPrefix(parts[1], "name="), ",")
		if (parts[1] == "" && name == "unified") || slices.ContainsFunc(strings.Split(name, ","), func(c string) bool { return slices.Contains(controllers, c) }) {
			return filepath.Join(hierarchy, parts[2])
		}
	}
	return hierarchy
}

// makeCgroups makes a cgroup of that name in every hierarchy, and returns the cgroup.procs files by which a process enters them all.
func makeCgroups(enclosure, name string) ([]string, error) {
	dirs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var entries []string
	for _, hierarchy := range dirs {
		dir := base(hierarchy)
		for _, part := range []string{enclosure, name} {
			parent := dir
			dir = filepath.Join(dir, part)
			if hierarchy == cgroupRoot {
				if err := delegate(parent); err != nil {
					return nil, err
				}
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return nil, fmt.Errorf("make a cgroup: %w", err)
			}
			// A v1 cpuset without CPUs and memory nodes lets no process in.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inheritCpuset(parent, dir, file); err != nil {
					return nil, err
				}
			}
		}
		entries = append(entries, filepath.Join(dir, "cgroup.procs"))
	}
	return entries, nil
}

// delegate gives all controllers of a v2 cgroup to its children.
func delegate(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range strings.Fields(string(raw)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return fmt.Errorf("give controller %s to cgroups below %s: %w", controller, dir, err)
		}
	}
	return nil
}

func inheritCpuset(parent, dir, file string) error {
	current, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || len(bytes.TrimSpace(current)) > 0 {
		return nil // not a cpuset, or already set
	}
	value, err := os.ReadFile(filepath.Join(parent, file))
	if err != nil || len(bytes.TrimSpace(value)) == 0 {
		return nil // cgroup v2: empty means inherited
	}
	if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
		return fmt.Errorf("inherit %s: %w", file, err)
	}
	return nil
}

// cgroupProcesses are the processes in a cgroup and below it, as this process numbers them.
func cgroupProcesses(dir string) []int {
	var pids []int
	_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil // cgroups come and go while we look; one that went has no processes
		}
		raw, _ := os.ReadFile(path)
		scanner := bufio.NewScanner(bytes.NewReader(raw))
		for scanner.Scan() {
			if pid, err := strconv.Atoi(scanner.Text()); err == nil && pid > 0 { // 0: in another PID namespace than ours
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// enclosureCgroups are all cgroups of enclosures that exist on this box, by name.
func enclosureCgroups() map[string][]string {
	found := map[string][]string{}
	dirs, _ := hierarchies()
	for _, hierarchy := range dirs {
		matches, _ := filepath.Glob(filepath.Join(base(hierarchy), cgroupPrefix+"*"))
		for _, dir := range matches {
			found[filepath.Base(dir)] = append(found[filepath.Base(dir)], dir)
		}
	}
	return found
}

// removeCgroups removes an enclosure's cgroups, waiting a little for killed processes to be gone from them.
func removeCgroups(key string) error {
	deadline := time.Now().Add(10 * time.Second)
	for _, dir := range enclosureCgroups()[key] {
		for {
			err := removeTree(dir)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("left over: cgroup %s with processes %v: %w", dir, cgroupProcesses(dir), err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// sweepCgroups removes the empty cgroups of enclosures whose outside was killed.
func sweepCgroups() {
	for key, dirs := range enclosureCgroups() {
		pid, err := strconv.Atoi(strings.TrimPrefix(key, cgroupPrefix))
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		for _, dir := range dirs {
			_ = removeTree(dir) // fails on one that still has processes, which is then not ours to touch
		}
	}
}

// removeTree removes a cgroup and those below it; cgroup directories are removed by rmdir although they look full of files.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rmdir %s: %w", dir, err)
	}
	return nil
}
