package sim

import (
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// Machine is one simulated machine.
type Machine struct {
	fleet    *Fleet
	spec     Spec
	root     string
	port     int
	id       string
	services *services
	journal  journal

	// power serialises what changes whether the machine is on or reachable.
	power sync.Mutex

	mu          sync.Mutex
	on          bool
	diskFull    bool
	bootID      string
	hostKey     ssh.Signer
	server      *sshtest.Server
	closing     sync.WaitGroup
	stall       sshtest.Stage
	past        Counters // of the servers before this one
	commands    map[*exec.Cmd]bool
	runs        map[string]int
	misfortunes map[string]string
}

func newMachine(f *Fleet, spec Spec, root string, port int) (*Machine, error) {
	m := &Machine{
		fleet: f, spec: spec, root: root, port: port, id: string(uuid.NewUUID()),
		commands: map[*exec.Cmd]bool{}, runs: map[string]int{}, misfortunes: map[string]string{},
	}
	m.services = newServices(filepath.Join(root, "etc/systemd/system"), m.runService)
	var err error
	if m.hostKey, err = sshtest.NewHostKey(); err != nil {
		return nil, err
	}
	return m, m.format()
}

// Name of the machine.
func (m *Machine) Name() string { return m.spec.Name }

// Root is the directory that is the machine's disk.
func (m *Machine) Root() string { return m.root }

// Address and Port are where its SSH server listens.
func (m *Machine) Address() string { return "127.0.0.1" }

// Port of the SSH server; it stays the same for the machine's life.
func (m *Machine) Port() int { return m.port }

// NodeIP is the InternalIP of the machine's Node.
func (m *Machine) NodeIP() string { return m.spec.NodeIP }

// HostKey is the one that the machine presents now.
func (m *Machine) HostKey() ssh.PublicKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hostKey.PublicKey()
}

// Journal is what happened on the machine, in order.
func (m *Machine) Journal() []Entry { return m.journal.all() }

// KubeletActive tells whether the kubelet's unit runs.
func (m *Machine) KubeletActive() bool { return m.services.isActive("kubelet") }

// Counters of everything that was done to the machine.
func (m *Machine) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.past
	if m.server != nil {
		c.add(m.server)
	}
	c.Runs = maps.Clone(m.runs)
	return c
}

func (c *Counters) add(server *sshtest.Server) {
	c.Handshakes += int64(server.Handshakes())
	c.AuthAttempts += int64(server.AuthAttempts())
	c.Sessions += int64(server.Sessions())
}

// PowerOn boots the machine: a new boot ID, SSH, and the units that are enabled. It does nothing to one that is on.
func (m *Machine) PowerOn() error {
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	if m.on {
		m.mu.Unlock()
		return nil
	}
	m.on = true
	m.bootID = string(uuid.NewUUID())
	m.mu.Unlock()
	m.journal.add(EntryPower, "on", "")
	if err := os.WriteFile(filepath.Join(m.root, "proc/boot_id"), []byte(m.bootID+"\n"), 0o644); err != nil {
		return err
	}
	if err := m.startSSH(); err != nil {
		return err
	}
	m.services.powerOn()
	return nil
}

// PowerOff is the plug being pulled: connections break, every process is gone, the disk stays. It returns when that is so.
func (m *Machine) PowerOff() {
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	if !m.on {
		m.mu.Unlock()
		return
	}
	m.on = false
	m.mu.Unlock()
	m.journal.add(EntryPower, "off", "")
	m.stopSSH()
	m.services.powerOff()
	// Commands whose connection broke would end by themselves at last, which is not how a power cut looks.
	m.killCommands()
}

// killCommands returns when no command and no process of one is left.
func (m *Machine) killCommands() {
	ended := make(chan struct{})
	go func() {
		m.closing.Wait()
		close(ended)
	}()
	for {
		m.fleet.killProcesses(m)
		select {
		case <-ended:
			m.fleet.killProcesses(m)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Reboot is PowerOff and PowerOn.
func (m *Machine) Reboot() error {
	m.PowerOff()
	return m.PowerOn()
}

// Reimage gives a machine that is off an empty disk and a new host key, as a provisioning tool would.
func (m *Machine) Reimage() error {
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	on := m.on
	m.mu.Unlock()
	if on {
		return errors.New("switch the machine off first")
	}
	key, err := sshtest.NewHostKey()
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.hostKey = key
	m.mu.Unlock()
	m.services.forget()
	return m.format()
}

// shutDown is PowerOff for a machine that will not be needed again; the fleet kills all its processes at once.
func (m *Machine) shutDown() {
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	m.on = false
	m.mu.Unlock()
	m.stopSSH()
	m.services.powerOff()
}

func (m *Machine) startSSH() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	server := &sshtest.Server{
		Listen:         net.JoinHostPort(m.Address(), strconv.Itoa(m.port)),
		HostKeys:       []ssh.Signer{m.hostKey},
		AuthorizedKeys: []ssh.PublicKey{m.fleet.loginKey.PublicKey()},
		Exec:           m.execute,
	}
	server.Stall(m.stall)
	if err := server.Start(); err != nil {
		return err
	}
	m.server = server
	return nil
}

// stopSSH breaks all connections. It does not wait for commands: they end when they notice.
func (m *Machine) stopSSH() {
	m.mu.Lock()
	server := m.server
	m.server = nil
	if server != nil {
		m.past.add(server)
	}
	m.mu.Unlock()
	if server == nil {
		return
	}
	closed := make(chan struct{})
	m.closing.Go(func() {
		go func() {
			// Close first shuts the port and the connections, then waits for the commands.
			server.Close()
			close(closed)
		}()
		<-closed
	})
	m.awaitPortClosed(closed)
}

// awaitPortClosed returns when nobody listens any more, so that what a test does next meets the machine it expects.
func (m *Machine) awaitPortClosed(closed <-chan struct{}) {
	address := net.JoinHostPort(m.Address(), strconv.Itoa(m.port))
	for {
		select {
		case <-closed:
			return
		default:
		}
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return
		}
		conn.Close()
	}
}

// beginPhase counts a script's run and returns the misfortune that it meets.
func (m *Machine) beginPhase(phase, node, user string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[phase]++
	m.journal.append(Entry{Kind: EntryPhase, Detail: phase, Node: node, User: user})
	return m.misfortunes[phase]
}
