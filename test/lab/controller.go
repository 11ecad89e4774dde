package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// BuildController compiles cmd/controller of the working tree and returns the binary's path.
func BuildController(ctx context.Context) (string, error) { return Build(ctx, "cmd/controller") }

// Build compiles a command of the working tree, named by its directory, and returns the binary's path, in the user's cache directory:
// where it is current, nothing is linked again.
func Build(ctx context.Context, directory string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// Working trees do not share one, and processes that share a working tree build it one after the other.
	sum := sha256.Sum256([]byte(root))
	name := filepath.Base(directory)
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), func(string) {})
	if err != nil {
		return "", err
	}
	defer unlock()
	binary := filepath.Join(dir, name)
	args := append([]string{"build", "-ldflags=-s -w", "-o", binary}, append(buildFlags, "./"+directory)...)
	cmd := goCommand(ctx, root, args...)
	remove, err := workIn(cmd)
	if err != nil {
		return "", err
	}
	defer func() { _ = remove() }() // the next build tries again
	if output, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("building %s: %w\n%s", directory, err, bytes.TrimSpace(output))
	}
	return binary, nil
}

// ControllerOptions of one controller process.
type ControllerOptions struct {
	// Binary is what BuildController returned.
	Binary string
	// Name of the process's log. Default: controller-<Instance>
	Name string
	// Instance and PoolNamespace as in INSTANCE_NAME and POOL_NAMESPACE. Default: "default", "kpssh-system"
	Instance, PoolNamespace string
	// Kubeconfig it uses. Default: one of a cluster administrator
	Kubeconfig string
	// Env is added, NAME=value; it wins over what StartController sets.
	Env []string
}

// StartController runs a real controller process, as its Deployment would, with ports of its own for metrics and health. It returns
// at once; the process's log tells the rest.
func (cp *ControlPlane) StartController(o ControllerOptions) (*Process, error) {
	if o.Instance == "" {
		o.Instance = "default"
	}
	if o.PoolNamespace == "" {
		o.PoolNamespace = "kpssh-system"
	}
	if o.Name == "" {
		o.Name = "controller-" + o.Instance
	}
	if o.Kubeconfig == "" {
		var err error
		if o.Kubeconfig, err = cp.Kubeconfig("kpssh-controller-"+o.Instance, "system:masters"); err != nil {
			return nil, err
		}
	}
	env := []string{"KUBECONFIG=" + o.Kubeconfig, "INSTANCE_NAME=" + o.Instance, "POOL_NAMESPACE=" + o.PoolNamespace}
	for _, name := range []string{"METRICS_PORT", "HEALTH_PROBE_PORT"} {
		port, err := cp.takePort()
		if err != nil {
			return nil, err
		}
		env = append(env, name+"="+strconv.Itoa(port))
	}
	return cp.Start(o.Name, o.Binary, nil, append(env, o.Env...))
}

// takePort reserves one for the control plane's life, on all addresses.
func (cp *ControlPlane) takePort() (int, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.ports.Take("0.0.0.0")
}
