//go:build linux

package machine

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

//go:embed apt-packages.txt
var aptPackages string

const (
	inotifySysctl = "/proc/sys/fs/inotify/max_user_instances"
	// Measured: a machine with a running kubelet holds 12 instances, a control plane 9. Beyond the limit kubelets crash in a
	// loop with "inotify_init: too many open files" and take all CPUs with them.
	inotifyPerMachine = 14
	inotifyReserve    = 40
	inotifyComfort    = 1024
)

// Preflight tells, before anything is built, whether this box can run that many machines, and what to do if not. It raises
// fs.inotify.max_user_instances if that is too low.
func Preflight(machines int) error {
	if os.Geteuid() != 0 {
		return errors.New("machines need root: run this as root (sudo -E make e2e)")
	}
	var missing []string
	for _, tool := range []string{"debootstrap", "ip", "nsenter", "systemd-nspawn", "tar", "zstd"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not installed: %s; run `make e2e-deps`, or: apt-get install --no-install-recommends %s",
			strings.Join(missing, ", "), strings.Join(strings.Fields(aptPackages), " "))
	}
	return ensureInotify(inotifySysctl, machines*inotifyPerMachine+inotifyReserve)
}

func ensureInotify(path string, need int) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the inotify limit: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if limit >= need {
		return nil
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(max(need, inotifyComfort))), 0o644); err != nil {
		return fmt.Errorf("fs.inotify.max_user_instances is %d, %d are needed, and it cannot be raised from here (%w); run: sysctl fs.inotify.max_user_instances=%d",
			limit, need, err, max(need, inotifyComfort))
	}
	return nil
}
