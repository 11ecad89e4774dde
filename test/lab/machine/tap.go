//go:build linux

package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Dial is an attempt to open a TCP connection, answered or not.
type Dial struct {
	From netip.Addr
	To   netip.AddrPort
}

// Tap counts the attempts to connect that pass a station's network card, in and out. It sees packets before a firewall drops the
// incoming ones and after it let the outgoing ones go, so that it knows more than sshd does.
type Tap struct {
	socket *os.File
	done   chan struct{}

	mu    sync.Mutex
	dials map[Dial]int
	err   error
}

// synFilter lets IPv4 packets pass that begin a TCP connection. It sees the packet from its network header on.
var synFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 0},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf0},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x40, Jf: 7},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 5},
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: tcpSYN | tcpACK},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: tcpSYN, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 128},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// Tap starts to count at the station.
func (s *Station) Tap() (*Tap, error) {
	socket := -1
	err := s.enter(func() (err error) {
		socket, err = tapSocket()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tap at %s: %w", s.Name, err)
	}
	t := &Tap{socket: os.NewFile(uintptr(socket), "tap at "+s.Name), done: make(chan struct{}), dials: map[Dial]int{}}
	go t.count()
	return t, nil
}

// tapSocket is opened where the calling thread is. Only a socket for all protocols is shown what goes out.
func tapSocket() (int, error) {
	// Protocol 0 receives nothing until it is bound: not even what would come before the filter.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(synFilter)), Filter: &synFilter[0]})
	if err == nil {
		var card *unix.Ifreq
		if card, err = unix.NewIfreq("eth0"); err == nil {
			if err = unix.IoctlIfreq(socket, unix.SIOCGIFINDEX, card); err == nil {
				err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: int(card.Uint32())})
			}
		}
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(socket))
	}
	return socket, nil
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

func (t *Tap) count() {
	defer close(t.done)
	packet := make([]byte, 128)
	for {
		n, err := t.socket.Read(packet)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		t.mu.Lock()
		switch {
		case errors.Is(err, unix.ENETDOWN): // the cable was pulled; it goes on when that is back
		case err != nil:
			t.err = err
			t.mu.Unlock()
			return
		default:
			t.dials[dialOf(packet[:n])]++
		}
		t.mu.Unlock()
	}
}

// dialOf reads a packet that synFilter let pass: its headers are there.
func dialOf(packet []byte) Dial {
	tcp := packet[int(packet[0]&0xf)*4:]
	return Dial{
		From: netip.AddrFrom4([4]byte(packet[12:16])),
		To:   netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[16:20])), binary.BigEndian.Uint16(tcp[2:4])),
	}
}

// Dials are the attempts so far; an attempt that is repeated because nobody answers counts each time. The error says that the count
// is not complete.
func (t *Tap) Dials() (map[Dial]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return nil, t.err
	}
	raw, err := t.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var lost *unix.TpacketStats
	if controlErr := raw.Control(func(socket uintptr) {
		lost, err = unix.GetsockoptTpacketStats(int(socket), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	}); controlErr != nil || err != nil {
		return nil, errors.Join(controlErr, err)
	}
	if lost.Drops > 0 {
		t.err = fmt.Errorf("%s lost %d packets", t.socket.Name(), lost.Drops)
		return nil, t.err
	}
	return maps.Clone(t.dials), nil
}

// Close ends the counting.
func (t *Tap) Close() error {
	err := t.socket.Close()
	<-t.done
	return err
}
