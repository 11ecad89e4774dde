package ssh

import (
	"context"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// endGrace is how long the other stream's end may trail behind.
const endGrace = 2 * time.Second

// follow waits until the run is over: both streams' last markers, or a failure.
func (r *run) follow(ctx context.Context) error {
	if r.errand.shim == 1 {
		r.within(r.script.Timeout + r.limits.Lock + r.limits.Grace)
	} else {
		r.stage = StageFirstByte
		r.within(r.limits.FirstByte)
	}
	defer func() { r.limit.Stop() }()
	alive := r.conn.clock.NewTicker(r.conn.dialer.keepalive() / 2)
	defer alive.Stop()
	done := ctx.Done()
	for {
		var over bool
		var err error
		select {
		case e := <-r.events:
			over, err = r.take(ctx, e)
		case <-r.limit.C():
			over, err = r.expired(ctx)
		case <-alive.C():
			if r.begun {
				r.tell("")
			}
		case <-done:
			if !r.started {
				return stopped(ctx, r.conn.target, r.stage, "RunTimeout")
			}
			done, r.stopping = nil, true
			r.tell("stop")
			r.within(r.limits.Stop)
		}
		if over || err != nil {
			return err
		}
	}
}

// within restarts the clock that bounds what is waited for now.
func (r *run) within(d time.Duration) {
	if r.limit != nil {
		r.limit.Stop()
	}
	r.limit = r.conn.clock.NewTimer(d)
}

// take notes an event and tells whether the run is over.
func (r *run) take(ctx context.Context, e event) (over bool, err error) {
	switch {
	case e.mark != "":
		return r.marked(e.mark)
	case e.errMark != "":
		r.errEnded = r.errEnded || isLast(e.errMark)
		return r.errEnded && r.end != "", nil
	case e.refused:
		return false, fault.New(fault.Host, "ShellUnusable", nil, "%s: the SSH server refuses to run commands for this account", r.conn.target)
	case e.status != nil:
		r.status = e.status
		if r.end == "" && !r.stopping {
			r.within(endGrace)
		}
		return false, nil
	case r.end != "", r.answered(): // closed
		return true, nil
	case r.stopping:
		return false, stopped(ctx, r.conn.target, r.stage, "RunTimeout")
	default:
		return false, r.broken(r.stage)
	}
}

// marked takes a marker of stdout.
func (r *run) marked(mark string) (over bool, err error) {
	switch mark {
	case markShell:
	case markNoBash, markNoSudo:
		return false, r.unusable(mark)
	case markSudo:
		r.sudo = true
	case markBegin:
		r.begun, r.stage = true, StageRun
		// The machine speaks again within the lock's wait.
		r.within(r.limits.Lock + r.limits.Grace)
	case markReady:
		r.started = true
		r.tell("go")
		r.within(r.script.Timeout + r.limits.Grace)
	default:
		r.end = mark
		r.within(endGrace)
		return r.errEnded, nil
	}
	return false, nil
}

// expired decides what it means that nothing came in time.
func (r *run) expired(ctx context.Context) (over bool, err error) {
	switch {
	case r.end != "", r.answered():
		return true, nil
	case r.stopping:
		return false, stopped(ctx, r.conn.target, r.stage, "RunTimeout")
	case r.status != nil:
		return false, r.broken(r.stage)
	default:
		return false, r.late(r.stage)
	}
}

// answered tells whether a shim of version 1 has ended: its exit status is its last word.
func (r *run) answered() bool { return r.errand.shim == 1 && r.status != nil }
