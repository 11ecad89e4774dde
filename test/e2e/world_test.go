//go:build linux && e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

const (
	poolNamespace = "kpssh-system"
	// poolLabel on SSHHosts is what the classes select by.
	poolLabel = "e2e/pool"
)

// Machines, and what each is for. A machine's name is its host class, too, so that a pod can ask for it.
const (
	shipped = "shipped" // the shipped profile, unchanged
	gated   = "gated"   // the shipped profile with a gate before each phase; logs in as a user with sudo
	faulty  = "faulty"  // power, keys, scripts that fail
)

var machineNames = []string{shipped, gated, faulty}

// world is what all scenarios share.
type world struct {
	site       *machine.Site
	segment    *machine.Segment
	station    *machine.Station
	machines   map[string]*machine.Machine
	cp         *lab.ControlPlane
	client     client.Client
	timeline   *timeline
	owners     *owners
	controller *controller
	root       string
	// elsewhere are the machines that are not the single instance's, and their segments.
	elsewhere map[string]*segment
	cancel    context.CancelFunc
}

func newWorld(ctx context.Context) (*world, error) {
	w := &world{machines: map[string]*machine.Machine{}, elsewhere: map[string]*segment{}, owners: newOwners()}
	var err error
	if w.root, err = lab.Root(); err != nil {
		return nil, err
	}
	options, err := siteOptions(ctx, w.root)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if w.site, err = machine.NewSite(ctx, options); err != nil {
		return nil, err
	}
	if w.segment, err = w.site.Segment(ctx, "a"); err != nil {
		return nil, err
	}
	if w.station, err = w.segment.Station(ctx, "ctl-a"); err != nil {
		return nil, err
	}
	for _, name := range machineNames {
		if w.machines[name], err = w.segment.Machine(ctx, name); err != nil {
			return nil, err
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, m := range w.machines {
		group.Go(func() error { return m.PowerOn(groupCtx) })
	}
	group.Go(func() (err error) {
		w.cp, err = lab.StartControlPlane(groupCtx, lab.Options{
			Log: ginkgo.GinkgoWriter, Scheduler: true, ControllerManager: true, CRDs: true, Audit: true,
			ListenIP: machine.HubAddress.String(),
		})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	say("%d machines and the control plane are up after %.1fs", len(machineNames), time.Since(start).Seconds())
	if w.client, err = client.New(w.cp.RESTConfig(), client.Options{Scheme: scheme.Scheme}); err != nil {
		return nil, err
	}
	// Lives as long as the suite, unlike ctx, which ends with BeforeSuite.
	var lifetime context.Context
	lifetime, w.cancel = context.WithCancel(context.Background())
	if w.timeline, err = watchTimeline(lifetime, w.cp.RESTConfig(), w.owners); err != nil {
		return nil, err
	}
	if err := w.install(ctx); err != nil {
		return nil, err
	}
	if err := w.describeHosts(ctx); err != nil {
		return nil, err
	}
	return w, w.controller.start()
}

// install is what a user does once: the cluster's side of joining, the chart's permissions, the shipped profile.
func (w *world) install(ctx context.Context) error {
	err := errors.Join(w.cp.PublishClusterInfo(ctx), w.permitJoining(ctx))
	if err != nil {
		return err
	}
	if w.controller, err = w.deploy(ctx, single); err != nil {
		return err
	}
	w.controller.station = w.station
	profile, err := w.shippedProfile()
	if err != nil {
		return err
	}
	return w.create(ctx, profile)
}

// shippedProfile is examples/profiles/tls-bootstrap.yaml, to the letter.
func (w *world) shippedProfile() (*v1beta1.SSHJoinProfile, error) {
	raw, err := os.ReadFile(filepath.Join(w.root, "examples", "profiles", "tls-bootstrap.yaml"))
	if err != nil {
		return nil, err
	}
	profile := &v1beta1.SSHJoinProfile{}
	return profile, yaml.UnmarshalStrict(raw, profile)
}

// describeHosts makes an SSHHost, a class and a pool for each machine, and the Secrets to log in with.
func (w *world) describeHosts(ctx context.Context) error {
	for _, name := range machineNames {
		m, profile := w.machines[name], "tls-bootstrap"
		if name != shipped {
			profile = name
			if err := w.create(ctx, w.gatedProfile(name, "1")); err != nil {
				return err
			}
		}
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: poolNamespace},
			Data:       map[string][]byte{"privateKey": w.site.LoginKey()},
		}
		user := "root"
		switch name {
		case shipped:
			secret.Data["knownHost"] = []byte(knownHost(m))
		case gated:
			user = machine.User
		}
		for _, object := range []client.Object{secret, w.host(m, user), nodeClass(name, profile), nodePool(name)} {
			if err := w.create(ctx, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// namespaceOf a host is the pool namespace that lists it.
func (w *world) namespaceOf(host string) string {
	if s, ok := w.elsewhere[host]; ok {
		return s.namespace
	}
	return poolNamespace
}

func (w *world) host(m *machine.Machine, user string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: w.namespaceOf(m.Name), Labels: map[string]string{
			poolLabel: m.Name, v1beta1.HostClassLabel: m.Name,
		}},
		Spec: v1beta1.SSHHostSpec{
			Address: m.Address.String(), User: user, SSHKeySecretRef: v1beta1.SecretReference{Name: m.Name},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("2Gi")},
		},
	}
}

func (w *world) create(ctx context.Context, object client.Object) error {
	if err := w.client.Create(ctx, object); err != nil {
		return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
	}
	return nil
}

// controllers are those of all installations so far.
func (w *world) controllers() []*controller {
	var all []*controller
	if w.controller != nil {
		all = append(all, w.controller)
	}
	for _, s := range w.elsewhere {
		all = append(all, s.controller)
	}
	return all
}

func (w *world) stop() {
	for _, c := range w.controllers() {
		c.kill()
	}
	if w.cancel != nil {
		w.cancel()
	}
	if w.cp != nil {
		w.cp.Stop()
	}
}

var sayOnce sync.Mutex

// say prints at once, also when nothing fails: figures, and what the suite is doing.
func say(format string, args ...any) {
	sayOnce.Lock()
	defer sayOnce.Unlock()
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		fmt.Println("e2e: " + strings.TrimRight(line, "\n"))
	}
}
