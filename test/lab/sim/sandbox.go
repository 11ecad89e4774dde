package sim

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

//go:embed bin
var standIns embed.FS

// installStandIns writes the stand-ins that all machines share into dir.
func installStandIns(dir, bash string) error {
	return fs.WalkDir(standIns, "bin", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := standIns.ReadFile(path)
		if err != nil {
			return err
		}
		// Not every system has it there, and /usr/bin/env would be one more program to start.
		content = bytes.Replace(content, []byte("#!/bin/bash\n"), []byte("#!"+bash+"\n"), 1)
		return os.WriteFile(filepath.Join(dir, entry.Name()), content, 0o755)
	})
}

// installUtilLinux puts flock and setsid into dir if they are missing, or if it must.
func installUtilLinux(ctx context.Context, dir string, must bool) error {
	_, flockErr := exec.LookPath("flock")
	_, setsidErr := exec.LookPath("setsid")
	if !must && flockErr == nil && setsidErr == nil {
		return nil
	}
	binary, err := lab.Build(ctx, "test/lab/sim/utillinux")
	if err != nil {
		return err
	}
	return errors.Join(os.Symlink(binary, filepath.Join(dir, "flock")), os.Symlink(binary, filepath.Join(dir, "setsid")))
}

// replacements is what changes in everything that is sent to a machine.
func (f *Fleet) replacements() []sshtest.Replacement {
	if f.portable && runtime.GOOS == "linux" {
		return slices.Concat(replacements, sshtest.Bash3WithoutProc)
	}
	return replacements
}

// findBash insists on what the remote half of the transport needs at least: what macOS ships.
func findBash() (string, error) {
	path, err := exec.LookPath("bash")
	if err != nil {
		return "", fmt.Errorf("simulated machines run their scripts with bash: %w", err)
	}
	if err := exec.Command(path, "-c", "((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 302))").Run(); err != nil {
		return "", fmt.Errorf("%s is older than bash 3.2, which simulated machines need", path)
	}
	return path, nil
}

// environment is what a command finds on the machine: nothing of the lab's own, above all no KUBECONFIG.
func (m *Machine) environment() []string {
	path := []string{m.fleet.bin, filepath.Dir(m.fleet.bash), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"}
	m.mu.Lock()
	defer m.mu.Unlock()
	return []string{
		"PATH=" + strings.Join(path, ":"),
		"HOME=" + filepath.Join(m.root, "root"), "USER=root", "LOGNAME=root", "SHELL=" + m.fleet.bash,
		"TMPDIR=" + filepath.Join(m.root, "tmp"),
		"KPSSH_STATE_DIR=" + filepath.Join(m.root, "var/lib/kpssh"),
		"SIM_ROOT=" + m.root,
		"SIM_MACHINE=" + m.spec.Name,
		"SIM_PORT=" + m.fleet.control.port,
		"SIM_TOKEN=" + m.fleet.token,
		"SIM_CPU=" + fmt.Sprint(m.spec.CPU),
		"SIM_UNAME=" + m.spec.uname(),
		"SIM_CLOCK_SKEW=" + fmt.Sprint(m.spec.ClockSkew),
		memInfoVariable + "=" + filepath.Join(m.root, "proc/meminfo"),
		bootIDVariable + "=" + filepath.Join(m.root, "proc/boot_id"),
		m.marker(),
	}
}

// marker is in the environment of every process of this run of the machine, so that they can be found.
func (m *Machine) marker() string { return "SIM_RUN=" + m.fleet.token + "/" + m.spec.Name + "/" }

// format makes an empty disk.
func (m *Machine) format() error {
	if err := os.RemoveAll(m.root); err != nil {
		return err
	}
	for _, dir := range []string{"root", "tmp", "proc", "opt/kubelet", "etc/kubernetes", "etc/systemd/system", "var/lib/kubelet", "var/log"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
			return err
		}
	}
	meminfo := fmt.Sprintf("MemTotal:       %d kB\nMemFree:        %d kB\n", m.spec.Memory.Value()/1024, m.spec.Memory.Value()/2048)
	return os.WriteFile(filepath.Join(m.root, "proc/meminfo"), []byte(meminfo), 0o644)
}
