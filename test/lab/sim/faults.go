package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// Inject makes every coming run of a phase's script (install, join or leave) run this bash first, in a process of its own; a
// non-zero exit fails the phase. Empty: no misfortune.
func (m *Machine) Inject(phase, bash string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.misfortunes[phase] = bash
}

// Slow makes a phase take that much longer.
func (m *Machine) Slow(phase string, d time.Duration) {
	m.Inject(phase, fmt.Sprintf("sleep %.3f", d.Seconds()))
}

// Fail makes a phase fail with an exit code and a last line on stderr.
func (m *Machine) Fail(phase string, code int, message string) {
	m.Inject(phase, fmt.Sprintf("printf '%%s\\n' '%s' >&2; exit %d", strings.ReplaceAll(message, "'", `'\''`), code))
}

// Heal takes every fault back, but for the power and the host key.
func (m *Machine) Heal() error {
	m.mu.Lock()
	clear(m.misfortunes)
	m.diskFull = false
	m.mu.Unlock()
	m.Stall(sshtest.StallNowhere)
	return m.Reconnect()
}

// Stall makes the SSH server go silent at a stage, with the connection open: a tarpit. It is StallNowhere that ends it, for
// new connections; those that were stalled stay so until they are closed.
func (m *Machine) Stall(at sshtest.Stage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stall = at
	if m.server != nil {
		m.server.Stall(at)
	}
}

// Disconnect takes the machine off the network as far as SSH is concerned: connections break, new ones are refused. The machine
// itself, its kubelet and the commands that run on it go on.
func (m *Machine) Disconnect() {
	m.power.Lock()
	defer m.power.Unlock()
	m.stopSSH()
}

// Reconnect ends Disconnect.
func (m *Machine) Reconnect() error {
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	needed := m.on && m.server == nil
	m.mu.Unlock()
	if !needed {
		return nil
	}
	return m.startSSH()
}

// DropConnections breaks the connections there are; new ones are accepted.
func (m *Machine) DropConnections() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server != nil {
		m.server.Drop()
	}
}

// ChangeHostKey gives the machine another one.
func (m *Machine) ChangeHostKey() error {
	key, err := sshtest.NewHostKey()
	if err != nil {
		return err
	}
	m.power.Lock()
	defer m.power.Unlock()
	m.stopSSH()
	m.mu.Lock()
	m.hostKey = key
	on := m.on
	m.mu.Unlock()
	if !on {
		return nil
	}
	return m.startSSH()
}

// FillDisk makes commands that start from now on unable to write files, or able again.
func (m *Machine) FillDisk(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.diskFull = full
}

// SkewClock sets how far the machine's clock is off, for commands that start from now on.
func (m *Machine) SkewClock(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spec.ClockSkew = int(by / time.Second)
}
