//go:build linux

package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// traces are the mounts, named network namespaces and network links of an enclosure that can be seen from where the caller is.
// Outside there should be none, and inside only one's own: compare before and after.
func traces() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, stateDir) || strings.Contains(line, "/run/netns/"+netnsPrefix) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{
		"/run/netns/" + netnsPrefix + "*", "/sys/class/net/" + bridgePrefix + "*", "/sys/class/net/" + vethPrefix + "*",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, paths...)
	}
	return found, nil
}

// leftovers fails when there are traces that were not there before.
func leftovers(before []string) error {
	after, err := traces()
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(after, func(trace string) bool { return slices.Contains(before, trace) })
	if len(left) > 0 {
		return fmt.Errorf("left over: %s", strings.Join(left, ", "))
	}
	return nil
}
