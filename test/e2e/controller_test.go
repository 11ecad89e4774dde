//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// controller is the one instance, as a process at its own place in the segment.
type controller struct {
	world      *world
	kubeconfig string
	log        string
	process    *exec.Cmd
}

func newController(ctx context.Context, w *world) (*controller, error) {
	kubeconfig, err := w.cp.ServiceAccountKubeconfig(ctx, poolNamespace, serviceAccount)
	if err != nil {
		return nil, err
	}
	return &controller{world: w, kubeconfig: kubeconfig, log: filepath.Join(w.cp.Dir, "logs", "controller.log")}, nil
}

// serviceAccount is the chart's, for a release named like the chart's short name.
const serviceAccount = "kpssh-karpenter-provider-ssh"

func (c *controller) start() error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c.process = c.world.station.Command(context.Background(), os.Getenv(controllerVariable))
	c.process.Stdout, c.process.Stderr = log, log
	c.process.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent",
		"KUBECONFIG=" + c.kubeconfig, "POOL_NAMESPACE=" + poolNamespace, "INSTANCE_NAME=default",
		"LOG_LEVEL=debug",
		// Scenarios wait for probes; two minutes each would be most of the suite.
		"PROBE_INTERVAL=5s",
	}
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
