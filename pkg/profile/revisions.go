package profile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Reasons of faults that have to do with kept revisions.
const (
	ReasonRevisionMissing     = "RevisionMissing"
	ReasonRevisionCorrupt     = "RevisionCorrupt"
	ReasonRevisionForbidden   = "RevisionForbidden"
	ReasonRevisionUnavailable = "RevisionUnavailable"
)

const (
	// trust is how long a revision that was seen is taken to exist. It bounds the damage when somebody deletes one by hand.
	trust = 10 * time.Minute
	// grace keeps Prune off revisions that this process has ensured lately: between Ensure and the status write that records the
	// revision lies a whole install, and a leave without its revision cannot run.
	grace = 24 * time.Hour
)

// Revisions keeps profiles as ControllerRevisions in the pool namespace, so that a machine leaves by the scripts it joined by, after
// profile, class and Secrets are gone. Errors are *fault.Error. Needs get, list, create and delete on controllerrevisions there.
type Revisions struct {
	client    client.Client
	live      client.Reader
	namespace string
	clock     clock.PassiveClock

	// pruning keeps Ensure from finding a revision that Prune is about to delete.
	pruning sync.RWMutex

	keeping sync.Mutex // one write at a time
	mu      sync.Mutex
	known   map[string]Revision
	seen    map[string]time.Time
	ensured map[string]time.Time
}

// NewRevisions writes through c and reads through live, which must not be a cache: a revision that a lagging cache does not show
// yet would look like one that was lost.
func NewRevisions(c client.Client, live client.Reader, namespace string) *Revisions {
	return &Revisions{
		client: c, live: live, namespace: namespace, clock: clock.RealClock{},
		known: map[string]Revision{}, seen: map[string]time.Time{}, ensured: map[string]time.Time{},
	}
}

// Ensure keeps a revision. Call it before install and record the name on the host after. It costs no API call when this process has
// seen the revision in the last 10 minutes.
func (r *Revisions) Ensure(ctx context.Context, revision Revision) error {
	r.pruning.RLock()
	defer r.pruning.RUnlock()
	now := r.clock.Now()
	r.mu.Lock()
	r.ensured[revision.Name] = now
	fresh := r.fresh(revision.Name, now)
	r.mu.Unlock()
	if fresh {
		return nil
	}
	// Many joins of one new version begin at once; the first of them keeps it for all.
	r.keeping.Lock()
	defer r.keeping.Unlock()
	r.mu.Lock()
	fresh = r.fresh(revision.Name, now)
	r.mu.Unlock()
	if fresh {
		return nil
	}
	err := r.client.Create(ctx, revision.object(r.namespace))
	if apierrors.IsAlreadyExists(err) {
		err = r.repair(ctx, revision)
	}
	if err != nil {
		return r.failed(err, "keeping", revision.Name)
	}
	r.remember(revision, now)
	return nil
}

// repair replaces an object of the revision's name that does not hold its content. Data of ControllerRevisions cannot be updated.
func (r *Revisions) repair(ctx context.Context, revision Revision) error {
	object, err := r.read(ctx, revision.Name)
	switch {
	case apierrors.IsNotFound(err):
		return r.client.Create(ctx, revision.object(r.namespace))
	case err != nil:
		return err
	}
	if _, err := revisionFrom(object); err == nil {
		return nil
	}
	if err := r.client.Delete(ctx, object, client.Preconditions{UID: &object.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	return r.client.Create(ctx, revision.object(r.namespace))
}

// Get reads a revision back, by SSHHost.status.installedRevision. Faults: Configuration/RevisionMissing, Configuration/RevisionCorrupt
// (the object was tampered with; its scripts would run as root), Cluster/RevisionUnavailable.
func (r *Revisions) Get(ctx context.Context, name string) (Revision, error) {
	r.mu.Lock()
	revision, found := r.known[name]
	r.mu.Unlock()
	if found {
		return revision, nil // content is named by its digest, so it never goes stale
	}
	object, err := r.read(ctx, name)
	if apierrors.IsNotFound(err) {
		return Revision{}, fault.New(fault.Configuration, ReasonRevisionMissing, nil,
			"ControllerRevision %s/%s, which keeps the leave script of what is installed, is gone: restore it, or make the machine leave by hand and clear status.installedRevision of its SSHHost",
			r.namespace, name)
	}
	if err != nil {
		return Revision{}, r.failed(err, "reading", name)
	}
	revision, err = revisionFrom(object)
	if err != nil {
		return Revision{}, fault.New(fault.Configuration, ReasonRevisionCorrupt, err,
			"ControllerRevision %s/%s was changed and is not used: restore it, or apply the SSHJoinProfile of that version again", r.namespace, name)
	}
	r.remember(revision, r.clock.Now())
	return revision, nil
}

// Prune deletes the revisions that no host has installed and that this process has not ensured for a day. Call it with the installed
// revisions of all hosts of the namespace, read after they were listed completely.
func (r *Revisions) Prune(ctx context.Context, inUse sets.Set[string]) error {
	var list appsv1.ControllerRevisionList
	if err := r.live.List(ctx, &list, client.InNamespace(r.namespace), client.HasLabels{RevisionLabel}); err != nil {
		return r.failed(err, "listing", "")
	}
	var failures []error
	for i := range list.Items {
		if object := &list.Items[i]; !inUse.Has(object.Name) {
			failures = append(failures, r.prune(ctx, object))
		}
	}
	return errors.Join(failures...)
}

func (r *Revisions) prune(ctx context.Context, object *appsv1.ControllerRevision) error {
	r.pruning.Lock()
	defer r.pruning.Unlock()
	if !r.forget(object.Name) {
		return nil
	}
	err := r.client.Delete(ctx, object, client.Preconditions{UID: &object.UID})
	if client.IgnoreNotFound(err) != nil {
		return r.failed(err, "pruning", object.Name)
	}
	return nil
}

// forget drops what is known of a revision, unless it was ensured lately.
func (r *Revisions) forget(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, found := r.ensured[name]; found && r.clock.Since(at) < grace {
		return false
	}
	delete(r.ensured, name)
	delete(r.known, name)
	delete(r.seen, name)
	return true
}

func (r *Revisions) fresh(name string, now time.Time) bool {
	at, found := r.seen[name]
	return found && now.Sub(at) < trust
}

func (r *Revisions) remember(revision Revision, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[revision.Name] = revision
	r.seen[revision.Name] = now
}

func (r *Revisions) read(ctx context.Context, name string) (*appsv1.ControllerRevision, error) {
	object := &appsv1.ControllerRevision{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, object)
	return object, err
}

func (r *Revisions) failed(err error, doing, name string) error {
	what := fmt.Sprintf("%s ControllerRevision %s/%s", doing, r.namespace, name)
	if apierrors.IsForbidden(err) {
		return fault.New(fault.Configuration, ReasonRevisionForbidden, err,
			"%s: grant the controller get, list, create and delete on controllerrevisions.apps in namespace %s", what, r.namespace)
	}
	return fault.New(fault.Cluster, ReasonRevisionUnavailable, err, "%s failed; it is tried again", what)
}
