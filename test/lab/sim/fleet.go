package sim

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim/kubelet"
)

// Options of a fleet.
type Options struct {
	// Config is an administrator's: the fleet watches the pods of all its nodes with it. The kubelets themselves use the credentials
	// that they get by joining. Nil makes machines that can be reached by SSH but not join.
	Config *rest.Config
	// Log receives what goes wrong inside the fleet. Default: nowhere.
	Log io.Writer
	// Heartbeat is how often each kubelet renews its Lease. Default: 4s, which suits the default grace period of lab.Options; with
	// hundreds of machines raise both.
	Heartbeat time.Duration
	// ReadyDelay passes between registration and Ready, PodStartDelay between a pod's binding and Running, PodStopDelay between
	// a pod's deletion and its end. Default: none.
	ReadyDelay, PodStartDelay, PodStopDelay time.Duration
	// Portable makes machines do without what a Mac lacks also where it is there: /proc, util-linux, and a bash newer than 3.2.
	// Elsewhere than on Linux they always do.
	Portable bool
}

// Fleet is a number of machines that one login key opens. Its methods may be called from any goroutine.
type Fleet struct {
	opts   Options
	dir    string
	remove func() error
	bin    string
	bash   string
	// portable is Options.Portable, decided.
	portable bool
	token    string
	version  string
	control  *control
	watches  *kubelet.Watches
	ports    lab.Ports
	cancel   context.CancelFunc

	loginKey    ssh.Signer
	loginKeyPEM []byte

	mu       sync.Mutex
	machines map[string]*Machine
	order    []*Machine
}

// NewFleet makes a fleet without machines. The caller must Close it.
func NewFleet(ctx context.Context, opts Options) (_ *Fleet, err error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if opts.Heartbeat == 0 {
		opts.Heartbeat = 4 * time.Second
	}
	f := &Fleet{opts: opts, machines: map[string]*Machine{}, portable: opts.Portable || runtime.GOOS != "linux"}
	background, cancel := background()
	f.cancel = cancel
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if f.bash, err = findBash(); err != nil {
		return nil, err
	}
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	f.token = hex.EncodeToString(random)
	if f.loginKey, f.loginKeyPEM, err = newSSHKey(); err != nil {
		return nil, err
	}
	if f.dir, f.remove, err = lab.TempDir("kpssh-sim-"); err != nil {
		return nil, err
	}
	f.bin = filepath.Join(f.dir, "bin")
	if err := os.Mkdir(f.bin, 0o755); err != nil {
		return nil, err
	}
	if err := installStandIns(f.bin, f.bash); err != nil {
		return nil, err
	}
	if err := installUtilLinux(ctx, f.bin, f.portable); err != nil {
		return nil, err
	}
	if f.control, err = listenControl(f); err != nil {
		return nil, err
	}
	if opts.Config != nil {
		return f, f.connect(ctx, background)
	}
	return f, nil
}

func (f *Fleet) connect(ctx, background context.Context) error {
	client, err := kubernetes.NewForConfig(f.opts.Config)
	if err != nil {
		return err
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	f.version = version.GitVersion
	synced := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-synced:
		default:
			f.cancel()
		}
	})
	defer stop()
	f.watches, err = kubelet.Watch(background, client)
	close(synced)
	return err
}

func newSSHKey() (ssh.Signer, []byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "lab")
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.NewSignerFromSigner(key)
	return signer, pem.EncodeToMemory(block), err
}

// Add makes machines and switches them on.
func (f *Fleet) Add(specs ...Spec) ([]*Machine, error) {
	added := make([]*Machine, 0, len(specs))
	for _, spec := range specs {
		m, err := f.add(spec)
		if err != nil {
			return added, err
		}
		added = append(added, m)
	}
	return added, nil
}

func (f *Fleet) add(spec Spec) (*Machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := spec.setDefaults(len(f.order) + 1); err != nil {
		return nil, err
	}
	if f.machines[spec.Name] != nil {
		return nil, fmt.Errorf("there is a machine %s already", spec.Name)
	}
	port, err := f.ports.Take("127.0.0.1")
	if err != nil {
		return nil, err
	}
	m, err := newMachine(f, spec, filepath.Join(f.dir, "machines", spec.Name), port)
	if err != nil {
		return nil, fmt.Errorf("machine %s: %w", spec.Name, err)
	}
	f.machines[spec.Name] = m
	f.order = append(f.order, m)
	return m, m.PowerOn()
}

// Machine finds one by name; nil if there is none.
func (f *Fleet) Machine(name string) *Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.machines[name]
}

// Machines are all, in the order they were added.
func (f *Fleet) Machines() []*Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.order)
}

// Close switches all machines off and removes what they left on disk.
func (f *Fleet) Close() {
	var off sync.WaitGroup
	for _, m := range f.Machines() {
		off.Go(m.shutDown)
	}
	off.Wait()
	if f.token != "" {
		f.killProcesses(nil)
	}
	for _, m := range f.Machines() {
		off.Go(m.killCommands)
	}
	off.Wait()
	f.cancel()
	if f.control != nil {
		f.control.listener.Close()
	}
	f.ports.Release()
	if f.remove != nil {
		if err := f.remove(); err != nil {
			fmt.Fprintf(f.opts.Log, "sim: %v\n", err)
		}
	}
}
