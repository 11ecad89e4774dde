package ssh

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	gossh "golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"
)

// Timeouts bound the stages before a script runs. Zero fields take the defaults.
type Timeouts struct {
	// TCP, default 15 s; name resolution included.
	TCP time.Duration
	// Handshake, default 15 s; each.
	Handshake time.Duration
	// Auth, default 15 s.
	Auth time.Duration
	// ChannelOpen, default 15 s.
	ChannelOpen time.Duration
	// FirstByte, default 30 s: from the request to the machine's word that it has the whole script.
	FirstByte time.Duration
	// Lock, default 30 s: how long the machine waits for a phase that holds its lock.
	Lock time.Duration
	// Grace, default 20 s: how much longer than the machine this side waits for a phase's end.
	Grace time.Duration
	// Alive, default 5 s: how long a jump host may take to show that it lives, once something behind it does not answer.
	Alive time.Duration
	// Stop, default 5 s: how long a cancelled Run waits for the machine's word that every process is dead.
	Stop time.Duration
}

func (t Timeouts) withDefaults() Timeouts {
	for _, field := range []struct {
		value *time.Duration
		byDef time.Duration
	}{
		{&t.TCP, 15 * time.Second}, {&t.Handshake, 15 * time.Second}, {&t.Auth, 15 * time.Second},
		{&t.ChannelOpen, 15 * time.Second}, {&t.FirstByte, 30 * time.Second},
		{&t.Lock, 30 * time.Second}, {&t.Grace, 20 * time.Second}, {&t.Stop, 5 * time.Second}, {&t.Alive, 5 * time.Second},
	} {
		if *field.value <= 0 {
			*field.value = field.byDef
		}
	}
	return t
}

// keepaliveMisses is how many keepalives in a row may go unanswered.
const keepaliveMisses = 3

// Dialer opens connections. The zero value works; it must not be copied after first use. Safe for concurrent use.
type Dialer struct {
	Timeouts Timeouts
	// Keepalive is the interval of keepalives, default 30 s; a connection that leaves three unanswered is closed. The machine, in
	// turn, ends a phase when it hears nothing for three intervals.
	Keepalive time.Duration
	// Clock is for tests; default the real one.
	Clock clock.WithTickerAndDelayedExecution
	// DialContext is for tests and metrics; default net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// JumpHostConnections is how many connections may lead through one jump host at a time, default 8, which is below the number of logins
	// from which on sshd begins to drop some (MaxStartups 10).
	JumpHostConnections int

	slots slots
	// types remembers the type of each recognised key by its fingerprint (string → string), to find it with one handshake from the
	// second time on.
	types sync.Map
	// shims remembers whose shims speak version 2 of the envelope (string → int), so that neither probe nor join has to ask.
	shims sync.Map
}

func (d *Dialer) clock() clock.WithTickerAndDelayedExecution {
	if d.Clock != nil {
		return d.Clock
	}
	return clock.RealClock{}
}

func (d *Dialer) keepalive() time.Duration {
	if d.Keepalive > 0 {
		return d.Keepalive
	}
	return 30 * time.Second
}

// Connect is Dial for those who need no more than a Session.
func (d *Dialer) Connect(ctx context.Context, t Target) (Session, error) {
	conn, err := d.Dial(ctx, t)
	if err != nil {
		return nil, err // not a nil *Conn in a Session
	}
	return conn, nil
}

// Dial connects and logs in, with one identity and one attempt, to each jump host and then to the machine. More than one handshake
// happens only while a bare fingerprint's key type is unknown. A cancelled ctx is returned wrapped; every other failure is a fault:
// Configuration/AddressInvalid, KeyInvalid; Network/DialFailed, DialTimeout, HandshakeFailed, HandshakeTimeout,
// AuthenticationTimeout, ConnectionLost; Host/HostKeyMismatch (*HostKeyMismatch), HostKeyRevoked, HostCertificateInvalid,
// NoCommonAlgorithm, AuthenticationFailed. What fails at a jump host lies before the machine (fault.Error.Before):
// Configuration/JumpHostLoop, JumpHostPinMissing, JumpHostKeyMismatch, JumpHostRefused; Network/JumpHostUnreachable;
// Cluster/JumpHostBusy.
func (d *Dialer) Dial(ctx context.Context, t Target) (*Conn, error) {
	if err := t.judge(); err != nil {
		return nil, err
	}
	p, err := d.openPath(ctx, t)
	if err != nil {
		return nil, err
	}
	conn, err := d.reach(ctx, t, p)
	if err != nil {
		err = p.judge(ctx, len(t.Jumps), err)
		p.close()
		return nil, err
	}
	return conn, nil
}

// reach connects to one server, over the path so far, and logs in.
func (d *Dialer) reach(ctx context.Context, t Target, p *path) (*Conn, error) {
	endpoint, err := t.endpoint()
	if err != nil {
		return nil, err
	}
	search := recognise(t.Pins, t.Trusted, d.hint(t), t.Address, d.clock().Now)
	for {
		conn, err := d.attempt(ctx, t, endpoint, search, p)
		if err == nil {
			d.types.Store(conn.HostKeyFingerprint(), plain(conn.hostKey).Type())
			return conn, nil
		}
		var wrong *refused
		var none *gossh.AlgorithmNegotiationError
		switch {
		case errors.As(err, &wrong) && wrong.revoked:
			return nil, revokedFault(t, wrong)
		case errors.As(err, &wrong) && search.another(wrong):
		case errors.As(err, &wrong):
			return nil, search.mismatch(t)
		case errors.As(err, &none) && none.What == "host key" && search.advance():
		case errors.As(err, &none) && none.What == "host key" && len(search.seen) > 0:
			return nil, search.mismatch(t)
		default:
			return nil, err
		}
	}
}

// hint is the type of the key by which a machine with these pins was recognised before.
func (d *Dialer) hint(t Target) string {
	for _, fingerprint := range append(t.Pins.Fingerprints(), t.Trusted) {
		if keyType, ok := d.types.Load(fingerprint); ok {
			return keyType.(string) // only strings are stored
		}
	}
	return ""
}

// attempt is one TCP connection and one handshake.
func (d *Dialer) attempt(ctx context.Context, t Target, endpoint string, search *recognition, p *path) (*Conn, error) {
	limits := d.Timeouts.withDefaults()
	raw, err := d.connect(ctx, endpoint, limits.TCP, p)
	if err != nil {
		return nil, dialFault(ctx, t, err)
	}
	stages, stop := watchStages(ctx, d.clock(), func() { _ = raw.Close() })
	defer stop()
	stages.enter(StageHandshake, limits.Handshake)

	var hostKey gossh.PublicKey
	var methods []string
	supported := gossh.SupportedAlgorithms()
	config := &gossh.ClientConfig{
		// Everything that is not known to be broken, not only the default choice: machines are as old as they are.
		Config:            gossh.Config{KeyExchanges: supported.KeyExchanges, Ciphers: supported.Ciphers, MACs: supported.MACs},
		User:              t.user(),
		Auth:              []gossh.AuthMethod{gossh.PublicKeys(t.Key.inner)},
		HostKeyAlgorithms: search.algorithms(),
		HostKeyCallback: search.callback(func(key gossh.PublicKey) {
			hostKey = key
			stages.enter(StageAuthentication, limits.Auth)
		}),
		AuthCallback: func(c *gossh.ClientAuthContext) (gossh.AuthMethod, error) {
			methods = c.AllowedMethods
			return nil, nil // documented: go on with Auth
		},
		BannerCallback: func(string) error { return nil },
	}
	inner, channels, requests, err := gossh.NewClientConn(raw, endpoint, config)
	if err == nil && ctx.Err() != nil {
		_ = inner.Close()
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		return nil, handshakeFault(ctx, t, stages, methods, err)
	}
	return newConn(d, t, inner, channels, requests, hostKey, p), nil
}

// connect is the TCP stage, here or at the last jump host so far. The limit is this package's own, so that a DialContext that knows
// none is bounded too.
func (d *Dialer) connect(ctx context.Context, endpoint string, limit time.Duration, p *path) (net.Conn, error) {
	dial := d.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	if last := p.last(); last != nil {
		dial = last.forward
	}
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := d.clock().AfterFunc(limit, func() { cancel(errStageTimeout) })
	defer timer.Stop()

	type outcome struct {
		conn net.Conn
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		conn, err := dial(bounded, "tcp", endpoint)
		result <- outcome{conn, err}
	}()
	select {
	case out := <-result:
		if out.err != nil && bounded.Err() != nil {
			return nil, context.Cause(bounded)
		}
		return out.conn, out.err
	case <-bounded.Done():
		go func() { // a dialer that is late must not leak its connection
			if out := <-result; out.conn != nil {
				_ = out.conn.Close()
			}
		}()
		return nil, context.Cause(bounded)
	}
}
