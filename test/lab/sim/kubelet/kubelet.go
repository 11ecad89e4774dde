// Package kubelet is a stand-in for the kubelet of a simulated machine. To the API server it is one: it performs the TLS
// bootstrap with the bootstrap token it was given, registers its Node under its own identity (so the Node authorizer and
// NodeRestriction judge it), renews its Lease, reports status, and says of the pods bound to it that they run. What it lacks
// is containers.
//
// It writes CertificateSigningRequests, its Node and Lease, and the status of pods bound to it, which it deletes when their
// time has come; on disk, its credentials below Options.StateDir.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Machine is what a kubelet finds out about its machine by itself.
type Machine struct {
	Arch string
	// Capacity must have cpu, memory and pods.
	Capacity          corev1.ResourceList
	MachineID, BootID string
}

// Options of one run of a kubelet, from start to stop.
type Options struct {
	// Config is what the join script configured.
	Config Config
	// BootstrapKubeconfig is the path of the kubeconfig with the bootstrap token. Unused once there are credentials.
	BootstrapKubeconfig string
	// StateDir keeps the credentials, so that a restarted kubelet needs no token: /var/lib/kubelet of the machine.
	StateDir string
	// Machine is what the Node's status reports.
	Machine Machine
	// Watches are shared by all kubelets of a process.
	Watches *Watches
	// Version that the Node reports.
	Version string
	// Heartbeat is how often the Lease is renewed.
	Heartbeat time.Duration
	// ReadyDelay passes between registration and Ready, PodStartDelay between a pod's binding and Running, PodStopDelay between
	// a pod's deletion and its end.
	ReadyDelay, PodStartDelay, PodStopDelay time.Duration
	// Log gets one line per event.
	Log func(format string, args ...any)
}

// Run is the kubelet's life: it returns when the context ends, or for good when the configuration is unusable, as a kubelet
// would exit. Trouble with the API server is retried for ever.
func Run(ctx context.Context, o Options) error {
	if err := o.Config.validate(); err != nil {
		return err
	}
	client, err := o.credentials(ctx)
	if err != nil {
		return err
	}
	node, err := o.register(ctx, client)
	if err != nil {
		return err
	}
	if err := pause(ctx, o.ReadyDelay); err != nil {
		return err
	}
	if err := retry(ctx, o.Log, "report Ready", func() error { return o.reportStatus(ctx, client, true) }); err != nil {
		return err
	}
	o.Log("node %s is ready", node.Name)
	stopPods := o.startPods(ctx, client)
	defer stopPods()
	o.heartbeats(ctx, client)
	return ctx.Err()
}

// heartbeats renews the Lease until the context ends. The status is reported once in a while, as a kubelet with nothing to say does,
// and when the control plane has declared the Node dead: nobody else makes it Ready again.
func (o *Options) heartbeats(ctx context.Context, client kubernetes.Interface) {
	const statusInterval = 5 * time.Minute
	lease := &leaseKeeper{client: client, node: o.Config.NodeName, duration: 4 * o.Heartbeat}
	nextStatus := time.Now().Add(statusInterval)
	for beat := 0; ; beat++ {
		if err := lease.renew(ctx); err != nil && ctx.Err() == nil {
			o.Log("renew lease: %v", err)
		}
		// At the first beat the watch may not have seen what was reported just before.
		if time.Now().After(nextStatus) || beat > 0 && o.Watches.calledDead(o.Config.NodeName) {
			nextStatus = time.Now().Add(statusInterval)
			if err := o.reportStatus(ctx, client, true); err != nil && ctx.Err() == nil {
				o.Log("report status: %v", err)
			}
		}
		// Hundreds of kubelets that started together should not renew together.
		jitter := time.Duration(rand.Int64N(int64(o.Heartbeat)/5 + 1))
		if pause(ctx, o.Heartbeat-jitter) != nil {
			return
		}
	}
}

// retry calls f until it succeeds or the context ends.
func retry(ctx context.Context, log func(string, ...any), what string, f func() error) error {
	for delay := 200 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log("%s: %v", what, err)
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// writeFile replaces a file in one step: a machine may lose power at any moment.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (c *Config) validate() error {
	if c.NodeName == "" {
		return errors.New("NODE_NAME is not set")
	}
	if c.NodeIP == "" {
		return fmt.Errorf("node %s: NODE_IP is not set", c.NodeName)
	}
	return nil
}
