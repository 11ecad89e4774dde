package profile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Reasons of faults that have to do with holding profiles.
const (
	ReasonProfileHoldForbidden   = "ProfileHoldForbidden"
	ReasonProfileHoldUnavailable = "ProfileHoldUnavailable"
)

const (
	// lag is how long a cache may take to show a finalizer that this process has written; until then it is not asked for again.
	lag = 10 * time.Second
	// holdAttempts is how often a write is decided anew because somebody else, another instance for one, wrote the profile meanwhile.
	holdAttempts = 6
)

// Holds keeps SSHJoinProfiles from vanishing while hosts of this instance have them installed, by a finalizer that is this instance's alone.
// It writes finalizers of SSHJoinProfiles, each write on the resourceVersion it was decided on, and nothing else. Errors are *fault.Error.
type Holds struct {
	client    client.Client
	live      client.Reader
	namespace string
	finalizer string
	clock     clock.PassiveClock

	// turn lets one caller decide and write at a time: none takes a profile while another lets it go.
	turn chan struct{}

	mu sync.Mutex
	// using counts the operations of this process that may install a profile, by its name.
	using map[string]int
	// added is when this process wrote, or read from the API server, the finalizer.
	added map[types.UID]time.Time
}

// NewHolds writes through c and reads through live, which must not be a cache. The hosts that count are those of the namespace.
func NewHolds(c client.Client, live client.Reader, namespace, instance string, clk clock.PassiveClock) *Holds {
	return &Holds{
		client: c, live: live, namespace: namespace, finalizer: v1beta1.InstalledFinalizer(instance), clock: clk,
		turn: make(chan struct{}, 1), using: map[string]int{}, added: map[types.UID]time.Time{},
	}
}

// Holding tells whether this instance's finalizer is on a profile.
func (h *Holds) Holding(p *v1beta1.SSHJoinProfile) bool {
	return controllerutil.ContainsFinalizer(p, h.finalizer)
}

// Take holds a profile for an operation that may install it; call it before the machine is touched, and done when the operation has ended
// and, if it installed, has recorded that on the host. Faults: Configuration/ProfileNotFound, Configuration/ProfileDeleting (nothing new is
// installed from a profile that goes), Configuration/ProfileHoldForbidden, Cluster/ProfileHoldUnavailable.
func (h *Holds) Take(ctx context.Context, p *v1beta1.SSHJoinProfile) (done func(), err error) {
	if err := h.begin(ctx); err != nil {
		return nil, err
	}
	defer h.end()
	if err := h.keep(ctx, p); err != nil {
		return nil, err
	}
	h.use(p.Name, 1)
	return sync.OnceFunc(func() { h.use(p.Name, -1) }), nil
}

// Keep holds a profile that a host has installed already. Faults: as of Take.
func (h *Holds) Keep(ctx context.Context, p *v1beta1.SSHJoinProfile) error {
	if err := h.begin(ctx); err != nil {
		return err
	}
	defer h.end()
	return h.keep(ctx, p)
}

// Release lets a profile go, unless a host needs it: the hosts are read from the API server, because what a cache does not show may be all
// that the profile is held for. It returns what needs it; nothing does if the finalizer is off.
func (h *Holds) Release(ctx context.Context, p *v1beta1.SSHJoinProfile) (needed []string, err error) {
	if err := h.begin(ctx); err != nil {
		return nil, err
	}
	defer h.end()
	if h.inUse(p.Name) {
		return []string{"a join that is under way"}, nil
	}
	list := &v1beta1.SSHHostList{}
	if err := h.live.List(ctx, list, client.InNamespace(h.namespace)); err != nil {
		return nil, h.failed(err, p.Name)
	}
	hosts := make([]*v1beta1.SSHHost, 0, len(list.Items))
	for i := range list.Items {
		hosts = append(hosts, &list.Items[i])
	}
	if needed := UsersOf(p.Name, hosts, h.profileOf(ctx)); len(needed) > 0 {
		return needed, nil
	}
	err = h.write(ctx, p.Name, p, func(newest *v1beta1.SSHJoinProfile) (bool, error) {
		return newest.UID == p.UID && controllerutil.RemoveFinalizer(newest, h.finalizer), nil
	})
	if fault.Is(err, fault.Configuration) && fault.Of(err).Reason == v1beta1.ReasonProfileNotFound {
		err = nil
	}
	if err == nil {
		h.forget(p.UID)
	}
	return nil, err
}

// profileOf is the profile that a class names now; empty if it names none or cannot be read: the machines of such a class are told nothing.
func (h *Holds) profileOf(ctx context.Context) func(class string) string {
	return func(name string) string {
		class := &v1beta1.SSHNodeClass{}
		if err := h.client.Get(ctx, types.NamespacedName{Name: name}, class); err != nil {
			return ""
		}
		return class.Spec.JoinProfileRef.Name
	}
}

// keep puts the finalizer on, at no cost if it is known to be there.
func (h *Holds) keep(ctx context.Context, p *v1beta1.SSHJoinProfile) error {
	if !p.DeletionTimestamp.IsZero() {
		return deleting(p.Name)
	}
	if h.known(p) {
		return nil
	}
	err := h.write(ctx, p.Name, nil, func(live *v1beta1.SSHJoinProfile) (bool, error) {
		switch {
		case live.UID != p.UID:
			return false, fault.New(fault.Cluster, ReasonProfileHoldUnavailable, nil, "SSHJoinProfile %s was deleted and made anew; it is tried again", p.Name)
		case !live.DeletionTimestamp.IsZero():
			return false, deleting(p.Name)
		}
		return controllerutil.AddFinalizer(live, h.finalizer), nil
	})
	if err == nil {
		h.mu.Lock()
		h.added[p.UID] = h.clock.Now()
		h.mu.Unlock()
	}
	return err
}

// write changes a profile's finalizers: those of p as it was read, or, if p is nil or somebody else wrote since, as they are now.
func (h *Holds) write(ctx context.Context, name string, p *v1beta1.SSHJoinProfile, change func(*v1beta1.SSHJoinProfile) (bool, error)) error {
	for attempt := 1; ; attempt++ {
		if p == nil {
			p = &v1beta1.SSHJoinProfile{}
			if err := h.live.Get(ctx, types.NamespacedName{Name: name}, p); err != nil {
				return h.failed(err, name)
			}
		}
		changed := p.DeepCopy()
		if wanted, err := change(changed); err != nil || !wanted {
			return err
		}
		err := h.client.Patch(ctx, changed, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || attempt == holdAttempts {
			return h.failed(err, name)
		}
		p = nil
	}
}

func (h *Holds) begin(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Holds) end() { <-h.turn }

func (h *Holds) use(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.using[name] += n; h.using[name] == 0 {
		delete(h.using, name)
	}
}

func (h *Holds) inUse(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.using[name] > 0
}

// known tells whether the finalizer is on the profile: this process knows that it was, and has heard nothing to the contrary.
func (h *Holds) known(p *v1beta1.SSHJoinProfile) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, found := h.added[p.UID]
	return found && (controllerutil.ContainsFinalizer(p, h.finalizer) || h.clock.Since(at) < lag)
}

func (h *Holds) forget(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.added, uid)
}

func deleting(name string) error {
	return fault.New(fault.Configuration, v1beta1.ReasonProfileDeleting, nil,
		"SSHJoinProfile %s is being deleted, so nothing is installed from it any more: name another one in spec.joinProfileRef of the SSHNodeClass", name)
}

func (h *Holds) failed(err error, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return fault.New(fault.Configuration, v1beta1.ReasonProfileNotFound, nil, "SSHJoinProfile %s does not exist: create it", name)
	case apierrors.IsForbidden(err):
		return fault.New(fault.Configuration, ReasonProfileHoldForbidden, err,
			"holding SSHJoinProfile %s: grant the controller patch on sshjoinprofiles, for its finalizer %s", name, h.finalizer)
	}
	return fault.New(fault.Cluster, ReasonProfileHoldUnavailable, err, "holding SSHJoinProfile %s failed; it is tried again", name)
}

// UsersOf names the hosts, sorted, that a profile must be held for: those that have any version of it installed, those that have yet to leave
// by it, and those whose claim is about to install it. profileOf tells which profile a class names; nil: claims in flight do not count.
func UsersOf(profile string, hosts []*v1beta1.SSHHost, profileOf func(class string) string) []string {
	var users []string
	for _, h := range hosts {
		if uses(profile, h, profileOf) {
			users = append(users, h.Name)
		}
	}
	slices.Sort(users)
	return users
}

func uses(profile string, h *v1beta1.SSHHost, profileOf func(class string) string) bool {
	if installed, _, _ := strings.Cut(h.Status.InstalledProfile, "@"); installed == profile {
		return true
	}
	// After a failed join the marker is gone, but the machine may have joined by these scripts.
	held := h.Status.ClaimRef != nil || h.Status.State == v1beta1.HostLeaving ||
		apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionLeavePending)
	if held && keeps(h.Status.InstalledRevision, profile) {
		return true
	}
	return profileOf != nil && h.Status.State == v1beta1.HostClaimed && h.Status.ClaimRef != nil && profileOf(h.Status.ClaimRef.NodeClass) == profile
}

// keeps tells whether a revision, by its name, is one of a profile.
func keeps(revision, profile string) bool {
	end := len(revision) - digestLength - 1
	return end > 0 && revision[end] == '-' && revision[:end] == namePrefix(profile)
}

// Few lists names, the first ones.
func Few(names []string) string {
	const shown = 5
	list := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}
