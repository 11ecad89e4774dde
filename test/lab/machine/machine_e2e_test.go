//go:build linux && e2e

package machine

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// victimVariable makes a copy of this test binary boot a machine, say so, and wait to be killed.
const victimVariable = "KPSSH_ENCLOSURE_VICTIM"

func TestMain(m *testing.M) {
	if code, inside := Enclose(prepare); !inside {
		os.Exit(code)
	}
	if os.Getenv(victimVariable) != "" {
		os.Exit(victim())
	}
	os.Exit(m.Run())
}

func prepare() error {
	ctx := context.Background()
	if err := Preflight(3); err != nil {
		return err
	}
	_, err := options(ctx)
	return err
}

func options(ctx context.Context) (Options, error) {
	root, err := lab.Root()
	if err != nil {
		return Options{}, err
	}
	rootfs, err := RootFS(ctx, os.Stderr)
	if err != nil {
		return Options{}, err
	}
	binaries, err := lab.Binaries(ctx, os.Stderr)
	if err != nil {
		return Options{}, err
	}
	program, err := Pause(ctx, root)
	return Options{RootFS: rootfs, Kubebin: binaries + "/kubelet", Pause: program, Log: os.Stderr}, err
}

func victim() int {
	ctx := context.Background()
	o, err := options(ctx)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_, m, err := oneMachine(ctx, o)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("booted", m.Name)
	select {}
}

func oneMachine(ctx context.Context, o Options) (*Station, *Machine, error) {
	site, err := NewSite(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	segment, err := site.Segment(ctx, "a")
	if err != nil {
		return nil, nil, err
	}
	station, err := segment.Station(ctx, "ctl-a")
	if err != nil {
		return nil, nil, err
	}
	m, err := segment.Machine(ctx, "a1")
	if err != nil {
		return nil, nil, err
	}
	return station, m, m.PowerOn(ctx)
}

func TestMachine(t *testing.T) {
	ctx := t.Context()
	o, err := options(ctx)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	site, err := NewSite(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("site: %s", time.Since(start))
	a, err := site.Segment(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := site.Segment(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	station, err := a.Station(ctx, "ctl-a")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := b.Station(ctx, "ctl-b")
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.Machine(ctx, "a1")
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	if err := m.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("boot: %s", time.Since(start))

	t.Run("is a healthy systemd machine", func(t *testing.T) {
		if failed := sh(t, m, "systemctl --failed --plain --no-legend"); failed != "" {
			t.Errorf("failed units:\n%s\n%s", failed, sh(t, m, "journalctl --no-pager --lines 50 --unit "+strings.Fields(failed)[0]))
		}
		if images := sh(t, m, "ctr --namespace k8s.io images list --quiet"); !strings.Contains(images, PauseImage) {
			t.Errorf("images: %q lack %s", images, PauseImage)
		}
		if version := sh(t, m, "kubelet --version"); !strings.HasPrefix(version, "Kubernetes v1.") {
			t.Errorf("kubelet --version: %q", version)
		}
	})

	t.Run("is reached by its segment, as root and as a user with sudo", func(t *testing.T) {
		before, err := m.Connections(station)
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range []string{"root", User} {
			if out, err := overSSH(site, station, m, user, "sudo -n id -u"); err != nil || out != "0\n" {
				t.Errorf("as %s: %q, %v", user, out, err)
			}
		}
		after, err := m.Connections(station)
		if err != nil {
			t.Fatal(err)
		}
		if after-before != 2 {
			t.Errorf("counted %d connections, made 2", after-before)
		}
	})

	t.Run("is not reached by another segment, which does reach the hub", func(t *testing.T) {
		here, there := tap(t, m.Station), tap(t, stranger)
		if err := connect(t, stranger, m.Address.String()); err == nil {
			t.Errorf("%s reaches %s", stranger.Address, m.Address)
		}
		if err := connect(t, station, m.Address.String()); err != nil {
			t.Errorf("%s does not reach %s: %v", station.Address, m.Address, err)
		}
		sshd := netip.AddrPortFrom(m.Address, 22)
		theirs, ours := Dial{From: stranger.Address, To: sshd}, Dial{From: station.Address, To: sshd}
		if seen := dials(t, there); seen[theirs] == 0 || len(seen) != 1 {
			t.Errorf("the tap at the other segment's station saw %v", seen)
		}
		if seen := dials(t, here); seen[ours] != 1 || len(seen) != 1 {
			t.Errorf("the tap at the machine saw %v", seen)
		}
		listener, err := net.Listen("tcp", HubAddress.String()+":22")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if err := connect(t, stranger, HubAddress.String()); err != nil {
			t.Errorf("%s does not reach the hub: %v", stranger.Address, err)
		}
	})

	t.Run("keeps its disk over reboot and power loss", func(t *testing.T) {
		boots := map[string]bool{sh(t, m, "cat /proc/sys/kernel/random/boot_id"): true}
		sh(t, m, "echo kept >/etc/kept; echo kept >/var/lib/kubelet/kept; sync")
		start := time.Now()
		if err := m.Reboot(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("reboot: %s", time.Since(start))
		boots[sh(t, m, "cat /proc/sys/kernel/random/boot_id")] = true
		if err := m.PowerOff(ctx); err != nil {
			t.Fatal(err)
		}
		if err := connect(t, station, m.Address.String()); err == nil {
			t.Error("a machine without power answers")
		}
		if err := m.PowerOn(ctx); err != nil {
			t.Fatal(err)
		}
		boots[sh(t, m, "cat /proc/sys/kernel/random/boot_id")] = true
		if len(boots) != 3 {
			t.Errorf("boot IDs %v, want 3 different ones", boots)
		}
		if out := sh(t, m, "cat /etc/kept /var/lib/kubelet/kept"); out != "kept\nkept\n" {
			t.Errorf("kept %q", out)
		}
	})

	t.Run("presents another host key after rotation", func(t *testing.T) {
		before := m.HostKey()
		if err := m.RotateHostKey(ctx); err != nil {
			t.Fatal(err)
		}
		if string(before.Marshal()) == string(m.HostKey().Marshal()) {
			t.Error("the key is the same")
		}
		if _, err := overSSH(site, station, m, "root", "true"); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingSurvivesTheOutside kills an enclosure that has a machine running, from outside, without a chance to clean up.
func TestNothingSurvivesTheOutside(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "KPSSH_ENCLOSURE") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, victimVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	before, err := traces()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%s%d", cgroupPrefix, cmd.Process.Pid)
	scanner := bufio.NewScanner(out)
	if !scanner.Scan() || !strings.HasPrefix(scanner.Text(), "booted") {
		t.Fatalf("the victim says %q", scanner.Text())
	}
	running := 0
	for _, dir := range enclosureCgroups()[key] {
		running += len(cgroupProcesses(dir))
	}
	if running == 0 {
		t.Fatal("found no processes of the victim: the checks below would see nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := removeCgroups(key); err != nil {
		t.Error(err)
	}
	// The kernel takes mounts and networks away with the last process; the check above has waited for that one.
	if err := leftovers(before); err != nil {
		t.Error(err)
	}
}

func sh(t *testing.T, m *Machine, line string) string {
	t.Helper()
	out, err := m.Exec(t.Context(), line)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func connect(t *testing.T, from *Station, address string) error {
	t.Helper()
	out, err := from.Command(t.Context(), "bash", "-c", "exec timeout 2 bash -c '</dev/tcp/"+address+"/22'").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// overSSH runs a line on the machine, logged in from a station.
func overSSH(site *Site, from *Station, m *Machine, user, line string) (string, error) {
	client, err := from.dialSSH(m.Address.String()+":22", &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(site.login)}, HostKeyCallback: ssh.FixedHostKey(m.HostKey()), Timeout: 10 * time.Second,
	})
	if err != nil {
		return "", err
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	out, err := session.Output(line)
	return string(out), err
}
