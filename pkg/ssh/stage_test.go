package ssh

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// D8, section 2 #9, section 3 #4: five tarpits. Each stage fails at its own limit while all others would wait for an hour, and names itself.
func TestEveryStageHasItsOwnDeadline(t *testing.T) {
	t.Parallel()
	const hour, short = time.Hour, 100 * time.Millisecond
	all := Timeouts{TCP: hour, Handshake: hour, Auth: hour, ChannelOpen: hour, FirstByte: hour}
	never := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for name, tc := range map[string]struct {
		stall  sshtest.Stage
		limit  func(*Timeouts)
		dial   func(context.Context, string, string) (net.Conn, error)
		reason string
		word   string
	}{
		"TCP":          {limit: func(l *Timeouts) { l.TCP = short }, dial: never, reason: "DialTimeout", word: string(StageTCP)},
		"handshake":    {stall: sshtest.StallHandshake, limit: func(l *Timeouts) { l.Handshake = short }, reason: "HandshakeTimeout", word: string(StageHandshake)},
		"auth":         {stall: sshtest.StallAuthentication, limit: func(l *Timeouts) { l.Auth = short }, reason: "AuthenticationTimeout", word: string(StageAuthentication)},
		"channel open": {stall: sshtest.StallChannelOpen, limit: func(l *Timeouts) { l.ChannelOpen = short }, reason: "ChannelOpenTimeout", word: string(StageChannelOpen)},
		"first byte":   {stall: sshtest.StallExec, limit: func(l *Timeouts) { l.FirstByte = short }, reason: "FirstByteTimeout", word: string(StageFirstByte)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.Stall(tc.stall)
			limits := all
			tc.limit(&limits)
			conn, err := (&Dialer{Timeouts: limits, DialContext: tc.dial}).Dial(t.Context(), m.target())
			if err == nil {
				_, err = conn.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: hour})
			}
			wantFault(t, err, fault.Network, tc.reason, tc.word)
		})
	}
}

// D8: limits of stages are not limits of the script.
func TestLongScriptOutlivesTheStages(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	d := &Dialer{Keepalive: 200 * time.Millisecond, Timeouts: Timeouts{TCP: time.Second, Handshake: 2 * time.Second, Auth: 2 * time.Second, ChannelOpen: 2 * time.Second, FirstByte: 3 * time.Second}}
	_, err := m.dial(d).Run(t.Context(), Script{Phase: "join", Body: "sleep 4", Timeout: time.Minute})
	if err != nil {
		t.Error(err)
	}
	if m.Keepalives() < 5 {
		t.Errorf("%d keepalives", m.Keepalives())
	}
}

// Section 3 #33, D8: a connection that died without a word is found by its keepalives. The clock is stepped, nobody waits.
func TestUnansweredKeepalivesEndTheConnection(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) { s.Silent = true })
	clk := clocktesting.NewFakeClock(time.Now())
	c := m.dial(&Dialer{Clock: clk})
	await(t, "the ticker", clk.HasWaiters)
	clk.Step(30 * time.Second)
	await(t, "the keepalive", func() bool { return m.Keepalives() == 1 })
	await(t, "the end", func() bool {
		clk.Step(30 * time.Second)
		select {
		case <-c.Done():
			return true
		default:
			return false
		}
	})
	_, err := c.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute})
	wantFault(t, err, fault.Network, "ConnectionLost")
	if !strings.Contains(c.lost(StageRun).Error(), "keepalives") {
		t.Error(c.lost(StageRun))
	}
}

func TestAnsweredKeepalivesKeepTheConnection(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	clk := clocktesting.NewFakeClock(time.Now())
	c := m.dial(&Dialer{Clock: clk})
	await(t, "the ticker", clk.HasWaiters)
	for n := 1; n <= 2*keepaliveMisses; n++ {
		await(t, "the keepalive", func() bool {
			if m.Keepalives() < n {
				clk.Step(30 * time.Second)
			}
			return m.Keepalives() >= n
		})
	}
	if _, err := c.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute}); err != nil {
		t.Error(err)
	}
}

// A machine that stops talking while a script runs is given up a little after the script's own limit.
func TestSilentMachineIsGivenUpAfterTheScriptsLimit(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	d := &Dialer{Timeouts: Timeouts{Grace: 200 * time.Millisecond}}
	// The wrapper is stopped, so that it can neither end the script nor say so.
	_, err := m.dial(d).Run(t.Context(), Script{Phase: "join", Timeout: 500 * time.Millisecond,
		Body: "echo $PPID > shell; for p in $(</proc/$PPID/task/$PPID/children) $PPID; do [[ $p == $$ ]] || kill -STOP $p; done"})
	wantFault(t, err, fault.Network, "RunTimeout", "join")
	kill(t, m.file("shell"))
}

func TestWatchForgetsATimerWhoseStageHasEnded(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	aborted := 0
	w, stop := watchStages(t.Context(), clk, func() { aborted++ })
	w.enter(StageTCP, time.Second)
	w.enter(StageHandshake, 10*time.Second)
	clk.Step(2 * time.Second)
	if stage, expired := w.state(); expired || stage != StageHandshake || aborted != 0 {
		t.Errorf("%s, expired %v, aborted %d times", stage, expired, aborted)
	}
	clk.Step(9 * time.Second)
	if stage, expired := w.state(); !expired || stage != StageHandshake || aborted != 1 {
		t.Errorf("%s, expired %v, aborted %d times", stage, expired, aborted)
	}
	stop()
	late, stop := watchStages(t.Context(), clk, func() { aborted++ })
	late.enter(StageTCP, time.Second)
	stop()
	clk.Step(time.Minute)
	if aborted != 1 {
		t.Error("a watch that was stopped still aborts")
	}
}

func TestRunHonoursItsContextAtEveryStage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for stall, stage := range map[sshtest.Stage]Stage{sshtest.StallChannelOpen: StageChannelOpen, sshtest.StallExec: StageFirstByte} {
		m.Stall(sshtest.StallNowhere)
		c := m.dial(&Dialer{Timeouts: Timeouts{ChannelOpen: time.Hour, FirstByte: time.Hour}})
		m.Stall(stall)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, nil)
		ended := make(chan error, 1)
		sessions := m.Sessions()
		go func() {
			_, err := c.Run(ctx, Script{Phase: "probe", Body: "true", Timeout: time.Hour})
			ended <- err
		}()
		if stall == sshtest.StallExec {
			await(t, "the session", func() bool { return m.Sessions() > sessions })
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), string(stage)) {
			t.Errorf("%s: %v", stage, err)
		}
	}
}

// Section 3 #42: a failed connection counts by the stage that it failed in.
func TestDialStage(t *testing.T) {
	for reason, want := range map[string]string{
		"DialFailed": "tcp", "HostKeyMismatch": "handshake", "AuthenticationFailed": "authentication", "KeyInvalid": "prepare",
	} {
		if got := DialStage(reason); got != want {
			t.Errorf("%s: %s, want %s", reason, got, want)
		}
	}
}
