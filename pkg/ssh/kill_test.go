package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// stubborn is a script that leaves processes in every way there is to leave one, then waits. Each sleeps for a number of seconds
// that no other process sleeps for.
func stubborn(id string) string {
	return strings.ReplaceAll(`
trap '' TERM HUP INT
sleep ID0 &
setsid sleep ID1 &
(setsid setsid sleep ID2 &) &
nohup bash -c 'trap "" TERM; sleep ID3; sleep ID4' >/dev/null 2>&1 &
env -i sleep ID5 &
setsid bash -c 'env -i sleep ID6 & env -i bash -c "sleep ID7; :" & wait' &
bash -c 'kill -STOP $$; sleep ID8' &
until [[ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -cx 'ID[0-7]') -ge 7 ]]; do sleep 0.2; done
echo up > up
sleep ID9
`, "ID", id)
}

var ids atomic.Int64

// uniqueID is a prefix of a number of seconds.
func uniqueID() string { return fmt.Sprintf("%d%03d", os.Getpid(), 100+ids.Add(1)) }

// Section 3 #5: no process of a phase outlives its time-out, its cancellation, or its connection, however the connection ends.
func TestNoProcessSurvives(t *testing.T) {
	t.Parallel()
	type end struct {
		timeout   time.Duration
		keepalive time.Duration
		// act ends the phase once its processes are up.
		act  func(m *machine, c *Conn, cancel func(), pipe *blackhole)
		want func(t *testing.T, err error)
	}
	lost := func(t *testing.T, err error) { wantFault(t, err, fault.Network, "ConnectionLost") }
	for name, tc := range map[string]end{
		"time-out": {timeout: 3 * time.Second, act: func(*machine, *Conn, func(), *blackhole) {},
			want: func(t *testing.T, err error) { wantFault(t, err, fault.Host, "ScriptTimeout", "within 3s") }},
		"cancellation": {timeout: time.Hour, act: func(_ *machine, _ *Conn, cancel func(), _ *blackhole) { cancel() },
			want: func(t *testing.T, err error) {
				if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "run") {
					t.Errorf("%v", err)
				}
			}},
		"client closes":     {timeout: time.Hour, act: func(_ *machine, c *Conn, _ func(), _ *blackhole) { _ = c.Close() }, want: lost},
		"connection breaks": {timeout: time.Hour, act: func(m *machine, _ *Conn, _ func(), _ *blackhole) { m.Drop() }, want: lost},
		// Neither side is told; each finds out by the other's silence.
		"connection vanishes": {timeout: time.Hour, keepalive: 2 * time.Second,
			act: func(_ *machine, _ *Conn, _ func(), pipe *blackhole) { pipe.vanish() }, want: lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, id, pipe := newMachine(t), uniqueID(), &blackhole{}
			c := m.dial(&Dialer{Keepalive: tc.keepalive, DialContext: pipe.dial, Timeouts: Timeouts{Grace: time.Hour}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			owner := mine()
			ended := make(chan error, 1)
			go func() {
				_, err := c.Run(ctx, Script{Phase: "install", Body: stubborn(id), Timeout: tc.timeout, Owner: &owner})
				ended <- err
			}()
			if tc.timeout == time.Hour {
				await(t, "the processes", func() bool { return m.file("up") != "" })
			}
			tc.act(m, c, cancel, pipe)
			tc.want(t, <-ended)
			await(t, "the processes to die", func() bool { return processes(t, id) == 0 })
			// Whoever comes next finds the lock free.
			await(t, "the wrapper to end", func() bool { return holders(m.state()+"/lock") == 0 })
		})
	}
}

// When Run returns from a cancellation, the machine has already said that nothing runs any more.
func TestCancelledRunReturnsAfterTheKill(t *testing.T) {
	t.Parallel()
	m, id := newMachine(t), uniqueID()
	ctx, cancel := context.WithCancel(t.Context())
	c := m.dial(&Dialer{Timeouts: Timeouts{Stop: time.Minute}})
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, Script{Phase: "probe", Body: "echo x > up; exec sleep " + id, Timeout: time.Hour})
		ended <- err
	}()
	await(t, "the script", func() bool { return m.file("up") != "" })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := processes(t, id); n != 0 {
		t.Errorf("%d processes", n)
	}
	// The connection is as good as before.
	if _, err := c.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute}); err != nil {
		t.Error(err)
	}
}

func TestDeadlineOfTheCallerIsATimeout(t *testing.T) {
	t.Parallel()
	m, id := newMachine(t), uniqueID()
	c := m.dial(&Dialer{})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := c.Run(ctx, Script{Phase: "probe", Body: "sleep " + id, Timeout: time.Hour})
	wantFault(t, err, fault.Network, "RunTimeout", "in time")
	await(t, "the script to die", func() bool { return processes(t, id) == 0 })
}

// A polite end: what handles SIGTERM may put its things in order.
func TestTimedOutScriptMayCleanUp(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	result, err := m.dial(&Dialer{}).Run(t.Context(), Script{Phase: "probe", Timeout: 5 * time.Second, // time enough to set the trap, on a busy machine too
		Body: "trap 'echo cleaned; exit 0' TERM; while :; do sleep 0.1; done"})
	wantFault(t, err, fault.Host, "ScriptTimeout", "did not end within 5s")
	if result.Stdout.String() != "cleaned\n" || result.ExitCode != -1 {
		t.Errorf("%q, exit %d", result.Stdout.String(), result.ExitCode)
	}
}

// A join may start a daemon; ending by itself is what tells it from a phase that was cut off.
func TestBackgroundProcessOfAFinishedScriptIsLeftAlone(t *testing.T) {
	t.Parallel()
	m, id := newMachine(t), uniqueID()
	c := m.dial(&Dialer{})
	owner := mine()
	// It also holds the session's output open, on which a plain SSH client waits for ever.
	result, err := c.Run(t.Context(), Script{Phase: "join", Body: "sleep " + id + " & echo $! > pid; echo started", Timeout: time.Minute, Owner: &owner})
	if err != nil || result.Stdout.String() != "started\n" {
		t.Fatalf("%q %v", result.Stdout.String(), err)
	}
	// Nor does a later phase that is killed take it along.
	_, err = c.Run(t.Context(), Script{Phase: "install", Body: "sleep 1000", Timeout: 300 * time.Millisecond, Owner: &owner})
	wantFault(t, err, fault.Host, "ScriptTimeout")
	_ = c.Close()
	if processes(t, id) == 0 {
		t.Error("the daemon was killed")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(m.file("pid")))
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// The watcher outlives the shell that it belongs to, and the next phase kills what neither could.
func TestKilledWrapperLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]string{
		"the shell":             "kill -KILL $PPID",
		"the shell and watcher": `kill -STOP $PPID; for p in $(</proc/$PPID/task/$PPID/children); do [[ $p == $$ ]] || kill -KILL $p; done; kill -KILL $PPID`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, id := newMachine(t), uniqueID()
			c := m.dial(&Dialer{})
			owner := mine()
			body := "export ID=" + id + "\nsetsid sleep " + id + " &\nwhile [[ $(cat /proc/$!/comm) != sleep ]]; do sleep 0.01; done\n" + which + "\nsleep " + id
			_, err := c.Run(t.Context(), Script{Phase: "install", Body: body, Timeout: time.Hour, Owner: &owner})
			if err == nil {
				t.Fatal("no error")
			}
			if name == "the shell and watcher" {
				await(t, "the lock to be free", func() bool { return holders(m.state()+"/lock") == 0 })
				if processes(t, id) == 0 {
					t.Fatal("nothing is left to be found")
				}
				if err := phase(t.Context(), c, "leave", "true", mine()); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "the processes to die", func() bool { return processes(t, id) == 0 })
		})
	}
}

// blackhole is a network that can swallow everything without a word.
type blackhole struct{ gone atomic.Bool }

func (b *blackhole) vanish() { b.gone.Store(true) }

func (b *blackhole) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &swallowed{Conn: conn, hole: b, closed: make(chan struct{})}, nil
}

type swallowed struct {
	net.Conn
	hole   *blackhole
	closed chan struct{}
	once   atomic.Bool
}

func (s *swallowed) Write(p []byte) (int, error) {
	if s.hole.gone.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

func (s *swallowed) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.hole.gone.Load() {
		<-s.closed
		return 0, net.ErrClosed
	}
	return n, err
}

// Close is not seen by the other side either, once the network is gone.
func (s *swallowed) Close() error {
	if s.once.CompareAndSwap(false, true) {
		close(s.closed)
	}
	if s.hole.gone.Load() {
		return nil
	}
	return s.Conn.Close()
}

var _ sshtest.Exec = sshtest.Shell{}.Exec
