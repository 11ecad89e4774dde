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
	var conn net.Conn
	err := s.enter(func() (err error) {
		// An address, not a name, and one address family: the dialer then makes its socket on the calling thread.
		dialer := net.Dialer{Timeout: 15 * time.Second, FallbackDelay: -1}
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// enter runs something on a thread whose network is the station's.
func (s *Station) enter(do func() error) error {
	done := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with this goroutine, and its network with it.
		runtime.LockOSThread()
		done <- func() error {
			netns, err := os.Open(s.netnsPath())
			if err != nil {
				return err
			}
			defer netns.Close()
			if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the network of %s: %w", s.Name, err)
			}
			return do()
		}()
	}()
	return <-done
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
