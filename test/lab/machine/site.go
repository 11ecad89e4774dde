//go:build linux

package machine

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

const (
	netnsPrefix  = "kpssh-"
	bridgePrefix = "kbr-"
	vethPrefix   = "kv-"
)

// HubAddress is where the program that was enclosed, and so the control plane it starts, is reached from every segment.
var HubAddress = netip.MustParseAddr("10.10.0.1")

// Options of a site.
type Options struct {
	// RootFS is the archive that RootFS returned.
	RootFS string
	// Kubebin is the multi-call binary; every machine has it as /usr/local/bin/kubelet.
	Kubebin string
	// Pause is the program that Pause built; machines have it as the container image PauseImage.
	Pause string
	// Log gets one line for each thing that takes time.
	Log io.Writer
}

// Site is what an enclosure holds: segments and their machines. Its methods may be called from several goroutines, but not twice
// at once for the same name.
type Site struct {
	options   Options
	enclosure string
	rootfs    string
	common    string
	login     ssh.Signer
	loginPEM  []byte
	segments  int
}

// NewSite unpacks the root file system and sets up the hub, the place in the middle where the caller runs. It must be called
// inside an enclosure, once.
func NewSite(ctx context.Context, options Options) (*Site, error) {
	enclosure := os.Getenv(keyVariable)
	if enclosure == "" || os.Getenv(roleVariable) != roleInside {
		return nil, errors.New("machines run only inside an enclosure: call Enclose first in TestMain")
	}
	s := &Site{
		options: options, enclosure: enclosure,
		rootfs: filepath.Join(stateDir, "rootfs"), common: filepath.Join(stateDir, "common"),
	}
	var err error
	if s.login, s.loginPEM, err = newKey(); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", HubAddress.String() + "/32", "dev", "lo"},
	} {
		if err := ip(ctx, args...); err != nil {
			return nil, err
		}
	}
	// Segments are apart because nothing forwards between their bridges. A new namespace inherits this from some kernels' defaults.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644); err != nil {
		return nil, fmt.Errorf("keep segments apart: %w", err)
	}
	if err := os.MkdirAll(s.rootfs, 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "tar", "--extract", "--file", options.RootFS, "--use-compress-program", "zstd -d",
		"--numeric-owner", "--directory", s.rootfs).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("unpack %s: %w: %s", options.RootFS, err, out)
	}
	return s, s.writeCommonLayer()
}

// LoginKey is the private key, PEM, that logs in on every machine as root and as User.
func (s *Site) LoginKey() []byte { return s.loginPEM }

// Segment makes a network of its own: 10.10.<n>.0/24 for the n-th, the hub at .1.
func (s *Site) Segment(ctx context.Context, name string) (*Segment, error) {
	s.segments++
	segment := &Segment{site: s, Name: name, bridge: bridgePrefix + name, next: 10,
		Hub: netip.AddrFrom4([4]byte{10, 10, byte(s.segments), 1})}
	for _, args := range [][]string{
		// With an address of its own: else it takes the lowest of those that are plugged in, and whenever a lower one comes, everybody in the segment
		// goes on sending to the former one, for as long as that is remembered.
		{"link", "add", segment.bridge, "address", hubMAC(segment.Hub), "type", "bridge"},
		{"address", "add", segment.Hub.String() + "/24", "dev", segment.bridge},
		{"link", "set", segment.bridge, "up"},
	} {
		if err := ip(ctx, args...); err != nil {
			return nil, err
		}
	}
	return segment, nil
}

// hubMAC is a hub's hardware address: one that is locally administered, and as unique as the IP address.
func hubMAC(hub netip.Addr) string {
	a := hub.As4()
	return net.HardwareAddr{2, 0, a[0], a[1], a[2], a[3]}.String()
}

// Segment is a network that reaches the hub and its own members, and no other segment.
type Segment struct {
	// Name of the segment, at most 8 characters.
	Name string
	// Hub is the caller's address on this segment.
	Hub netip.Addr

	site   *Site
	bridge string
	next   byte
}

// Station is a place on a segment, with an address and a network namespace of its own: under a machine, or to run a program from.
type Station struct {
	// Name is unique in the site, at most 9 characters.
	Name string
	// Address on the segment.
	Address netip.Addr

	cable string
	netns string
}

// Station makes a place on the segment.
func (s *Segment) Station(ctx context.Context, name string) (*Station, error) {
	s.next++
	address := s.Hub.As4()
	address[3] = s.next
	station := &Station{Name: name, Address: netip.AddrFrom4(address), cable: vethPrefix + name, netns: netnsPrefix + name}
	for _, args := range [][]string{
		{"netns", "add", station.netns},
		{"link", "add", station.cable, "type", "veth", "peer", "name", "eth0", "netns", station.netns},
		{"link", "set", station.cable, "master", s.bridge, "up"},
		{"-n", station.netns, "address", "add", station.Address.String() + "/24", "dev", "eth0"},
		{"-n", station.netns, "link", "set", "lo", "up"},
		{"-n", station.netns, "link", "set", "eth0", "up"},
		{"-n", station.netns, "route", "add", "default", "via", s.Hub.String()},
	} {
		if err := ip(ctx, args...); err != nil {
			return nil, err
		}
	}
	return station, nil
}

// Command prepares a program that runs at the station: its network is the station's, the rest is the caller's.
func (s *Station) Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	// Not `ip netns exec`: that mounts another /sys, without cgroups.
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + s.netnsPath(), "--", path}, args...)...)
}

// Unplug pulls the network cable: packets vanish in both directions, nothing is told.
func (s *Station) Unplug(ctx context.Context) error { return ip(ctx, "link", "set", s.cable, "down") }

// Plug puts the cable back.
func (s *Station) Plug(ctx context.Context) error { return ip(ctx, "link", "set", s.cable, "up") }

func (s *Station) netnsPath() string { return "/run/netns/" + s.netns }

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func newKey() (ssh.Signer, []byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, nil, err
	}
	return signer, pem.EncodeToMemory(block), nil
}
