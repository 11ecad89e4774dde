//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// controller is an instance, as a process at a place of its own in its segment.
type controller struct {
	station    *machine.Station
	kubeconfig string
	env        []string // the chart's, NAME=value
	log        string
	process    *exec.Cmd // nil while it is down
}

func (c *controller) start() error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c.process = c.station.Command(context.Background(), os.Getenv(controllerVariable))
	c.process.Stdout, c.process.Stderr = log, log
	c.process.Env = slices.Concat(c.env, []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "KUBECONFIG=" + c.kubeconfig,
		"LOG_LEVEL=debug",
		// Scenarios wait for probes; two minutes each would be most of the suite.
		"PROBE_INTERVAL=5s",
	})
	if err := c.process.Start(); err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	return nil
}

// kill ends the controller without a chance to do anything.
func (c *controller) kill() {
	if c.process == nil {
		return
	}
	_ = c.process.Process.Signal(syscall.SIGKILL)
	_ = c.process.Wait()
	c.process = nil
}

// tail is the end of the controller's log.
func (c *controller) tail(lines int) string {
	content, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
