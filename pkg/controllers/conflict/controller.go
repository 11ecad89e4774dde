// Package conflict finds out where two parties take one thing for theirs, and tells people. It decides what is a conflict (find.go, a
// pure function of a snapshot of the cluster), for how long something must be seen before it counts, and which one of the instances
// reports it.
//
// It writes the condition OwnershipConflict of this instance's own SSHNodeClasses, and Events. It writes no other object: one that belongs
// to another instance, or to nobody, shows its conflict by an Event and in the metrics only.
package conflict

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

const (
	// interval between surveys. Jitter keeps the instances' surveys apart.
	interval = 15 * time.Second
	jitter   = 0.2
	// noteLimit is what the API accepts as an Event's note.
	noteLimit = 1024
)

// patience is for how long a finding must be seen before it counts, where that is not at once: objects that are applied together come one
// after the other.
var patience = map[string]time.Duration{v1beta1.ReasonDanglingNodePool: time.Minute, v1beta1.ReasonDanglingNodeClaim: time.Minute}

// Options are what a Controller works with. All are required.
type Options struct {
	Self Self
	// LeaseNamespace holds the Leases of all instances.
	LeaseNamespace string
	// Live reads from the API server. Client reads own NodeClaims from the cache, and writes own SSHNodeClasses.
	Live   client.Reader
	Client client.Client
	// Hosts are this instance's own; they are only read.
	Hosts func() []*v1beta1.SSHHost
	// Refusals and Splits are what the ownership seam remembers, NamesInUse what the join controller does.
	Refusals   func() []ownership.Refusal
	Splits     func() []ownership.Split
	NamesInUse func() []NameInUse
	Recorder   events.EventRecorder
	Clock      clock.Clock
}

// Controller looks at the whole cluster now and then. It is one loop.
type Controller struct {
	Options
	lives     *lives
	contender contention
	seen      map[key]*sighting
	surveys   int
	foreign   []Host
	labelled  []LabelledClaim

	// current findings and instances, for the metrics.
	current atomic.Pointer[[]Finding]
	alive   atomic.Pointer[map[string]bool]
}

// sighting is a finding from the survey that saw it first to the last.
type sighting struct {
	since    time.Time
	reported bool
}

// NewController makes a Controller.
func NewController(o Options) *Controller {
	return &Controller{Options: o, lives: newLives(o.Self.Instance), seen: map[key]*sighting{}}
}

// Name of the controller, as logs and metrics show it.
func (c *Controller) Name() string { return "ownership.conflict" }

// Register adds the controller to a manager. Only the leader runs it.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return controllerruntime.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile makes one survey and tells what it found.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	s, err := c.survey(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	findings := c.ripen(s.Now, Find(s))
	c.current.Store(&findings)
	c.alive.Store(new(s.missed()))
	c.publish(ctx, s, findings)
	var errs []error
	for i := range s.Classes {
		class := &s.Classes[i]
		if class.Spec.Instance != c.Self.Instance || !class.DeletionTimestamp.IsZero() {
			continue
		}
		if err := c.write(ctx, class, conditionOf(class.Name, findings)); err != nil {
			errs = append(errs, fmt.Errorf("writing the status of SSHNodeClass %s: %w", class.Name, err))
		}
	}
	// A tick more, so that what is due by then is not a moment short of it.
	next := c.lives.next(s.Now, wait.Jitter(interval, jitter)) + 10*time.Millisecond
	return reconciler.Result{RequeueAfter: next}, errors.Join(errs...)
}

// ripen keeps the findings that were seen for long enough, and forgets what is not seen any more.
func (c *Controller) ripen(now time.Time, found []Finding) []Finding {
	seen := make(map[key]*sighting, len(found))
	var ripe []Finding
	for _, f := range found {
		s := c.seen[f.key()]
		if s == nil {
			s = &sighting{since: now}
		}
		seen[f.key()] = s
		if now.Sub(s.since) >= patience[f.Type] {
			ripe = append(ripe, f)
		}
	}
	c.seen = seen
	return ripe
}

// publish emits one Event for each finding that is new and this instance's to report.
func (c *Controller) publish(ctx context.Context, s Snapshot, findings []Finding) {
	for _, f := range findings {
		sighting := c.seen[f.key()]
		if sighting.reported || s.reporter(f) != c.Self.Instance {
			continue
		}
		sighting.reported = true
		object := f.Object
		c.Recorder.Eventf(&object, nil, corev1.EventTypeWarning, f.Type, f.Type, "%s", clip(f.Message))
		log.FromContext(ctx).Info("conflict about ownership", "type", f.Type, "kind", object.Kind, "namespace", object.Namespace, "name", object.Name, "other", f.Other)
	}
}

func clip(text string) string {
	if len(text) <= noteLimit {
		return text
	}
	const more = " …"
	return strings.ToValidUTF8(text[:noteLimit-len(more)], "") + more
}

// Alive are the instances that the last survey found, for metrics.Alive.
func (c *Controller) Alive() map[string]bool {
	if alive := c.alive.Load(); alive != nil {
		return *alive
	}
	return nil
}

// Conflicts are the current findings, for metrics.Conflicts.
func (c *Controller) Conflicts() []metrics.Conflict {
	findings := c.current.Load()
	if findings == nil {
		return nil
	}
	there := map[metrics.Conflict]bool{} // objects of different kinds may have one name
	var all []metrics.Conflict
	for _, f := range *findings {
		conflict := metrics.Conflict{Type: f.Type, Namespace: f.Object.Namespace, Name: f.Object.Name, Other: f.Other}
		if !there[conflict] {
			there[conflict] = true
			all = append(all, conflict)
		}
	}
	return all
}
