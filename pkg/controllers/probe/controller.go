// Package probe looks at machines that nobody holds: whether they answer, what they are, and whether a kubelet runs on them that
// should not. It decides which hosts are Available, which are Unhealthy and why, and which must leave before they may be claimed again.
//
// It writes SSHHost.status through the inventory, for unclaimed hosts only, and events; on machines it changes nothing. Hosts that are
// claimed, in use, leaving or in maintenance are never contacted, and what is not provably ours on a machine is reported and left alone.
package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/maintenance"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// Options are what a Controller works with. Zero values of Concurrency, Interval, Timeout and Random take the default.
type Options struct {
	Inventory   *host.Inventory
	Credentials *credentials.Resolver
	Dialer      Dialer
	// Nodes reads Nodes from a cache, by an index on spec.providerID; Live reads them from the API server.
	Nodes, Live client.Reader

	Recorder events.EventRecorder
	Clock    clock.Clock
	// ClusterUID and Instance are what owner files on machines name.
	ClusterUID, Instance string
	// Concurrency bounds the probes that run at a time. Default: 32
	Concurrency int
	// Interval between probes of one host; up to a fifth is added to it at random. Default: 2m
	Interval time.Duration
	// Timeout of one probe, from dialling to the last byte. Default: 30s
	Timeout time.Duration
	// KubeletUnits are systemd units that run a kubelet on some machine, besides the well-known ones and those that profiles name.
	KubeletUnits []string
	// Classes reads own classes, and profiles, from a cache; Revisions has what is installed on machines. The units that profiles name
	// come from there; without them, from the settings only.
	Classes   client.Reader
	Revisions *profile.Revisions
	// Random gives numbers in [0,1) for the jitter. Default: math/rand/v2
	Random func() float64
}

// Dialer opens connections: an *ssh.Dialer, but for simulations.
type Dialer interface {
	Connect(ctx context.Context, t ssh.Target) (ssh.Session, error)
}

// Controller probes hosts.
type Controller struct {
	Options
	// contact does one probe; replaced by tests that have no machines.
	contact func(context.Context, *v1beta1.SSHHost) observation

	wake chan struct{}

	mu       sync.Mutex
	schedule *schedule
	memories map[string]memory
}

// NewController makes a Controller.
func NewController(o Options) *Controller {
	if o.Concurrency <= 0 {
		o.Concurrency = 32
	}
	if o.Interval <= 0 {
		o.Interval = 2 * time.Minute
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	c := &Controller{Options: o, wake: make(chan struct{}, 1), schedule: newSchedule(o.Concurrency, o.Interval), memories: map[string]memory{}}
	c.contact = c.overSSH
	return c
}

// Name of the controller, as logs show it.
func (c *Controller) Name() string { return "sshhost.probe" }

var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]{1,255}$`)

// Register adds the controller to a manager: it runs while this replica leads.
func (c *Controller) Register(ctx context.Context, mgr manager.Manager) error {
	if c.ClusterUID == "" {
		return errors.New("probe: the cluster's UID is not known")
	}
	for _, unit := range c.KubeletUnits {
		if !unitName.MatchString(unit) {
			return fmt.Errorf("probe: %q is no name of a systemd unit", unit)
		}
	}
	if err := c.followSecrets(ctx, mgr); err != nil {
		return err
	}
	return mgr.Add(c)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: two replicas that probe would try a wrong key twice as often.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start probes hosts until ctx ends, and returns when the last probe has.
func (c *Controller) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName(c.Name()))
	c.Inventory.Subscribe(c.observe)
	for _, h := range c.Inventory.All() {
		c.observe(nil, h)
	}
	var probes sync.WaitGroup
	defer probes.Wait()
	for ctx.Err() == nil {
		name, wait := c.take()
		if name != "" {
			probes.Go(func() { c.work(ctx, name) })
			continue
		}
		var due <-chan time.Time
		if wait >= 0 {
			timer := c.Clock.NewTimer(wait)
			due = timer.C()
			c.await(ctx, due)
			timer.Stop()
			continue
		}
		c.await(ctx, nil)
	}
	return nil
}

func (c *Controller) await(ctx context.Context, due <-chan time.Time) {
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-due:
	}
}

// rouse makes the loop look at the schedule again.
func (c *Controller) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Controller) take() (string, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.schedule.take(c.Clock.Now())
}

// observe keeps the schedule in step with the inventory. Two changes of a host may be told in the wrong order, so what counts is what the
// inventory holds now.
func (c *Controller) observe(was, is *v1beta1.SSHHost) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is == nil {
		is = c.Inventory.Get(was.Name)
	} else if newest := c.Inventory.Get(is.Name); newest != nil {
		is = newest
	}
	if is == nil {
		c.schedule.drop(was.Name)
		delete(c.memories, was.Name)
		return
	}
	if was != nil && was.UID != is.UID {
		delete(c.memories, is.Name)
	}
	if answered(was, is) {
		c.urge(is)
	}
	c.plan(is)
	c.rouse()
}

// plan schedules what a host needs; c.mu is held.
func (c *Controller) plan(h *v1beta1.SSHHost) {
	m, now := c.memories[h.Name], c.Clock.Now()
	windows, _ := maintenance.At(h.Spec.MaintenanceWindows, now)
	switch stageOf(h, now) {
	case leaveAlone:
		if host.State(h) == v1beta1.HostMaintenance && windows.Open {
			c.schedule.plan(h.Name, proven, windows.Change)
			return
		}
		c.schedule.drop(h.Name)
	case park, unpark:
		c.schedule.plan(h.Name, proven, m.retry)
	case probe:
		in, next := laneOf(h, m), due(h, m, c.Interval)
		if !windows.Change.IsZero() && windows.Change.Before(next) {
			in, next = proven, windows.Change // to park it asks nothing of a machine
		}
		c.schedule.plan(h.Name, in, next)
	}
}
