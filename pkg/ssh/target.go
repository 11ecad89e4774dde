package ssh

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// DefaultPort is where SSH servers listen.
const DefaultPort = 22

// Target is a machine and how to log in to it. It prints without its key.
type Target struct {
	// Address is an IP address or DNS name; an IPv6 literal with or without brackets, without a zone.
	Address string
	// Port of the SSH server; 0 means DefaultPort.
	Port int
	// User to log in as. Every user but root needs sudo without a password.
	User string
	// Key is the one identity that is offered.
	Key Signer
	// Pins are the host keys a person allowed. When there is one, Trusted counts for nothing.
	Pins Pins
	// Trusted is the host key seen first, SHA256:<43 characters>. Without it and without Pins, any host key is accepted, and
	// Conn.HostKeyFingerprint tells which it was.
	Trusted string
	// Jumps are the SSH servers on the way, the first one first; empty: the machine is dialled directly. Each is logged in to with its own
	// key, must be pinned, and has no Jumps of its own.
	Jumps []Target
}

// String names the target as people write it: user@host:port.
func (t Target) String() string {
	return t.user() + "@" + net.JoinHostPort(strings.Trim(t.Address, "[]"), strconv.Itoa(t.port()))
}

// GoString keeps %#v from printing the key.
func (t Target) GoString() string { return fmt.Sprintf("ssh.Target(%s)", t) }

func (t Target) user() string {
	if t.User == "" {
		return "root"
	}
	return t.User
}

func (t Target) port() int {
	if t.Port == 0 {
		return DefaultPort
	}
	return t.Port
}

// endpoint is what to dial.
func (t Target) endpoint() (string, error) {
	host, err := bareHost(t.Address)
	if err != nil {
		return "", err
	}
	if t.port() < 1 || t.port() > 65535 {
		return "", fault.New(fault.Configuration, "AddressInvalid", nil, "port %d of %q is not between 1 and 65535", t.Port, t.Address)
	}
	return net.JoinHostPort(host, strconv.Itoa(t.port())), nil
}

// bareHost takes brackets off an IPv6 literal and refuses what cannot be an address. A zone names an interface of the
// machine that dials, and the controller's replicas do not share interfaces.
func bareHost(address string) (string, error) {
	host := strings.TrimSpace(address)
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if strings.Contains(host, "%") {
		return "", fault.New(fault.Configuration, "AddressInvalid", nil,
			"address %q has a zone, which means nothing outside one machine: use a global or unique local address", address)
	}
	if host == "" || strings.ContainsAny(host, "[]/@ \t\r\n") {
		return "", fault.New(fault.Configuration, "AddressInvalid", nil, "address %q is neither an IP address nor a DNS name", address)
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return "", fault.New(fault.Configuration, "AddressInvalid", nil,
				"address %q is neither an IP address nor a DNS name: a port belongs into the port field", address)
		}
	}
	return host, nil
}
