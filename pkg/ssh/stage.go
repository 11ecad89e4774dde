package ssh

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Stage is a step on the way to a script's result. Every failure names the one it happened in.
type Stage string

// Stages in their order.
const (
	StageTCP            Stage = "TCP connect"
	StageHandshake      Stage = "handshake"
	StageAuthentication Stage = "authentication"
	StageChannelOpen    Stage = "channel open"
	StageFirstByte      Stage = "first byte"
	StageRun            Stage = "run"
)

// DialStage is the stage that a failure of Dial happened in, in one word: prepare (no machine was asked), tcp, handshake or authentication.
func DialStage(reason string) string {
	switch reason {
	case "DialFailed", "DialTimeout":
		return "tcp"
	case "HandshakeFailed", "HandshakeTimeout", "NoCommonAlgorithm", "HostKeyMismatch", "HostKeyRevoked":
		return "handshake"
	case "AuthenticationFailed", "AuthenticationTimeout", "ConnectionLost":
		return "authentication"
	}
	return "prepare"
}

// watch bounds the stages of one exchange. x/crypto takes no context: the only way to end its waits is to close the connection.
type watch struct {
	clock clock.WithTickerAndDelayedExecution
	abort func()

	mu      sync.Mutex
	stage   Stage
	timer   clock.Timer
	round   int
	expired bool
	done    bool
}

// watchStages calls abort once, when a stage's time is up or ctx is done, whichever is first. Stop it when the exchange is over.
func watchStages(ctx context.Context, clk clock.WithTickerAndDelayedExecution, abort func()) (w *watch, stop func()) {
	w = &watch{clock: clk, abort: abort}
	unhook := context.AfterFunc(ctx, abort)
	return w, func() {
		unhook()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.done = true
		if w.timer != nil {
			w.timer.Stop()
		}
	}
}

// enter begins a stage that may take this long.
func (w *watch) enter(stage Stage, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	w.round++
	round := w.round
	w.stage = stage
	w.timer = w.clock.AfterFunc(limit, func() { w.expire(round) })
}

func (w *watch) expire(round int) {
	w.mu.Lock()
	// A timer that fired while its stage ended is nobody's.
	if w.done || round != w.round {
		w.mu.Unlock()
		return
	}
	w.expired = true
	w.mu.Unlock()
	w.abort()
}

// state tells the stage that was entered last, and whether its time ran out.
func (w *watch) state() (stage Stage, expired bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stage, w.expired
}
