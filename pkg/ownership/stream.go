package ownership

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// listerWatcher is what a reflector reads from.
type listerWatcher interface {
	ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// stream is a ListerWatcher that reads like an API server with a selector for owners. At every position of the watch, core has been
// told exactly what the view makes of the server's objects at that position.
//
// A reflector calls it from one goroutine; the pump of its latest watch is the only other one.
type stream struct {
	kind    *kind
	source  listerWatcher
	clock   clock.Clock
	barrier *barrier

	mu      sync.Mutex
	current *session
	listed  bool // the informer has been given its first complete list
}

// List implements cache.Lister.
func (s *stream) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (s *stream) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported passes on what the source says; reflectors look for this method.
func (s *stream) IsWatchListSemanticsUnSupported() bool {
	says, ok := s.source.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && says.IsWatchListSemanticsUnSupported()
}

// ListWithContext gives one page of what core may see, with the server's position and continue token.
func (s *stream) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.Continue == "" {
		s.restart()
	}
	session := s.session()
	page, err := s.page(ctx, session, options)
	if err != nil {
		return nil, err
	}
	if page.Continue == "" {
		s.expectFirst(session)
		s.complete()
	}
	return page, nil
}

// WatchWithContext starts a pump over the server's watch.
func (s *stream) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if initial {
		s.restart()
	}
	session := s.session()
	if session == nil || session.torn.Load() {
		return nil, apierrors.NewResourceExpired("the last watch ended in the middle of a hand-over: list again")
	}
	source, err := s.source.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx) // a stopped watch must not go on with the list of a hand-over
	p := &pump{
		stream: s, session: session, source: source, initial: initial, position: options.ResourceVersion,
		out: make(chan watch.Event), stop: stop, stopped: ctx.Done(),
	}
	go p.run(ctx)
	return p, nil
}

// page reads one page, keeps what the view shows and records it in a session. Kept objects are copied out of the page, so that the
// rest of it is garbage; the list holds pointers, so that core's informer and the session share them.
func (s *stream) page(ctx context.Context, session *session, options metav1.ListOptions) (*metainternal.List, error) {
	raw, err := s.source.ListWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	from, err := meta.ListAccessor(raw)
	if err != nil {
		return nil, err
	}
	page := &metainternal.List{ListMeta: metav1.ListMeta{
		ResourceVersion: from.GetResourceVersion(), Continue: from.GetContinue(), RemainingItemCount: from.GetRemainingItemCount(),
	}}
	err = meta.EachListItemWithAlloc(raw, func(item runtime.Object) error {
		o := item.(client.Object)
		saw := s.look(session, o)
		if saw.visible() {
			session.seen[client.ObjectKeyFromObject(o)] = entry{object: o, masked: saw == masked}
			page.Items = append(page.Items, o)
		}
		return nil
	})
	return page, err
}

// look applies the view to a freshly decoded object.
func (s *stream) look(session *session, o client.Object) sight {
	saw := s.kind.see(session.own, o)
	s.kind.counts.saw(saw)
	session.splits.saw(o, saw == split)
	if saw.visible() {
		o.SetManagedFields(nil) // nobody reads them, and they are half of an object's size
	}
	return saw
}

func (s *stream) session() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// restart begins a list. It keeps the class set of the session before, although a newer one may be there: only a hand-over changes
// it. A list that changed no more than a Node's mask would keep the resourceVersion, and no handler would be told.
func (s *stream) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.kind.target.snapshot()
	if s.current != nil {
		own = s.current.own
	}
	s.current = newSession(own)
	if !s.listed {
		s.barrier.restart(own)
	}
}

// expectFirst makes the barrier wait for a session's objects, if no list was complete before. Those of later lists are not waited
// for: they change no class set, and the handler is not told of objects that stayed the same.
func (s *stream) expectFirst(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed {
		return
	}
	for _, e := range session.seen {
		s.barrier.expect(e.object)
	}
}

// complete is called when a list was given in full.
func (s *stream) complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listed {
		s.listed = true
		s.barrier.seal()
	}
}

// replace makes next the current session, unless a new list has begun meanwhile.
func (s *stream) replace(old, next *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != old {
		return false
	}
	s.current = next
	return true
}
