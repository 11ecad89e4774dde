//go:build linux

package machine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// Machine is a whole Linux machine: its own systemd, sshd, containerd and, once joined, kubelet. Its disk survives Reboot and
// PowerOff.
type Machine struct {
	*Station

	site *Site
	dir  string

	mu      sync.Mutex
	hostKey ssh.PublicKey
	power   *power // nil while the machine is off
}

// Machine makes a machine on the segment; PowerOn starts it.
func (s *Segment) Machine(ctx context.Context, name string) (*Machine, error) {
	station, err := s.Station(ctx, name)
	if err != nil {
		return nil, err
	}
	m := &Machine{Station: station, site: s.site, dir: filepath.Join(stateDir, "machines", name)}
	for _, dir := range []string{"upper", "work", "root", "containerd", "kubelet"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s", s.site.common, s.site.rootfs, filepath.Join(m.dir, "upper"), filepath.Join(m.dir, "work"))
	if err := unix.Mount("overlay", m.Path("/"), "overlay", 0, layers); err != nil {
		return nil, fmt.Errorf("machine %s: mount its disk: %w", name, err)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	for path, content := range map[string]string{
		// With an ID of its own the machine does not take its first boot for one, which would reset which units are enabled.
		"/etc/machine-id": hex.EncodeToString(id[:]) + "\n",
		"/etc/hostname":   name + "\n",
		"/etc/hosts":      fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", station.Address, name),
	} {
		if err := os.WriteFile(m.Path(path), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	return m, m.writeHostKey()
}

// Path is where the caller finds a file of the machine's disk, also while the machine is off. Mounts inside the machine, such as
// /run, do not show there.
func (m *Machine) Path(path string) string { return filepath.Join(m.dir, "root", path) }

// HostKey is the key that the machine's sshd presents.
func (m *Machine) HostKey() ssh.PublicKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hostKey
}

// RotateHostKey gives the machine's sshd another host key, as a reinstallation does.
func (m *Machine) RotateHostKey(ctx context.Context) error {
	if err := m.writeHostKey(); err != nil {
		return err
	}
	_, err := m.Exec(ctx, "systemctl restart ssh.service")
	return err
}

func (m *Machine) writeHostKey() error {
	signer, private, err := newKey()
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.Path("/etc/ssh/ssh_host_lab_key"), private, 0o600); err != nil {
		return fmt.Errorf("machine %s: write its host key: %w", m.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hostKey = signer.PublicKey()
	return nil
}

// Exec runs a line of bash on the machine, as root, without SSH, and returns what it printed. The error holds what it complained.
func (m *Machine) Exec(ctx context.Context, line string) (string, error) {
	m.mu.Lock()
	power := m.power
	m.mu.Unlock()
	if power == nil {
		return "", fmt.Errorf("machine %s is off", m.Name)
	}
	leader, err := power.leader()
	if err != nil {
		return "", fmt.Errorf("machine %s: %w", m.Name, err)
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--target", fmt.Sprint(leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--",
		"bash", "-c", line)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C"}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("machine %s: %q: %w: %s", m.Name, line, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Connections counts the SSH connections that came from that station since the machine was made.
func (m *Machine) Connections(from *Station) (int, error) {
	log, err := os.ReadFile(m.Path("/var/log/sshd.log"))
	if err != nil {
		if os.IsNotExist(err) {
			return 0, nil
		}
		return 0, err
	}
	return strings.Count(string(log), "Connection from "+from.Address.String()+" port "), nil
}
