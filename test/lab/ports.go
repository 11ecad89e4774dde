package lab

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Ports hands out TCP ports that nobody else uses. A port that is merely found free can be taken by another lab before its server
// binds it, so each is reserved by a locked file, and all are below the range that systems use for outgoing connections.
type Ports struct {
	held []*os.File
}

const (
	firstPort = 20000
	lastPort  = 31999
)

// Take reserves a port that is free on ip until Release.
func (p *Ports) Take(ip string) (int, error) {
	cache, err := cacheDir()
	if err != nil {
		return 0, err
	}
	// The files stay: removing one while another process opens it would let two hold "the" lock.
	dir := filepath.Join(cache, "ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, err
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			file.Close()
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
		if err != nil {
			file.Close()
			continue
		}
		listener.Close()
		p.held = append(p.held, file)
		return port, nil
	}
	return 0, fmt.Errorf("found no free TCP port on %s between %d and %d", ip, firstPort, lastPort)
}

// Release gives all ports back.
func (p *Ports) Release() {
	for _, file := range p.held {
		file.Close()
	}
	p.held = nil
}
