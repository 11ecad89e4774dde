package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
)

// Options of a control plane. The zero value is etcd and kube-apiserver on loopback, which is what API tests need.
type Options struct {
	// Log receives progress lines. Default: nowhere.
	Log io.Writer
	// Scheduler and ControllerManager start these components too. The controller-manager's bootstrapsigner and tokencleaner run.
	Scheduler, ControllerManager bool
	// CRDs installs this project's and karpenter's CRDs, and Bootstrap the RBAC and the cluster-info ConfigMap that joining
	// machines need, before StartControlPlane returns: see InstallCRDs and InstallBootstrap.
	CRDs, Bootstrap bool
	// Audit writes one line per finished request to the file AuditLog names; ReadAudit parses it.
	Audit bool
	// ListenIP is where kube-apiserver listens. Default: 127.0.0.1
	ListenIP string
	// AdvertiseAddress is the IP address by which machines reach kube-apiserver. Default: ListenIP, or 127.0.0.1 if that is 0.0.0.0
	AdvertiseAddress string
	// ServerNames are further IP addresses and DNS names for kube-apiserver's certificate.
	ServerNames []string
	// NodeMonitorPeriod and NodeMonitorGracePeriod are how often the controller-manager looks at Nodes, and how long one may be
	// silent before it is NotReady. Default: 2s, 12s
	NodeMonitorPeriod, NodeMonitorGracePeriod time.Duration
	// APIServerArgs, SchedulerArgs and ControllerManagerArgs are appended to the components' arguments; the last one of a name wins.
	APIServerArgs, SchedulerArgs, ControllerManagerArgs []string
	// Dir holds everything. Default: a temporary directory, removed by Stop. A directory that is given stays.
	Dir string
}

// ControlPlane is a running one. Its methods may be called from any goroutine.
type ControlPlane struct {
	// Dir holds PKI, kubeconfigs, logs and etcd's data.
	Dir string
	// Assets is the directory with the binaries, kubectl among them.
	Assets string
	// Endpoint is kube-apiserver's URL for machines: https://<advertised address>:<port>
	Endpoint string

	opts      Options
	log       io.Writer
	port      int
	etcdURL   string
	pki       *pki
	ports     Ports
	spawner   *spawner
	admin     *rest.Config
	remove    func() error // of Dir, if it is temporary
	stopOnce  sync.Once
	mu        sync.Mutex
	processes []*Process
	stopping  bool
}

// readyTimeout is generous: labs start on machines whose cores are all busy compiling.
const readyTimeout = 3 * time.Minute

// StartControlPlane starts one and returns when it is ready: kube-apiserver's readyz, and the default ServiceAccount if there is a
// controller-manager. An error carries the end of the log of the component that is to blame. The caller must Stop it; its
// processes die with the caller's process in any case.
func StartControlPlane(ctx context.Context, opts Options) (_ *ControlPlane, err error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if opts.ListenIP == "" {
		opts.ListenIP = "127.0.0.1"
	}
	if opts.AdvertiseAddress == "" {
		opts.AdvertiseAddress = opts.ListenIP
		if net.ParseIP(opts.ListenIP).IsUnspecified() {
			opts.AdvertiseAddress = "127.0.0.1"
		}
	}
	if opts.NodeMonitorPeriod == 0 {
		opts.NodeMonitorPeriod = 2 * time.Second
	}
	if opts.NodeMonitorGracePeriod == 0 {
		opts.NodeMonitorGracePeriod = 12 * time.Second
	}
	cp := &ControlPlane{opts: opts, log: opts.Log, Dir: opts.Dir, spawner: newSpawner()}
	defer func() {
		if err != nil {
			cp.Stop()
		}
	}()
	if cp.Assets, err = Binaries(ctx, opts.Log); err != nil {
		return nil, err
	}
	if err := cp.prepare(); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := cp.startAll(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(cp.log, "lab: control plane %s is ready after %.1fs\n", cp.Endpoint, time.Since(start).Seconds())
	return cp, nil
}

func (cp *ControlPlane) prepare() (err error) {
	if cp.Dir == "" {
		if cp.Dir, cp.remove, err = TempDir("kpssh-lab-"); err != nil {
			return err
		}
	}
	for _, dir := range []string{"logs", "etcd"} {
		if err := os.MkdirAll(filepath.Join(cp.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	if cp.port, err = cp.ports.Take(cp.opts.ListenIP); err != nil {
		return err
	}
	cp.Endpoint = "https://" + net.JoinHostPort(cp.opts.AdvertiseAddress, strconv.Itoa(cp.port))
	names := append([]string{"127.0.0.1", "localhost", cp.opts.AdvertiseAddress, firstServiceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}, cp.opts.ServerNames...)
	if !net.ParseIP(cp.opts.ListenIP).IsUnspecified() {
		names = append(names, cp.opts.ListenIP)
	}
	if cp.pki, err = newPKI(filepath.Join(cp.Dir, "pki"), names); err != nil {
		return err
	}
	if cp.admin, err = cp.ClientConfig("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	// A test that creates hundreds of objects should measure the API server, not the client's rate limiter.
	cp.admin.QPS = -1
	return nil
}

func (cp *ControlPlane) startAll(ctx context.Context) error {
	etcd, err := cp.startEtcd()
	if err != nil {
		return err
	}
	// kube-apiserver waits for etcd by itself; starting both at once saves half a second.
	apiserver, err := cp.startAPIServer()
	if err != nil {
		return err
	}
	if err := cp.waitReady(ctx, apiserver, etcd); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if cp.opts.ControllerManager {
		group.Go(func() error {
			manager, err := cp.startControllerManager()
			if err != nil {
				return err
			}
			return cp.waitDefaultServiceAccount(ctx, manager)
		})
	}
	if cp.opts.Scheduler {
		group.Go(func() error {
			_, err := cp.startScheduler()
			return err
		})
	}
	if cp.opts.CRDs {
		group.Go(func() error { return cp.InstallCRDs(ctx) })
	}
	if cp.opts.Bootstrap {
		group.Go(func() error { return cp.InstallBootstrap(ctx) })
	}
	return group.Wait()
}

// run starts a component.
func (cp *ControlPlane) run(name string, args []string) (*Process, error) {
	return cp.Start(name, filepath.Join(cp.Assets, name), args, nil)
}

// Start runs any program for as long as the control plane lives, unless it ends before. Its output goes to logs/<name>.log, where
// a program of the same name that ran before has left its own. env is added to this process's environment.
func (cp *ControlPlane) Start(name, path string, args, env []string) (*Process, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.stopping {
		return nil, errors.New("the control plane is stopping")
	}
	p, err := cp.spawner.start(name, filepath.Join(cp.Dir, "logs"), path, args, env)
	if err != nil {
		return nil, err
	}
	cp.processes = append(cp.processes, p)
	return p, nil
}

// Stop kills everything and removes the temporary directory. There is nothing to save, so nobody is asked to shut down: it
// takes milliseconds. It may be called more than once.
func (cp *ControlPlane) Stop() {
	cp.stopOnce.Do(func() {
		cp.mu.Lock()
		cp.stopping = true
		processes := cp.processes
		cp.mu.Unlock()
		// The last first: what depends on others should not be seen complaining that they are gone.
		for _, p := range slices.Backward(processes) {
			p.Kill()
		}
		cp.spawner.close()
		cp.ports.Release()
		if cp.remove != nil {
			// Failing to remove a temporary directory is no reason to fail a test: the next lab tries again.
			_ = cp.remove()
		}
	})
}

// LogTail is the end of a component's log ("etcd", "kube-apiserver", ...), for failure messages.
func (cp *ControlPlane) LogTail(component string, lines int) string {
	return string(tail(filepath.Join(cp.Dir, "logs", component+".log"), lines))
}
