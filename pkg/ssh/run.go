package ssh

import (
	"context"
	"errors"
	"io"
	"time"

	gossh "golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Result is what a script left behind. It is filled as far as it is known, also beside an error.
type Result struct {
	Stdout, Stderr Output
	// ExitCode of the script; -1 when it did not end by itself, or a shim of version 1 does not tell.
	ExitCode int
	// Shim is the version of the envelope that the machine's shim was spoken to with, 1 or 2; 0 where there was none.
	Shim int
}

// Option changes how Run keeps output.
type Option func(*options)

type options struct {
	redact     func(io.Writer) io.WriteCloser
	head, tail int
	// whole takes everything for the script's output: there are no markers.
	whole bool
}

// Redact puts a filter into each output stream, before anything is dropped or kept. It is called once per stream.
func Redact(filter func(io.Writer) io.WriteCloser) Option {
	return func(o *options) { o.redact = filter }
}

// KeepOutput sets how many bytes of the head and the tail of each stream are kept. Default 16 KiB and 48 KiB.
func KeepOutput(head, tail int) Option {
	return func(o *options) { o.head, o.tail = max(head, 0), max(tail, 0) }
}

// Run runs one script and waits for its end. A cancelled ctx is returned wrapped, after the machine was told to kill the phase
// and has said so, or Timeouts.Stop has passed; a deadline of ctx is Network/RunTimeout. Faults besides:
// Configuration/ScriptInvalid; Network/ConnectionLost, ChannelOpenTimeout, FirstByteTimeout, RunTimeout; Host/ChannelRefused,
// ShellUnusable, SudoMissing, SudoPasswordRequired, SudoRequiresTTY, SudoDenied, ScriptFailed, ScriptTimeout, HostBusy,
// HostOwnedElsewhere (*OwnedElsewhere), StateUnusable; Cluster/StaleEpoch (*StaleEpoch). For scripts with Verified: those of verified.Judge and
// verified.Envelope.
//
// Whatever Run returns, and also when this process or the network is gone, the machine lets no process of an unfinished phase live
// longer than its timeout or three keepalive intervals, whichever is shorter. Processes that a script which ended by itself left
// in the background are left alone.
func (c *Conn) Run(ctx context.Context, s Script, opts ...Option) (Result, error) {
	none := Result{ExitCode: -1}
	if err := s.Validate(); err != nil {
		return none, err
	}
	if s.Verified != nil {
		return c.runVerified(ctx, s, opts)
	}
	e, err := prepare(s, c.target.user(), c.dialer.Timeouts.withDefaults().Lock, c.silence())
	if err != nil {
		return none, err
	}
	return c.send(ctx, s, e, opts)
}

// silence is how long the machine waits for a sign of life.
func (c *Conn) silence() time.Duration { return keepaliveMisses * c.dialer.keepalive() }

// send opens a channel for an errand and sees it through.
func (c *Conn) send(ctx context.Context, s Script, e errand, opts []Option) (Result, error) {
	none := Result{ExitCode: -1}
	limits := c.dialer.Timeouts.withDefaults()
	kept := options{head: defaultHead, tail: defaultTail}
	for _, option := range opts {
		option(&kept)
	}
	channel, requests, err := c.open(ctx, limits.ChannelOpen)
	if err != nil {
		return none, err
	}
	r := &run{conn: c, script: s, limits: limits, errand: e, channel: channel,
		events: make(chan event), over: make(chan struct{}), toMachine: make(chan string, 4)}
	if e.shim == 1 {
		// Nothing tells the script's output from what comes before it.
		r.stage, kept.whole = StageRun, true
	}
	r.stdout = newStream(e, kept, func(text string) { r.post(event{mark: text}) })
	r.stderr = newStream(e, kept, func(text string) { r.post(event{errMark: text}) })
	r.start(requests)
	err = r.follow(ctx)
	r.release()
	result := Result{Stdout: r.stdout.finish(), Stderr: r.stderr.finish(), ExitCode: -1, Shim: e.shim}
	if err != nil {
		return result, err
	}
	return r.judge(ctx, r.end, result)
}

// open opens a session channel. An OpenChannel that is late ends with the connection, or is closed when it comes.
func (c *Conn) open(ctx context.Context, limit time.Duration) (gossh.Channel, <-chan *gossh.Request, error) {
	type outcome struct {
		channel  gossh.Channel
		requests <-chan *gossh.Request
		err      error
	}
	result := make(chan outcome, 1)
	go func() {
		channel, requests, err := c.inner.OpenChannel("session", nil)
		result <- outcome{channel, requests, err}
	}()
	late := func() {
		if out := <-result; out.err == nil {
			go gossh.DiscardRequests(out.requests)
			_ = out.channel.Close()
		}
	}
	timer := c.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case out := <-result:
		var rejected *gossh.OpenChannelError
		switch {
		case out.err == nil:
			return out.channel, out.requests, nil
		case errors.As(out.err, &rejected):
			return nil, nil, fault.New(fault.Host, "ChannelRefused", out.err,
				"%s: the SSH server refuses to open a session: check MaxSessions, and that the account may run commands", c.target)
		default:
			return nil, nil, fault.New(fault.Network, "ConnectionLost", out.err, "%s: the connection broke during %s", c.target, StageChannelOpen)
		}
	case <-timer.C():
		// A server that accepts a login and opens no channel is broken for every other phase too.
		c.end(errStageTimeout)
		go late()
		return nil, nil, fault.New(fault.Network, "ChannelOpenTimeout", errStageTimeout,
			"%s: login succeeded, but %s got no answer: the machine is overloaded or its SSH server hangs", c.target, StageChannelOpen)
	case <-ctx.Done():
		go late()
		return nil, nil, stopped(ctx, c.target, StageChannelOpen, "ChannelOpenTimeout")
	}
}

// event is one thing that a run waits for; one field is set.
type event struct {
	mark, errMark string // a marker line on stdout, on stderr
	refused       bool   // the exec request was refused
	status        *int   // the SSH exit status; 128+ for a signal
	closed        bool   // the channel is closed and both streams are read
}

// run is one script under way. Only follow reads events; the goroutines that post them end with the channel.
type run struct {
	conn    *Conn
	script  Script
	limits  Timeouts
	errand  errand
	channel gossh.Channel

	stdout, stderr *stream
	events         chan event
	over           chan struct{}
	toMachine      chan string

	// What has been learnt; follow's own.
	stage       Stage
	limit       clock.Timer
	end         string // the last marker on stdout
	errEnded    bool   // stderr's has come
	sudo, begun bool
	started     bool // the machine was told to go
	stopping    bool // it was told to stop
	status      *int
	plain       string // the last words of a shim of version 1
}

func (r *run) post(e event) {
	select {
	case r.events <- e:
	case <-r.over:
	}
}

// release lets go of the channel, and of every goroutine that waits to post. Closing the channel is what makes the machine end a
// phase that is still running.
func (r *run) release() {
	close(r.over)
	// Close waits for the peer's window no longer than the connection lives, and the connection has its keepalive.
	go func() { _ = r.channel.Close() }()
}

// start sends the request and the script, and reads what comes back.
func (r *run) start(requests <-chan *gossh.Request) {
	closed := make(chan struct{}, 3)
	read := func(from io.Reader, to *stream) {
		_, _ = io.Copy(to, from)
		to.flush()
		closed <- struct{}{}
	}
	go read(r.channel, r.stdout)
	go read(r.channel.Stderr(), r.stderr)
	go func() {
		for request := range requests {
			if status, ok := exitStatus(request); ok {
				r.post(event{status: &status})
			}
			if request.WantReply {
				_ = request.Reply(false, nil)
			}
		}
		closed <- struct{}{}
	}()
	go func() {
		for range 3 {
			<-closed
		}
		r.post(event{closed: true})
	}()
	go func() {
		payload := gossh.Marshal(struct{ Command string }{r.errand.command})
		if ok, err := r.channel.SendRequest("exec", true, payload); err == nil && !ok {
			r.post(event{refused: true})
			return
		}
		if _, err := io.WriteString(r.channel, r.errand.payload); err != nil {
			return // the channel has ended, and its reader says so
		}
		if r.errand.shim == 1 {
			_ = r.channel.CloseWrite() // the end of the input is the envelope's
			return
		}
		for {
			select {
			case line := <-r.toMachine:
				if _, err := io.WriteString(r.channel, line+"\n"); err != nil {
					return
				}
			case <-r.over:
				return
			}
		}
	}()
}

func exitStatus(request *gossh.Request) (int, bool) {
	switch request.Type {
	case "exit-status":
		var status struct{ Code uint32 }
		if gossh.Unmarshal(request.Payload, &status) == nil {
			return int(status.Code), true
		}
	case "exit-signal":
		return 128, true
	}
	return 0, false
}

// tell sends a line to the machine; one that does not fit into the queue is a sign of life among others.
func (r *run) tell(line string) {
	select {
	case r.toMachine <- line:
	default:
	}
}
