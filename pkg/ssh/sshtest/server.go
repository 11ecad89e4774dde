package sshtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	gossh "golang.org/x/crypto/ssh"
)

// Exec runs a command. stdin ends when the client closes it or is gone; ctx ends with the connection, or with the server. The result
// is the exit status; a negative one ends the session without any.
type Exec func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int

type userKey struct{}

// User is who logged in, in the context that an Exec gets.
func User(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// Stage is where a server can be made to stall: it goes no further, and keeps the connection open.
type Stage int

// Stages, in their order. A TCP stall needs a Listener that does not accept.
const (
	StallNowhere Stage = iota
	StallHandshake
	StallAuthentication
	StallChannelOpen
	StallExec
	// StallForward is a jump host that does not answer the request to connect further.
	StallForward
)

// Server is one SSH server. Set the fields, then Start. The zero value listens on a free port of 127.0.0.1, makes an ed25519 host
// key, and accepts any key.
type Server struct {
	// Listen address, default 127.0.0.1:0.
	Listen string
	// Listener to serve instead of Listen.
	Listener net.Listener
	// HostKeys to present; the client chooses among their types. Default: a new ed25519 key.
	HostKeys []gossh.Signer
	// AuthorizedKeys that may log in; nil means any.
	AuthorizedKeys []gossh.PublicKey
	// Banner is sent before authentication.
	Banner string
	// Exec runs commands; without it every command is refused.
	Exec Exec
	// Forward makes it a jump host: it connects to an address for a client. Without it that is prohibited.
	Forward func(address string) (net.Conn, error)
	// Configure changes the server's configuration, such as its algorithms.
	Configure func(*gossh.ServerConfig)
	// Silent makes the server leave keepalives unanswered.
	Silent bool

	stall    atomic.Int64
	listener net.Listener
	ctx      context.Context // the life of the server, which outlives the call that started it
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}

	connections, handshakes, authAttempts, logins, sessions, keepalives atomic.Int64
}

// Start listens and serves until Close.
func (s *Server) Start() error {
	if len(s.HostKeys) == 0 {
		key, err := NewHostKey()
		if err != nil {
			return err
		}
		s.HostKeys = []gossh.Signer{key}
	}
	s.listener = s.Listener
	if s.listener == nil {
		address := s.Listen
		if address == "" {
			address = "127.0.0.1:0"
		}
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		if err != nil {
			return fmt.Errorf("sshtest: %w", err)
		}
		s.listener = listener
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.conns = map[net.Conn]struct{}{}
	s.running.Go(s.accept)
	return nil
}

// NewHostKey makes an ed25519 key.
func NewHostKey() (gossh.Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return gossh.NewSignerFromKey(key)
}

// Close ends the server, its connections and its commands' contexts, and waits for its goroutines.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.Drop() // before the stalls end, so that none of them lets a client in
	s.cancel()
	s.Drop()
	s.running.Wait()
}

// Drop breaks every connection that is open now.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// Stall makes the server stall at a stage from the next connection, or the next step of one, on.
func (s *Server) Stall(at Stage) { s.stall.Store(int64(at)) }

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Host and port of Addr.
func (s *Server) Host() string { return s.tcp().IP.String() }

// Port of Addr.
func (s *Server) Port() int { return s.tcp().Port }

func (s *Server) tcp() *net.TCPAddr {
	if addr, ok := s.Addr().(*net.TCPAddr); ok {
		return addr
	}
	return &net.TCPAddr{}
}

// Connections is how many TCP connections were accepted.
func (s *Server) Connections() int { return int(s.connections.Load()) }

// Handshakes is how many connections a client began to authenticate on, which it does once it has accepted the host key.
func (s *Server) Handshakes() int { return int(s.handshakes.Load()) }

// AuthAttempts is how many signed attempts to log in with a key were made, and refused ones.
func (s *Server) AuthAttempts() int { return int(s.authAttempts.Load()) }

// Logins is how many succeeded.
func (s *Server) Logins() int { return int(s.logins.Load()) }

// Sessions is how many commands were started.
func (s *Server) Sessions() int { return int(s.sessions.Load()) }

// Keepalives is how many were received.
func (s *Server) Keepalives() int { return int(s.keepalives.Load()) }

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.connections.Add(1)
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		s.running.Go(func() {
			defer func() {
				_ = conn.Close()
				s.mu.Lock()
				delete(s.conns, conn)
				s.mu.Unlock()
			}()
			if s.ctx.Err() == nil {
				s.serve(conn)
			}
		})
	}
}

// stalled holds the caller up for as long as the server lives, if it shall stall here.
func (s *Server) stalled(at Stage) bool {
	if Stage(s.stall.Load()) != at {
		return false
	}
	<-s.ctx.Done()
	return true
}

var errUnknownKey = errors.New("unknown key")

func (s *Server) config() *gossh.ServerConfig {
	config := &gossh.ServerConfig{
		PublicKeyCallback: func(_ gossh.ConnMetadata, key gossh.PublicKey) (*gossh.Permissions, error) {
			if s.AuthorizedKeys != nil && !authorized(s.AuthorizedKeys, key) {
				return nil, errUnknownKey
			}
			return &gossh.Permissions{}, nil
		},
		AuthLogCallback: func(_ gossh.ConnMetadata, method string, err error) {
			if method == "none" {
				s.handshakes.Add(1)
				s.stalled(StallAuthentication)
				return
			}
			s.authAttempts.Add(1)
		},
		BannerCallback: func(gossh.ConnMetadata) string { return s.Banner },
	}
	for _, key := range s.HostKeys {
		config.AddHostKey(key)
	}
	if s.Configure != nil {
		s.Configure(config)
	}
	return config
}

func authorized(keys []gossh.PublicKey, key gossh.PublicKey) bool {
	for _, k := range keys {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}

func (s *Server) serve(raw net.Conn) {
	if s.stalled(StallHandshake) {
		return
	}
	conn, channels, requests, err := gossh.NewServerConn(raw, s.config())
	if err != nil {
		return
	}
	s.logins.Add(1)
	ctx, cancel := context.WithCancel(context.WithValue(s.ctx, userKey{}, conn.User()))
	defer cancel()
	s.running.Go(func() { s.global(requests) })
	for offered := range channels {
		if offered.ChannelType() == "direct-tcpip" {
			s.running.Go(func() { s.forward(offered) })
			continue
		}
		if offered.ChannelType() != "session" {
			_ = offered.Reject(gossh.UnknownChannelType, "only sessions")
			continue
		}
		if s.stalled(StallChannelOpen) {
			return
		}
		channel, wants, err := offered.Accept()
		if err != nil {
			break
		}
		s.running.Go(func() { s.session(ctx, channel, wants) })
	}
	_ = conn.Wait()
}

func (s *Server) global(requests <-chan *gossh.Request) {
	for request := range requests {
		if request.Type == "keepalive@openssh.com" {
			s.keepalives.Add(1)
		}
		if request.WantReply && !s.Silent {
			_ = request.Reply(false, nil) // as sshd does
		}
	}
}

// session serves one channel: one command, as sshd does.
func (s *Server) session(ctx context.Context, channel gossh.Channel, requests <-chan *gossh.Request) {
	defer func() { _ = channel.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := false
	for request := range requests {
		var exec struct{ Command string }
		if request.Type != "exec" || started || s.Exec == nil || gossh.Unmarshal(request.Payload, &exec) != nil {
			if request.WantReply {
				_ = request.Reply(request.Type == "env", nil)
			}
			continue
		}
		started = true
		s.sessions.Add(1)
		_ = request.Reply(true, nil)
		s.running.Go(func() {
			// The requests end when the channel does, so that the loop above goes on until then.
			defer func() { _ = channel.Close() }()
			if s.stalled(StallExec) {
				return
			}
			if status := s.Exec(ctx, exec.Command, channel, channel, channel.Stderr()); status >= 0 {
				_, _ = channel.SendRequest("exit-status", false, gossh.Marshal(struct{ Status uint32 }{uint32(status)})) // 0..255
			}
		})
	}
}

// Dial is the usual Forward.
func Dial(address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
}

// forward serves one connection through this server.
func (s *Server) forward(offered gossh.NewChannel) {
	if s.stalled(StallForward) {
		return
	}
	var wanted struct {
		Host       string
		Port       uint32
		Originator string
		From       uint32
	}
	if s.Forward == nil || gossh.Unmarshal(offered.ExtraData(), &wanted) != nil {
		_ = offered.Reject(gossh.Prohibited, "open failed")
		return
	}
	onward, err := s.Forward(net.JoinHostPort(wanted.Host, strconv.Itoa(int(wanted.Port))))
	if err != nil {
		_ = offered.Reject(gossh.ConnectionFailed, "Connection refused")
		return
	}
	defer func() { _ = onward.Close() }()
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	defer func() { _ = channel.Close() }()
	go gossh.DiscardRequests(requests)
	done := make(chan struct{}, 2)
	for _, way := range []struct {
		to   io.Writer
		from io.Reader
	}{{onward, channel}, {channel, onward}} {
		s.running.Go(func() {
			_, _ = io.Copy(way.to, way.from)
			done <- struct{}{}
		})
	}
	select {
	case <-done: // one side is gone; closing both ends the other copy
	case <-s.ctx.Done():
	}
}
