package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

const (
	lockWait = 30 * time.Second // ssh.Timeouts.Lock
	silence  = 90 * time.Second // three keepalive intervals
	glance   = 5 * time.Second
)

// machine is a machine with the remote half of a phase (pkg/ssh/remote): its lock, owner file and epochs, which outlive processes and
// reboots, and a kubelet.
type machine struct {
	w       *world
	address string
	lock    chan struct{} // holds one token while no phase has the lock

	mu      sync.Mutex
	up      bool
	down    chan struct{} // closed when it goes down
	owner   *ssh.Owner
	epochs  map[string]int64
	kubelet *kubelet
	fails   float64 // share of scripts that fail
}

type kubelet struct {
	node, providerID, host, token string
	labels                        map[string]string
	certified                     bool
}

func newMachine(w *world, address string) *machine {
	m := &machine{w: w, address: address, lock: make(chan struct{}, 1), up: true, down: make(chan struct{}), epochs: map[string]int64{}}
	m.lock <- struct{}{}
	return m
}

func (m *machine) state() (up bool, down <-chan struct{}, fails float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up, m.down, m.fails
}

// phase is one mutating phase as the machine sees it. stop is the client's word to end it.
func (m *machine) phase(p *process, s ssh.Script, stop <-chan struct{}) (int, error) {
	own := *s.Owner
	d := m.w.dice.roll("phase" + m.address + s.Phase + own.Claim)
	_, down, fails := m.state()
	timer := time.NewTimer(lockWait)
	defer timer.Stop()
	if m.w.sabotage != lockless {
		select {
		case <-m.lock:
			defer func() { m.lock <- struct{}{} }()
		case <-timer.C:
			return -1, fault.New(fault.Host, "HostBusy", nil, "the lock is held")
		case <-stop:
			return -1, errStopped
		case <-p.dead:
			return -1, errDead
		case <-down:
			return -1, lost()
		}
	}
	if err := m.admit(own, s.Phase); err != nil {
		return -1, err
	}
	ran := m.w.rules.began(m, p, s)
	defer m.w.rules.ended(ran)

	total := d.between(time.Second, map[string]time.Duration{"install": 40 * time.Second, "join": 25 * time.Second, "leave": 15 * time.Second}[s.Phase])
	code := 0
	switch {
	case d.chance(fails / 4):
		total = time.Hour // hangs
	case d.chance(fails):
		code = []int{1, 75}[d.n(2)]
	}
	acts := code == 0 || d.chance(0.5)
	effect, end, limit := time.After(d.upTo(total)), time.After(total), time.After(s.Timeout)
	quiet := time.Duration(0)
	var killed error
	var kill <-chan time.Time
	dead := p.dead
	for {
		select {
		case <-effect:
			if acts {
				m.act(s, own)
			}
		case <-end:
			if killed == nil && code == 0 && s.Phase == "leave" {
				m.mu.Lock()
				m.owner = nil
				m.mu.Unlock()
				ran.finished = true
			}
			if killed != nil {
				return -1, killed
			}
			if code != 0 {
				return code, fault.New(fault.Host, "ScriptFailed", nil, "exit code %d", code)
			}
			return 0, nil
		case <-limit:
			killed, kill = fault.New(fault.Host, "ScriptTimeout", nil, "time is up"), time.After(d.upTo(2500*time.Millisecond))
		case <-stop:
			killed, kill, stop = errStopped, time.After(d.upTo(2500*time.Millisecond)), nil
		case <-dead:
			dead = nil
			if m.hears(p) { // else it takes the machine as long as a cable that was cut
				killed, kill = errDead, time.After(d.upTo(2500*time.Millisecond))
			}
		case <-time.After(glance):
			if quiet += glance; m.hears(p) && dead != nil && !p.isPaused() {
				quiet = 0
			}
			if quiet >= silence && killed == nil {
				killed, kill = lost(), time.After(d.upTo(2500*time.Millisecond))
			}
		case <-kill:
			return -1, killed
		case <-down:
			return -1, lost()
		}
	}
}

var errStopped = errors.New("stopped")

func lost() error { return fault.New(fault.Network, "ConnectionLost", nil, "the connection broke") }

// hears tells whether the machine and a process's network are connected.
func (m *machine) hears(p *process) bool {
	up, _, _ := m.state()
	return up && !m.w.weatherOf(p.id.Instance).cut
}

// admit is k_claim: owner, epoch, and what is stored of them.
func (m *machine) admit(own ssh.Owner, phase string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.w.sabotage == unfenced {
		return nil
	}
	if o := m.owner; o != nil && (o.Cluster != own.Cluster || o.Host != own.Host) && o.String() != strings.TrimSpace(own.TakeOver) {
		return fault.New(fault.Host, "HostOwnedElsewhere", &ssh.OwnedElsewhere{Owner: o.String()}, "the machine belongs to another")
	}
	if stored := m.epochs[own.Host]; own.Epoch < stored {
		return fault.New(fault.Cluster, "StaleEpoch", &ssh.StaleEpoch{Stored: stored}, "epoch %d", own.Epoch)
	}
	m.epochs[own.Host] = own.Epoch
	if phase != "leave" || m.owner == nil || m.owner.Cluster != own.Cluster || m.owner.Host != own.Host {
		own.TakeOver = ""
		m.owner = &own
	}
	return nil
}

// act is what a script does.
func (m *machine) act(s ssh.Script, own ssh.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s.Phase {
	case "join":
		k := &kubelet{node: s.Env["KPSSH_NODE_NAME"], providerID: s.Env["KPSSH_PROVIDER_ID"], host: own.Host, labels: map[string]string{}}
		k.token, _, _ = strings.Cut(s.Env["KPSSH_BOOTSTRAP_TOKEN"], ".")
		for _, pair := range strings.Split(s.Env["KPSSH_NODE_LABELS"], ",") {
			if name, value, found := strings.Cut(pair, "="); found {
				k.labels[name] = value
			}
		}
		m.kubelet = k
		go m.register(k)
	case "leave":
		m.kubelet = nil
	}
}

// register makes the kubelet's Node, if the API server lets it in and it still runs then.
func (m *machine) register(k *kubelet) {
	d := m.w.dice.roll("register" + k.node)
	if !m.w.sleep(d.between(time.Second, 8*time.Second)) {
		return
	}
	labels := k.labels
	if d.chance(0.3) {
		labels = nil // a profile that passes none on
	}
	m.mu.Lock()
	runs, certified := m.kubelet == k && m.up, k.certified
	m.mu.Unlock()
	if !runs {
		return
	}
	if !certified {
		if _, err := m.w.api.get(key{kindSecret, metav1.NamespaceSystem, "bootstrap-token-" + k.token}); err != nil {
			return
		}
		m.mu.Lock()
		k.certified = true
		m.mu.Unlock()
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.node, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: k.providerID},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	_, _ = m.w.api.create(write{by: m.w.kubelets, verb: "create", knew: nobody}, node)
}

func nobody(string) bool { return false }

// facts is what the probe's script prints.
func (m *machine) facts(units []string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner, state := "", "inactive/disabled"
	if m.owner != nil {
		owner = fmt.Sprintf("%s epoch=%d", m.owner, m.owner.Epoch)
	}
	if m.kubelet != nil {
		state = "active/enabled"
	}
	said := fmt.Sprintf("kpssh.cpu=4\nkpssh.memory=8388608\nkpssh.arch=x86_64\nkpssh.time=%d\nkpssh.boot=1\nkpssh.owner=%s\n",
		time.Now().Unix(), owner)
	for index, unit := range units {
		shown := "inactive/" // no such unit here
		if unit == "kubelet" {
			shown = state
		}
		said += fmt.Sprintf("kpssh.unit.%d=%s\n", index, shown)
	}
	return said
}

// power turns the machine off or on. A kubelet that is enabled starts with it and registers again.
func (m *machine) power(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.up && !on:
		close(m.down)
	case !m.up && on:
		m.down = make(chan struct{})
		if m.kubelet != nil {
			go m.register(m.kubelet)
		}
	}
	m.up = on
}

// line is one connection.
type line struct {
	p *process
	m *machine
}

// Connect implements the controllers' Dialer.
func (p *process) Connect(ctx context.Context, t ssh.Target) (ssh.Session, error) {
	m := p.w.machines[t.Address]
	if err := p.pass(ctx, p.w.dice.roll(p.name+"dial"+t.Address).between(5*time.Millisecond, 300*time.Millisecond)); err != nil {
		return nil, err
	}
	if !m.hears(p) {
		if err := p.pass(ctx, 15*time.Second); err != nil {
			return nil, err
		}
		return nil, fault.New(fault.Network, "DialTimeout", nil, "no answer")
	}
	return &line{p, m}, nil
}

func (l *line) HostKeyFingerprint() string { return "SHA256:" + strings.Repeat("A", 43) }
func (l *line) Close() error               { return nil }

func (l *line) Run(ctx context.Context, s ssh.Script, _ ...ssh.Option) (ssh.Result, error) {
	none := ssh.Result{ExitCode: -1}
	if err := s.Validate(); err != nil {
		return none, err
	}
	if s.Owner == nil {
		if err := l.p.pass(ctx, l.p.w.dice.roll(l.p.name+"probe"+l.m.address).between(20*time.Millisecond, 2*time.Second)); err != nil {
			return none, err
		}
		if !l.m.hears(l.p) {
			return none, lost()
		}
		return ssh.Result{Stdout: ssh.NewOutput(l.m.facts(strings.Fields(s.Env["KPSSH_KUBELET_UNITS"])))}, nil
	}
	type outcome struct {
		code int
		err  error
	}
	ended, stop := make(chan outcome, 1), make(chan struct{})
	go func() {
		code, err := l.m.phase(l.p, s, stop)
		ended <- outcome{code, err}
	}()
	cancelled := ctx.Done()
	var giveUp <-chan time.Time
	quiet := time.Duration(0)
	var told *outcome
	for {
		if told != nil && l.m.hears(l.p) {
			if err := l.p.gate(); err != nil {
				return none, err
			}
			if ctx.Err() != nil {
				return none, fmt.Errorf("cancelled: %w", context.Cause(ctx))
			}
			return ssh.Result{ExitCode: told.code}, told.err
		}
		select {
		case o := <-ended:
			told = &o
		case <-time.After(glance):
			if quiet += glance; l.m.hears(l.p) {
				quiet = 0
			}
			if quiet >= silence {
				return none, lost()
			}
		case <-cancelled:
			if l.p.gate() != nil {
				return none, errDead
			}
			close(stop)
			cancelled, giveUp = nil, time.After(5*time.Second)
		case <-giveUp:
			return none, fmt.Errorf("cancelled: %w", context.Cause(ctx))
		case <-l.p.dead:
			return none, errDead
		}
	}
}
