package turn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

const (
	// expiry is for how long the Lease must not have changed, by the clock of whoever waits, before the turn is taken from its holder.
	expiry = 20 * time.Second
	// renewal is how often a holder shows that it is alive while its loop runs. Several fit into expiry.
	renewal = 5 * time.Second
)

// ErrNotMyTurn is in the chain of every refused disruption. Core drops the command and decides anew.
var ErrNotMyTurn = errors.New("voluntary disruption is another instance's turn")

// Options are what a Turn works with. All are required.
type Options struct {
	// Instance is who asks.
	Instance string
	// Namespace of the Lease: the one of the instances' leases.
	Namespace string
	// Live reads the API server itself; Writer writes to it.
	Live   client.Reader
	Writer client.Writer
	Clock  clock.Clock
}

// Turn is one instance's part in taking turns. One loop at a time calls Begin and End; Admit is safe for concurrent use.
type Turn struct {
	instance  string
	namespace string
	live      client.Reader
	writer    client.Writer
	clock     clock.Clock
	// Tainted names the Nodes that core's own state shows with the disruption taint. Set before the first Begin.
	tainted func() map[string]struct{}

	mu sync.Mutex
	// held is the turn that this process took, as far as it knows; nil if none.
	held *epoch
	// settled is the turn for which core's state was found to show every earlier disruption.
	settled *epoch
	// loop is the turn in which the running loop began; nil if it began without one.
	loop *epoch
	// eager: the first loop of a process takes a free turn without being asked to, or its first disruption would be refused.
	eager bool
	// wantedSince is when a disruption was refused that still waits for its turn; zero if none does.
	wantedSince time.Time
	// observed is the last change of the Lease, and when this process saw it.
	observed      observation
	observedSince time.Time
}

// observation is what changes on a Lease whose holder lives.
type observation struct {
	epoch   epoch
	renewed time.Time
}

// New makes a Turn.
func New(o Options) *Turn {
	return &Turn{instance: o.Instance, namespace: o.Namespace, live: o.Live, writer: o.Writer, clock: o.Clock, eager: true}
}

// Begin comes before each of core's disruption loops. It returns false while a disruption waits for its turn: the loop would decide
// what must be refused. An error means that whose turn it is could not be found out.
func (t *Turn) Begin(ctx context.Context) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loop = nil
	if t.held == nil && !t.wanted() && !t.eager {
		return true, nil // most loops find nothing to do, and need no turn for it
	}
	if t.held == nil {
		if err := t.acquire(ctx); err != nil {
			return false, err
		}
	}
	t.eager = false
	if t.held == nil {
		return !t.wanted(), nil
	}
	if shown, err := t.shown(ctx); err != nil || !shown {
		return false, err
	}
	t.loop = t.held
	return true, nil
}

// acquire takes the turn if it may be taken, or else queues for it if there is something to wait for. Called with t.mu.
func (t *Turn) acquire(ctx context.Context) error {
	l, err := t.read(ctx)
	if err != nil {
		return err
	}
	how := t.free(l)
	if how == "" {
		return t.enqueue(ctx, l)
	}
	taken := t.take(l)
	ok, err := t.write(ctx, taken)
	if err != nil || !ok {
		return err
	}
	t.held = ptr.To(epochOf(taken))
	metrics.TurnsTaken.WithLabelValues(how).Inc()
	metrics.TurnHeld.Set(1)
	return nil
}

// free says how the turn may be taken now, or nothing if it may not. Called with t.mu.
func (t *Turn) free(l *coordinationv1.Lease) string {
	if l == nil {
		return "free"
	}
	seen := observation{epoch: epochOf(l), renewed: ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time}
	if t.observedSince.IsZero() || seen != t.observed {
		t.observed, t.observedSince = seen, t.clock.Now()
	}
	queue := queueOf(l)
	first := len(queue) == 0 || queue[0] == t.instance
	switch {
	case seen.epoch.holder == t.instance:
		return "own" // this instance's, of a process that is no more
	case seen.epoch.holder == "" && first:
		return "free"
	case t.clock.Since(t.observedSince) >= expiry:
		return "expired" // the holder is gone, or whoever is first in the queue
	}
	return ""
}

// enqueue makes this instance known as one that waits, if it does. Called with t.mu.
func (t *Turn) enqueue(ctx context.Context, l *coordinationv1.Lease) error {
	queue := queueOf(l)
	if !t.wanted() || slices.Contains(queue, t.instance) {
		return nil
	}
	l = l.DeepCopy()
	setQueue(l, append(queue, t.instance))
	_, err := t.write(ctx, l)
	return err
}

// Admit allows one write that begins a disruption, or returns an error around ErrNotMyTurn. It reads the Lease each time: only that
// tells that the turn has not passed on since the loop began.
func (t *Turn) Admit(ctx context.Context) error {
	t.mu.Lock()
	began := t.loop
	t.mu.Unlock()
	if began == nil {
		return t.refuse("not_held", ErrNotMyTurn)
	}
	l, err := t.read(ctx)
	if err != nil {
		return t.refuse("unknown", errors.Join(ErrNotMyTurn, err))
	}
	if l == nil || epochOf(l) != *began {
		t.lose()
		return t.refuse("lost", ErrNotMyTurn)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted() {
		metrics.TurnWait.Observe(t.clock.Since(t.wantedSince).Seconds())
		t.wantedSince = time.Time{}
	}
	return nil
}

// refuse remembers that something waits.
func (t *Turn) refuse(why string, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.wanted() {
		t.wantedSince = t.clock.Now()
	}
	metrics.TurnRefusals.WithLabelValues(why).Inc()
	return err
}

func (t *Turn) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.loop = nil, nil
	metrics.TurnHeld.Set(0)
}

// End comes after each loop. It gives the turn away if somebody waits for it.
func (t *Turn) End(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loop != nil {
		t.wantedSince = time.Time{} // what waited was decided anew, within the turn
	}
	t.loop = nil
	if t.held == nil {
		return nil
	}
	l, err := t.read(ctx)
	if err != nil {
		return err
	}
	mine := l != nil && epochOf(l) == *t.held
	if mine && len(queueOf(l)) == 0 {
		return nil // nobody waits: it stays here, so that the next disruption need not
	}
	if mine {
		l = l.DeepCopy()
		l.Spec.HolderIdentity = nil
		l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(t.clock.Now()))
		if ok, err := t.write(ctx, l); err != nil || !ok {
			return err // next time
		}
	}
	t.held = nil
	metrics.TurnHeld.Set(0)
	return nil
}

// Renew shows that the holder is alive. What it cannot write is no fault: the next Admit finds out whose turn it is.
func (t *Turn) Renew(ctx context.Context) error {
	t.mu.Lock()
	held := t.loop
	t.mu.Unlock()
	if held == nil {
		return nil
	}
	l, err := t.read(ctx)
	if err != nil || l == nil || epochOf(l) != *held {
		return err
	}
	l = l.DeepCopy()
	l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(t.clock.Now()))
	_, err = t.write(ctx, l)
	return err
}

// wanted tells whether a refused disruption waits. Called with t.mu.
func (t *Turn) wanted() bool { return !t.wantedSince.IsZero() }
