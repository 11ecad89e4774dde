package ownership

import (
	"context"
	"sync"
	"sync/atomic"

	toolscache "k8s.io/client-go/tools/cache"
)

// barrier knows when an informer shows a class set: when its own event handler, which is called after the store changed, has been
// given every object that was sent for that set. Objects are told apart by their pointer, which an informer hands on as it is.
// All objects are waited for, not only the last, because an informer's queue may deliver one key's events before another's.
type barrier struct {
	open atomic.Int64 // objects that are waited for: lets the handler pass without a lock almost always

	mu      sync.Mutex
	waiting map[any]struct{}
	next    *Set // becomes shown when nothing is waited for and sealed is true
	sealed  bool
	shown   *Set
	changed chan struct{} // closed and replaced when shown changes
}

func newBarrier() *barrier {
	return &barrier{waiting: map[any]struct{}{}, changed: make(chan struct{})}
}

// restart forgets what was sent: the informer asked again for its very first list.
func (b *barrier) restart(set *Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.waiting)
	b.open.Store(0)
	b.next, b.sealed = set, false
}

// begin announces objects of another set. What is still on its way for an earlier one is waited for as well.
func (b *barrier) begin(set *Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next, b.sealed = set, false
}

// expect must be called before an object is sent, for the handler may be faster than the sender.
func (b *barrier) expect(o any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[o] = struct{}{}
	b.open.Store(int64(len(b.waiting)))
}

// cancel takes an object back that could not be sent.
func (b *barrier) cancel(o any) { b.settle(o) }

// seal says that all objects of the set were sent.
func (b *barrier) seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	b.publish()
}

func (b *barrier) settle(o any) {
	if b.open.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, o)
	b.open.Store(int64(len(b.waiting)))
	b.publish()
}

func (b *barrier) publish() {
	if !b.sealed || len(b.waiting) > 0 || b.shown == b.next {
		return
	}
	b.shown = b.next
	close(b.changed)
	b.changed = make(chan struct{})
}

// wait returns when set is shown, or with ctx's error.
func (b *barrier) wait(ctx context.Context, set *Set) error {
	for {
		b.mu.Lock()
		shown, changed := b.shown, b.changed
		b.mu.Unlock()
		if shown == set {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handler is registered with the informer that the stream feeds.
func (b *barrier) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    b.settle,
		UpdateFunc: func(_, o any) { b.settle(o) },
		DeleteFunc: b.settle,
	}
}
