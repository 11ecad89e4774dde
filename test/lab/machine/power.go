//go:build linux

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rebootStatus is what systemd-nspawn exits with when the machine wants to be started again.
const rebootStatus = 133

// pollInterval of conditions inside a machine, which have no event that could be waited for.
const pollInterval = 50 * time.Millisecond

// power is one time between power on and power off; it spans reboots.
type power struct {
	cgroups []string
	off     chan struct{} // closed when the machine has ended and will not start again
	err     error         // why; valid once off is closed

	mu      sync.Mutex
	process *os.Process // the systemd-nspawn of this boot
	cut     bool
}

// PowerOn plugs the machine in, starts it and waits until it has booted.
func (m *Machine) PowerOn(ctx context.Context) error {
	m.mu.Lock()
	on := m.power != nil
	m.mu.Unlock()
	if on {
		return fmt.Errorf("machine %s is on already", m.Name)
	}
	if err := m.Plug(ctx); err != nil {
		return err
	}
	entries, err := makeCgroups(m.site.enclosure, m.Name)
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	p := &power{off: make(chan struct{})}
	for _, entry := range entries {
		p.cgroups = append(p.cgroups, filepath.Dir(entry))
	}
	if err := p.boot(m, entries); err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	m.mu.Lock()
	m.power = p
	m.mu.Unlock()
	return m.waitBooted(ctx, p, 0)
}

// PowerOff cuts the power: the machine is gone at once, and so is its network, so that peers are not told.
func (m *Machine) PowerOff(ctx context.Context) error {
	m.mu.Lock()
	p := m.power
	m.power = nil
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("machine %s is off already", m.Name)
	}
	if err := m.Unplug(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	p.cut = true
	err := p.process.Kill()
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	<-p.off
	// Its processes may outlive systemd-nspawn; its disk is free when they are gone.
	return poll(ctx, "machine "+m.Name+": processes after power off", func() (bool, error) {
		gone := true
		for _, dir := range p.cgroups {
			for _, pid := range cgroupProcesses(dir) {
				gone = false
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return false, err
				}
			}
		}
		return gone, nil
	})
}

// Reboot restarts the machine in an orderly way and waits until it has booted again.
func (m *Machine) Reboot(ctx context.Context) error {
	m.mu.Lock()
	p := m.power
	m.mu.Unlock()
	if p == nil {
		return fmt.Errorf("machine %s is off", m.Name)
	}
	before, err := p.leader()
	if err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	if _, err := m.Exec(ctx, "systemctl --no-block reboot"); err != nil {
		return err
	}
	return m.waitBooted(ctx, p, before)
}

// boot starts the machine and goes on starting it while it asks for that.
func (p *power) boot(m *Machine, cgroups []string) error {
	console, err := os.OpenFile(filepath.Join(m.dir, "console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := m.nspawn(cgroups, console)
	if err := cmd.Start(); err != nil {
		console.Close()
		return fmt.Errorf("start systemd-nspawn: %w", err)
	}
	p.process = cmd.Process
	go func() {
		defer close(p.off)
		defer console.Close()
		for {
			err := cmd.Wait()
			p.mu.Lock()
			if p.cut || cmd.ProcessState.ExitCode() != rebootStatus {
				p.mu.Unlock()
				p.err = err
				return
			}
			cmd = m.nspawn(cgroups, console)
			if err := cmd.Start(); err != nil {
				p.mu.Unlock()
				p.err = err
				return
			}
			p.process = cmd.Process
			p.mu.Unlock()
		}
	}()
	return nil
}

// nspawn is the command of one boot. It enters its cgroups before it becomes systemd-nspawn: with --keep-unit that takes the
// cgroup it finds itself in for the machine's.
func (m *Machine) nspawn(cgroups []string, console io.Writer) *exec.Cmd {
	args := append([]string{"-ec", `while [ "$1" != -- ]; do echo 0 >"$1"; shift; done; shift; exec "$@"`, "sh"}, cgroups...)
	args = append(args, "--",
		"systemd-nspawn", "--quiet", "--boot", "--directory="+m.Path("/"), "--machine="+netnsPrefix+m.Name, "--hostname="+m.Name,
		"--network-namespace-path="+m.netnsPath(), "--register=no", "--keep-unit", "--settings=no", "--link-journal=no",
		"--resolv-conf=off", "--timezone=off", "--kill-signal=SIGRTMIN+3", "--console=pipe",
		// runc needs all capabilities, and three system calls that systemd-nspawn denies by default.
		"--capability=all", "--system-call-filter=add_key keyctl bpf",
		"--bind-ro="+m.site.options.Kubebin+":/usr/local/bin/kubelet",
		// overlayfs in overlayfs is refused, and the kubelet's state has to survive a reboot.
		"--bind="+filepath.Join(m.dir, "containerd")+":/var/lib/containerd",
		"--bind="+filepath.Join(m.dir, "kubelet")+":/var/lib/kubelet",
	)
	cmd := exec.Command("sh", args...)
	// CNI plugins write below /proc/sys/net.
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network")
	cmd.Stdout, cmd.Stderr = console, console
	return cmd
}

// leader is the process ID of the machine's init.
func (p *power) leader() (int, error) {
	p.mu.Lock()
	nspawn := p.process.Pid
	p.mu.Unlock()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", nspawn, nspawn))
	if err != nil {
		return 0, errNotRunning
	}
	for _, field := range strings.Fields(string(raw)) {
		status, err := os.ReadFile("/proc/" + field + "/status")
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(string(status), "\n")
		for line := range strings.Lines(string(status)) {
			// Process 1 of its innermost namespace, and past the exec of init.
			if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "NSpid:" && fields[len(fields)-1] == "1" && name == "Name:\tsystemd" {
				return strconv.Atoi(field)
			}
		}
	}
	return 0, errNotRunning
}

var errNotRunning = errors.New("the machine is not running")

// waitBooted waits for an init that is not before, for sshd and for the end of the boot.
func (m *Machine) waitBooted(ctx context.Context, p *power, before int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	state := "no init"
	err := poll(ctx, "boot", func() (bool, error) {
		select {
		case <-p.off:
			return false, fmt.Errorf("it ended while booting: %w", p.err)
		default:
		}
		leader, err := p.leader()
		if err != nil || leader == before {
			return false, nil // not started yet
		}
		if state, err = banner(ctx, netip.AddrPortFrom(m.Address, 22)); err != nil {
			state = err.Error()
			return false, nil
		}
		out, err := m.Exec(ctx, "systemctl is-system-running || true")
		if err != nil {
			state = err.Error()
			return false, nil
		}
		state = strings.TrimSpace(out)
		return state == "running" || state == "degraded", nil
	})
	if err != nil {
		return fmt.Errorf("machine %s: %w (last: %s); its console:\n%s", m.Name, err, state, tail(filepath.Join(m.dir, "console.log"), 30))
	}
	return nil
}

func banner(ctx context.Context, address netip.AddrPort) (string, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	start := make([]byte, 4)
	if _, err := io.ReadFull(conn, start); err != nil {
		return "", err
	}
	return string(start), nil
}

func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ok {
			return nil
		}
		if err := pause(ctx, pollInterval); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
