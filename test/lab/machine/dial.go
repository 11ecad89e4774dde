//go:build linux

package machine

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// Dial connects from the station. It has the signature of net.Dialer.DialContext.
func (s *Station) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		// The thread is not unlocked: it ends with this goroutine, and its network with it.
		runtime.LockOSThread()
		conn, err := s.dialOnThisThread(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (s *Station) dialOnThisThread(ctx context.Context, network, address string) (net.Conn, error) {
	netns, err := os.Open(s.netnsPath())
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the network of %s: %w", s.Name, err)
	}
	// An address, not a name, and one address family: the dialer then makes its socket on the calling thread.
	dialer := net.Dialer{Timeout: 15 * time.Second, FallbackDelay: -1}
	return dialer.DialContext(ctx, network, address)
}

func (s *Station) dialSSH(address string, config *ssh.ClientConfig) (*ssh.Client, error) {
	conn, err := s.Dial(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	client, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ssh.NewClient(client, channels, requests), nil
}
