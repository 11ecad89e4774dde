package ssh

import (
	"context"
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

	once sync.Once
	// gone is closed when the connection is.
	gone chan struct{}
	// cause says why; nil while nobody knows, and when this side closed it.
	mu    sync.Mutex
	cause error
}

func newConn(d *Dialer, t Target, inner gossh.Conn, channels <-chan gossh.NewChannel, requests <-chan *gossh.Request, hostKey gossh.PublicKey) *Conn {
	c := &Conn{dialer: d, target: t, inner: inner, hostKey: hostKey, clock: d.clock(), gone: make(chan struct{})}
	// The key has done its work; what lives as long as the connection does not need it.
	c.target.Key = Signer{}
	go gossh.DiscardRequests(requests)
	go func() {
		for channel := range channels {
			// A server has nothing to open here.
			_ = channel.Reject(gossh.Prohibited, "not served")
		}
	}()
	go func() { c.end(inner.Wait()) }()
	go c.keepAlive()
	return c
}

// HostKeyFingerprint is SHA256:<43 characters> of the host key that the machine proved to hold.
func (c *Conn) HostKeyFingerprint() string { return gossh.FingerprintSHA256(c.hostKey) }

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
}

// lost is the fault of a connection that ended while something was under way.
func (c *Conn) lost(stage Stage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
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
					c.end(errKeepalive{})
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
