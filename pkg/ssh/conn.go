package ssh

import (
	"context"
	"errors"
	"sync"

	gossh "golang.org/x/crypto/ssh"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Session is what phases need of a connection: a *Conn, or what stands in for one where there are no machines.
type Session interface {
	Run(ctx context.Context, s Script, opts ...Option) (Result, error)
	// HostKeyFingerprint is SHA256:<43 characters>.
	HostKeyFingerprint() string
	Close() error
}

// Conn is one authenticated connection. Phases may share it, one after the other or at once.
type Conn struct {
	dialer  *Dialer
	target  Target
	inner   gossh.Conn
	hostKey gossh.PublicKey
	clock   clock.WithTickerAndDelayedExecution
	// path of jump hosts that this connection leads over, and closes with itself; nil for a jump host's own.
	path *path

	once sync.Once
	// gone is closed when the connection is.
	gone chan struct{}
	// cause says why; nil while nobody knows, and when this side closed it.
	mu    sync.Mutex
	cause error
}

func newConn(d *Dialer, t Target, inner gossh.Conn, channels <-chan gossh.NewChannel, requests <-chan *gossh.Request, hostKey gossh.PublicKey, p *path) *Conn {
	c := &Conn{dialer: d, target: t, inner: inner, hostKey: hostKey, clock: d.clock(), gone: make(chan struct{})}
	if p != nil && len(p.hops) == len(p.jumps) {
		c.path = p // otherwise this is one of its jump hosts
	}
	// The keys have done their work; what lives as long as the connection does not need them.
	c.target.Key, c.target.Jumps = Signer{}, nil
	go gossh.DiscardRequests(requests)
	go func() {
		for channel := range channels {
			// A server has nothing to open here.
			_ = channel.Reject(gossh.Prohibited, "not served")
		}
	}()
	go func() { c.end(c.path.explain(inner.Wait())) }()
	go c.keepAlive()
	return c
}

// HostKeyFingerprint is SHA256:<43 characters> of the host key that the machine proved to hold; of the key in it, if it showed a
// certificate.
func (c *Conn) HostKeyFingerprint() string { return gossh.FingerprintSHA256(plain(c.hostKey)) }

// Target that the connection leads to, without its key.
func (c *Conn) Target() Target { return c.target }

// Close ends the connection and every Run on it. The machine kills what still runs. It never fails in a way that matters.
func (c *Conn) Close() error {
	c.end(nil)
	return nil
}

// Done is closed when the connection is no more.
func (c *Conn) Done() <-chan struct{} { return c.gone }

func (c *Conn) end(cause error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.cause = cause
		c.mu.Unlock()
		close(c.gone)
	})
	_ = c.inner.Close()
	c.path.close()
}

// lost is the fault of a connection that ended while something was under way.
func (c *Conn) lost(stage Stage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var before *fault.Error
	if errors.As(c.cause, &before) {
		return fault.New(before.Blame, before.Reason, before, "%s: the connection broke during %s", c.target, stage).BeforeMachine()
	}
	return fault.New(fault.Network, "ConnectionLost", c.cause, "%s: the connection broke during %s", c.target, stage)
}

// errKeepalive is the cause of a connection that was given up.
type errKeepalive struct{}

func (errKeepalive) Error() string { return "no answer to 3 keepalives in a row" }

// keepAlive finds connections that died without a word, and keeps NAT entries alive. x/crypto's request takes no deadline, so it
// waits in a goroutine of its own that ends with the connection.
func (c *Conn) keepAlive() {
	ticker := c.clock.NewTicker(c.dialer.keepalive())
	defer ticker.Stop()
	answers := make(chan struct{}, 1)
	waiting, missed := false, 0
	for {
		select {
		case <-c.gone:
			return
		case <-answers:
			waiting, missed = false, 0
		case <-ticker.C():
			if waiting {
				if missed++; missed >= keepaliveMisses {
					c.end(c.path.explain(errKeepalive{}))
					return
				}
				continue
			}
			waiting = true
			go func() {
				// Any reply, a refusal too, is a sign of life; an error means that the connection has ended.
				if _, _, err := c.inner.SendRequest("keepalive@openssh.com", true, nil); err == nil {
					answers <- struct{}{}
				}
			}()
		}
	}
}
