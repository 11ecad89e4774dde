package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// path is the chain of jump hosts that one connection leads over. Nothing of it is shared with another connection.
type path struct {
	jumps   []Target
	limits  Timeouts
	hops    []*Conn // as many of jumps as are connected
	once    sync.Once
	release func()
}

// judge finds what is wrong with a target before anything is dialled.
func (t Target) judge() error {
	seen := map[string]bool{}
	for i, stop := range append(append([]Target{}, t.Jumps...), t) {
		at := func(err *fault.Error) error {
			if i == len(t.Jumps) {
				return err
			}
			return hopFault(t.Jumps, i, err)
		}
		if _, err := stop.endpoint(); err != nil {
			return at(fault.Of(err))
		}
		if stop.Key.IsZero() {
			return at(fault.New(fault.Configuration, "KeyInvalid", nil, "there is no private key to log in to %s with", stop))
		}
		if i < len(t.Jumps) && stop.Pins.Empty() {
			return at(fault.New(fault.Configuration, "JumpHostPinMissing", nil,
				"its host key is not pinned: add its public key or SHA256 fingerprint as knownHost, or its authority as hostCA, to the Secret of the jump host"))
		}
		if seen[stop.identity()] {
			return fault.New(fault.Configuration, "JumpHostLoop", nil, "%s occurs twice on the way to %s: name each jump host once", stop.identity(), t).BeforeMachine()
		}
		seen[stop.identity()] = true
	}
	return nil
}

// identity spells address and port in one way: it is one SSH server, whoever logs in to it.
func (t Target) identity() string {
	host := strings.TrimSuffix(strings.ToLower(strings.Trim(strings.TrimSpace(t.Address), "[]")), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return net.JoinHostPort(host, strconv.Itoa(t.port()))
}

// openPath logs in to the jump hosts, one through the other. The path of a target without any is empty.
func (d *Dialer) openPath(ctx context.Context, t Target) (*path, error) {
	p := &path{jumps: t.Jumps, limits: d.Timeouts.withDefaults(), release: func() {}}
	if len(t.Jumps) == 0 {
		return p, nil
	}
	var err error
	if p.release, err = d.slots.take(ctx, t.Jumps, d.JumpHostConnections); err != nil {
		return nil, err
	}
	for i, jump := range t.Jumps {
		hop, err := d.reach(ctx, jump, p)
		if err != nil {
			err = p.judge(ctx, i, err)
			p.close()
			return nil, err
		}
		p.hops = append(p.hops, hop)
	}
	return p, nil
}

// last is the jump host to go on from; nil: none is connected.
func (p *path) last() *Conn {
	if p == nil || len(p.hops) == 0 {
		return nil
	}
	return p.hops[len(p.hops)-1]
}

// close ends the jump hosts' connections, the farthest first, and gives their slots back.
func (p *path) close() {
	if p == nil {
		return
	}
	p.once.Do(func() {
		for i := len(p.hops) - 1; i >= 0; i-- {
			_ = p.hops[i].Close()
		}
		p.release()
	})
}

// judge says whose fault it is that stop i, the machine itself if it is the number of jump hosts, could not be reached.
func (p *path) judge(ctx context.Context, i int, err error) error {
	if len(p.jumps) == 0 || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	var closed *forwardRefused
	if errors.As(err, &closed) {
		return fault.New(fault.Configuration, "JumpHostRefused", closed.error,
			"%s does not forward to the next address: allow it in its sshd_config (AllowTcpForwarding, PermitOpen) and for the key (restrict, permit-port-forwarding)", stopName(p.jumps, i-1)).BeforeMachine()
	}
	if fault.Is(err, fault.Network) {
		if dead := p.dead(); dead >= 0 {
			return hopFault(p.jumps, dead, fault.New(fault.Network, "JumpHostUnreachable", err, "it stopped answering"))
		}
	}
	if i < len(p.jumps) {
		if errors.As(err, new(*fault.Error)) {
			return hopFault(p.jumps, i, fault.Of(err))
		}
		return err
	}
	var found *fault.Error
	if errors.As(err, &found) && found.Blame == fault.Network {
		return fault.New(found.Blame, found.Reason, found.Err, "through %s: %s", stopName(p.jumps, i-1), found.Message)
	}
	return err
}

// explain turns the end of a connection into the end of the jump host that caused it, if one did.
func (p *path) explain(cause error) error {
	if p == nil || len(p.hops) == 0 {
		return cause
	}
	if dead := p.dead(); dead >= 0 {
		return hopFault(p.jumps, dead, fault.New(fault.Network, "JumpHostUnreachable", cause, "it stopped answering"))
	}
	return cause
}

// dead is the index of the first jump host that does not answer; -1: all do.
func (p *path) dead() int {
	for i, hop := range p.hops {
		if !hop.alive(p.limits.Alive) {
			return i
		}
	}
	return -1
}

// alive asks for a sign of life. Any reply is one.
func (c *Conn) alive(limit time.Duration) bool {
	answer := make(chan bool, 1)
	go func() {
		_, _, err := c.inner.SendRequest("keepalive@openssh.com", true, nil)
		answer <- err == nil
	}()
	timer := c.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case alive := <-answer:
		return alive
	case <-c.gone:
		return false
	case <-timer.C():
		return false
	}
}

// hopFault makes a jump host's failure one that lies before the machine. What would be the machine's fault if it were the machine is
// for a person to mend here: nothing is offered on a jump host, so that there is nothing to park.
func hopFault(jumps []Target, i int, f *fault.Error) *fault.Error {
	blame, reason := f.Blame, f.Reason
	switch {
	case f.Blame == fault.Network:
		reason = "JumpHostUnreachable"
	case f.Blame == fault.Host && (f.Reason == "HostKeyMismatch" || f.Reason == "HostKeyRevoked" || f.Reason == "HostCertificateInvalid"):
		blame, reason = fault.Configuration, "JumpHostKeyMismatch"
	case f.Blame == fault.Host:
		blame, reason = fault.Configuration, "JumpHostRefused"
	}
	return fault.New(blame, reason, f.Err, "%s: %s", stopName(jumps, i), f.Message).BeforeMachine()
}

func stopName(jumps []Target, i int) string { return JumpName(i, len(jumps), jumps[i]) }

// JumpName names a jump host by its place on the way, from 0, and its address.
func JumpName(i, of int, t Target) string {
	return fmt.Sprintf("jump host %d of %d (%s)", i+1, of, t.identity())
}

// forwardRefused is a jump host's own refusal to open a connection, not one by what is behind it.
type forwardRefused struct{ error }

func (e *forwardRefused) Unwrap() error { return e.error }

// forward makes the server connect to an address. It ends with the connection, not with a context; its caller bounds it.
func (c *Conn) forward(_ context.Context, _, endpoint string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	channel, requests, err := c.inner.OpenChannel("direct-tcpip", gossh.Marshal(struct {
		Host       string
		Port       uint32
		Originator string
		From       uint32
	}{host, uint32(port), "127.0.0.1", 0})) // sshd does nothing with the originator but log it
	var rejected *gossh.OpenChannelError
	switch {
	case errors.As(err, &rejected) && rejected.Reason != gossh.ConnectionFailed:
		return nil, &forwardRefused{err}
	case err != nil:
		return nil, err
	}
	go gossh.DiscardRequests(requests)
	return &tunnel{Channel: channel, to: address(endpoint)}, nil
}

// tunnel is a channel of a jump host as a connection. It has no deadlines: stages are ended by closing it.
type tunnel struct {
	gossh.Channel
	to address
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

func (t *tunnel) LocalAddr() net.Addr  { return address("tunnel") }
func (t *tunnel) RemoteAddr() net.Addr { return t.to }

func (t *tunnel) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (t *tunnel) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (t *tunnel) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
