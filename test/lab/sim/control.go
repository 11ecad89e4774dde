package sim

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// control answers the stand-ins of all machines: one line in (token, machine, command, arguments; tabs between), one line
// out (exit code, stream), then what to print.
type control struct {
	listener net.Listener
	port     string
	fleet    *Fleet
}

func listenControl(fleet *Fleet) (*control, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	c := &control{listener: listener, port: port, fleet: fleet}
	go c.serve()
	return c, nil
}

func (c *control) serve() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			line, err := bufio.NewReader(io.LimitReader(conn, 64*1024)).ReadString('\n')
			if err != nil {
				return
			}
			code, stream, text := c.answer(strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
			fmt.Fprintf(conn, "%d %d\n%s", code, stream, text)
		}()
	}
}

func (c *control) answer(fields []string) (code, stream int, text string) {
	if len(fields) < 3 || fields[0] != c.fleet.token {
		return 1, 2, "not for you\n"
	}
	m := c.fleet.Machine(fields[1])
	if m == nil {
		return 1, 2, "no such machine\n"
	}
	switch command, args := fields[2], fields[3:]; command {
	case "systemctl":
		return m.services.systemctl(args)
	case "phase":
		args = append(args, "", "", "")
		return 0, 1, m.beginPhase(args[0], args[1], args[2])
	default:
		return 1, 2, "unknown command " + command + "\n"
	}
}
