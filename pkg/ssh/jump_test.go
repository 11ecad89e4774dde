package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// offers remembers which keys were offered to a server.
type offers struct {
	mu   sync.Mutex
	keys []string
}

func (o *offers) all() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.keys, " ")
}

// jumpHost is a server that forwards, and runs nothing.
func jumpHost(t *testing.T, configure ...func(*sshtest.Server)) (*machine, *offers) {
	t.Helper()
	seen := &offers{}
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) {
		s.Forward = sshtest.Dial
		s.Configure = func(c *gossh.ServerConfig) {
			accept := c.PublicKeyCallback
			c.PublicKeyCallback = func(conn gossh.ConnMetadata, key gossh.PublicKey) (*gossh.Permissions, error) {
				seen.mu.Lock()
				seen.keys = append(seen.keys, gossh.FingerprintSHA256(key))
				seen.mu.Unlock()
				return accept(conn, key)
			}
		}
		for _, c := range configure {
			c(s)
		}
	})
	return m, seen
}

// pinned is the machine as a jump host must be listed.
func (m *machine) pinned() Target {
	m.t.Helper()
	target := m.target()
	pins, err := ParsePins([]byte(line(m.HostKeys[0])), target.Address, target.Port)
	if err != nil {
		m.t.Fatal(err)
	}
	target.Pins = pins
	return target
}

func via(t Target, jumps ...Target) Target {
	t.Jumps = jumps
	return t
}

// D4, section 3 #7, #33: a machine behind jump hosts is reached through all of them, also over IPv6, and each is offered its own key only.
func TestConnectionLeadsThroughJumpHosts(t *testing.T) {
	t.Parallel()
	first, firstSaw := jumpHost(t)
	second, secondSaw := jumpHost(t, func(s *sshtest.Server) { s.Listen = "[::1]:0" })
	m := newMachine(t)
	var mu sync.Mutex
	var dialled []string
	d := &Dialer{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, address)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	conn, err := d.Dial(t.Context(), via(m.target(), first.pinned(), second.pinned()))
	if err != nil {
		t.Fatal(err)
	}
	result, err := conn.Run(t.Context(), Script{Phase: "probe", Body: "echo reached", Timeout: time.Minute})
	if err != nil || !strings.Contains(result.Stdout.String(), "reached") {
		t.Fatalf("%v: %q", err, result.Stdout.String())
	}
	if len(dialled) != 1 || dialled[0] != first.Addr().String() {
		t.Errorf("dialled %v from here, want the first jump host alone", dialled)
	}
	if conn.HostKeyFingerprint() != fingerprint(m.HostKeys[0]) {
		t.Errorf("the connection shows the host key of a jump host")
	}
	if got, want := firstSaw.all(), first.key.Fingerprint(); strings.ReplaceAll(got, want, "") != strings.Repeat(" ", strings.Count(got, want)-1) {
		t.Errorf("the first jump host was offered %s, its own key is %s", got, want)
	}
	if got, want := secondSaw.all(), second.key.Fingerprint(); strings.ReplaceAll(got, want, "") != strings.Repeat(" ", strings.Count(got, want)-1) {
		t.Errorf("the second jump host was offered %s, its own key is %s", got, want)
	}
	if first.Sessions()+second.Sessions() != 0 {
		t.Error("a command ran on a jump host")
	}
	hops := conn.path.hops
	_ = conn.Close()
	for i, hop := range hops {
		select {
		case <-hop.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("the connection to jump host %d outlives the one through it", i+1)
		}
	}
}

// Issue 5 #6: a jump host that fails is never the machine's fault, and the error names the jump host.
func TestFailuresOfJumpHostsLieBeforeTheMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	good, _ := jumpHost(t)
	stranger, _ := newKey(t)
	other, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	quick := Timeouts{Handshake: time.Second, Auth: time.Second} // the good jump host has to be through by then
	for name, tc := range map[string]struct {
		edit   func(s *sshtest.Server)
		jump   func(m *machine) Target
		stall  sshtest.Stage
		blame  fault.Blame
		reason string
		words  []string
	}{
		"refuses the login": {jump: func(m *machine) Target { j := m.pinned(); j.Key = stranger; return j },
			blame: fault.Configuration, reason: "JumpHostRefused", words: []string{stranger.Fingerprint()}},
		"has another host key": {jump: func(m *machine) Target {
			j := m.target()
			j.Pins = Pins{keys: []gossh.PublicKey{other.PublicKey()}}
			return j
		}, blame: fault.Configuration, reason: "JumpHostKeyMismatch", words: []string{fingerprint(other)}},
		"is not pinned": {jump: func(m *machine) Target { j := m.target(); j.Trusted = fingerprint(m.HostKeys[0]); return j },
			blame: fault.Configuration, reason: "JumpHostPinMissing", words: []string{"knownHost"}},
		"has no key": {jump: func(m *machine) Target { j := m.pinned(); j.Key = Signer{}; return j },
			blame: fault.Configuration, reason: "KeyInvalid"},
		"forwards nothing": {edit: func(s *sshtest.Server) { s.Forward = nil }, jump: (*machine).pinned,
			blame: fault.Configuration, reason: "JumpHostRefused", words: []string{"AllowTcpForwarding"}},
		"stalls in the handshake": {stall: sshtest.StallHandshake, jump: (*machine).pinned,
			blame: fault.Network, reason: "JumpHostUnreachable", words: []string{"handshake"}},
		"stalls in the login": {stall: sshtest.StallAuthentication, jump: (*machine).pinned,
			blame: fault.Network, reason: "JumpHostUnreachable", words: []string{"authentication"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad, _ := jumpHost(t, func(s *sshtest.Server) {
				if tc.edit != nil {
					tc.edit(s)
				}
			})
			bad.Stall(tc.stall)
			jump := tc.jump(bad)
			before := m.Connections()
			d := &Dialer{}
			if tc.stall != sshtest.StallNowhere {
				d.Timeouts = quick
			}
			_, err := d.Dial(t.Context(), via(m.target(), good.pinned(), jump))
			wantFault(t, err, tc.blame, tc.reason, append(tc.words, "jump host 2 of 2 ("+jump.identity()+")")...)
			if !fault.Of(err).Before {
				t.Error("the machine is blamed")
			}
			if m.Connections() != before {
				t.Error("the machine was asked all the same")
			}
		})
	}
}

// A connection that the jump host cannot make to the machine is the machine's, or its network's: it is off.
func TestMachineThatIsOffBehindAJumpHost(t *testing.T) {
	t.Parallel()
	jump, _ := jumpHost(t)
	m := newMachine(t)
	target := via(m.target(), jump.pinned())
	m.Close()
	_, err := (&Dialer{}).Dial(t.Context(), target)
	wantFault(t, err, fault.Network, "DialFailed", "through jump host 1 of 1", "TCP connect")
	if fault.Of(err).Before {
		t.Error("the jump host is blamed")
	}
}

// The jump host is asked for a sign of life before the machine is blamed for a silence.
func TestSilenceBehindAJumpHost(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		jump, _ := jumpHost(t, func(s *sshtest.Server) { s.Silent = silent })
		jump.Stall(sshtest.StallForward)
		m := newMachine(t)
		d := &Dialer{Timeouts: Timeouts{TCP: time.Second}}
		if silent {
			d.Timeouts.Alive = time.Second
		}
		_, err := d.Dial(t.Context(), via(m.target(), jump.pinned()))
		if silent {
			wantFault(t, err, fault.Network, "JumpHostUnreachable", "jump host 1 of 1")
		} else {
			wantFault(t, err, fault.Network, "DialTimeout", "through jump host 1 of 1")
		}
		if fault.Of(err).Before != silent {
			t.Errorf("silent %t: before the machine: %t", silent, fault.Of(err).Before)
		}
	}
}

func TestJumpHostThatDiesDuringAScript(t *testing.T) {
	t.Parallel()
	jump, _ := jumpHost(t)
	m := newMachine(t)
	conn, err := (&Dialer{}).Dial(t.Context(), via(m.target(), jump.pinned()))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Run(t.Context(), Script{Phase: "probe", Body: "touch begun; sleep 600", Timeout: time.Hour})
		ended <- err
	}()
	await(t, "the script", func() bool { return processes(t, "sleep 600") > 0 || m.Sessions() > 0 })
	jump.Drop()
	err = <-ended
	if f := fault.Of(err); f == nil || f.Reason != "JumpHostUnreachable" || !f.Before {
		t.Fatalf("got %+v", f)
	}
}

func TestCancelledOnTheWay(t *testing.T) {
	t.Parallel()
	first, _ := jumpHost(t)
	second, _ := jumpHost(t)
	second.Stall(sshtest.StallHandshake)
	m := newMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d := &Dialer{}
	go func() {
		_, err := d.Dial(ctx, via(m.target(), first.pinned(), second.pinned()))
		ended <- err
	}()
	await(t, "the second jump host", func() bool { return second.Connections() > 0 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || errors.As(err, new(*fault.Error)) {
		t.Fatalf("got %v", err)
	}
	for _, jump := range []*machine{first, second} {
		if !d.slots.slot(jump.pinned().identity(), 8).TryAcquire(8) {
			t.Error("a slot was not given back")
		}
	}
}

func TestWaysThatGoInCircles(t *testing.T) {
	t.Parallel()
	key, _ := newKey(t)
	host, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string, port int) Target {
		return Target{Address: address, Port: port, Key: key, Pins: Pins{keys: []gossh.PublicKey{host.PublicKey()}}}
	}
	for name, target := range map[string]Target{
		"a jump host twice":                 via(at("10.0.0.9", 22), at("10.0.0.1", 0), at("10.0.0.1", 22)),
		"the machine itself":                via(at("fd00::1", 22), at("[fd00:0:0::1]", 22)),
		"another spelling of the same name": via(at("m.example", 22), at("Jump.example.", 22), at("jump.example", 22)),
	} {
		_, err := (&Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
			t.Errorf("%s: something was dialled", name)
			return nil, errors.New("no")
		}}).Dial(t.Context(), target)
		wantFault(t, err, fault.Configuration, "JumpHostLoop", "twice")
		if !fault.Of(err).Before {
			t.Errorf("%s: the machine is blamed", name)
		}
	}
}

// Issue 5 #6, connection caps: no more connections lead through a jump host at a time than it lets in, and a wait for one ends in time.
func TestConnectionsThroughAJumpHostAreCapped(t *testing.T) {
	t.Parallel()
	jump, _ := jumpHost(t)
	m := newMachine(t)
	target := via(m.target(), jump.pinned())
	d := &Dialer{JumpHostConnections: 1}
	first, err := d.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = d.Dial(ctx, target)
	wantFault(t, err, fault.Cluster, "JumpHostBusy", "JUMP_HOST_CONNECTIONS", target.Jumps[0].identity())
	if jump.Connections() != 1 {
		t.Errorf("%d connections to the jump host", jump.Connections())
	}
	if direct, err := d.Dial(t.Context(), m.target()); err != nil {
		t.Errorf("a direct connection waits for the jump host: %v", err)
	} else {
		_ = direct.Close()
	}
	_ = first.Close()

	// Failures give their slot back too.
	broken := target
	broken.Key, _ = newKey(t)
	for range 3 {
		if _, err := d.Dial(t.Context(), broken); err == nil {
			t.Fatal("logged in with a foreign key")
		}
	}
	again, err := d.Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// Two ways over the same jump hosts in opposite directions do not wait for each other for ever.
func TestOppositeWaysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	ab := []Target{{Address: "10.0.0.1"}, {Address: "10.0.0.2"}}
	ba := []Target{ab[1], ab[0]}
	s := &slots{}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var done sync.WaitGroup
	for i := range 8 {
		way := ab
		if i%2 == 0 {
			way = ba
		}
		done.Go(func() {
			for range 2000 {
				release, err := s.take(ctx, way, 1)
				if err != nil {
					t.Error(err)
					return
				}
				release()
			}
		})
	}
	done.Wait()
}

func TestJumpHostNames(t *testing.T) {
	t.Parallel()
	got := JumpName(1, 3, Target{Address: "fd00::2"})
	if want := "jump host 2 of 3 ([fd00::2]:22)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if text := fmt.Sprintf("%#v", Target{Address: "h", Jumps: []Target{{Address: "j"}}}); strings.Contains(text, "inner") {
		t.Error(text)
	}
}
