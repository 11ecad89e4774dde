package ownership

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// memServer is an API server in memory, for a synctest bubble, where the delays that it makes up cost nothing. Like the real one it
// has one resourceVersion for all kinds, lists at one version, streams initial events and forgets old events. Everything may be
// late: lists are answered with a state that is past, and the watches of different kinds run at their own pace.
type memServer struct {
	mu      sync.Mutex
	rand    *rand.Rand
	version uint64
	uids    int
	objects map[memKey]client.Object
	history []memEvent
	floor   uint64 // events up to here are forgotten
	past    map[memKey]client.Object
	pastAt  uint64 // version of past, which lists that are content with any version get
	changed chan struct{}
	// flaky is the share of requests and events that break.
	flaky float64
}

type memKey struct{ kind, name string }

type memEvent struct {
	kind    string
	version uint64
	event   watch.Event
}

func newMemServer(seed uint64) *memServer {
	return &memServer{rand: rand.New(rand.NewPCG(seed, 7)), version: 100, objects: map[memKey]client.Object{}, changed: make(chan struct{})}
}

// apply stores an object in place of another, or removes it if next is nil, as an update by a user does.
func (s *memServer) apply(kind, name string, change func(current client.Object) (next client.Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := memKey{kind, name}
	current := s.objects[key]
	var given client.Object
	if current != nil {
		given = current.DeepCopyObject().(client.Object)
	}
	next := change(given)
	if next == nil && current == nil {
		return
	}
	s.version++
	version := strconv.FormatUint(s.version, 10)
	told := watch.Modified
	switch {
	case next == nil:
		delete(s.objects, key)
		next, told = current.DeepCopyObject().(client.Object), watch.Deleted
	case current == nil:
		s.uids++
		next.SetName(name)
		next.SetUID(types.UID(fmt.Sprintf("uid-%d", s.uids)))
		told = watch.Added
	}
	next.SetResourceVersion(version)
	if told != watch.Deleted {
		s.objects[key] = next
	}
	s.history = append(s.history, memEvent{kind, s.version, watch.Event{Type: told, Object: next}})
	if s.rand.IntN(10) == 0 {
		s.past, s.pastAt = maps.Clone(s.objects), s.version
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets all events so far.
func (s *memServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor, s.history = s.version, nil
}

func (s *memServer) setFlaky(share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flaky = share
}

// state of a kind: now, or at some time in the past. The objects are copies, as decoded ones would be.
func (s *memServer) state(kind string, now bool) ([]client.Object, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, version := s.objects, s.version
	if !now && s.past != nil {
		objects, version = s.past, s.pastAt
	}
	var out []client.Object
	for key, o := range objects {
		if key.kind == kind {
			out = append(out, o.DeepCopyObject().(client.Object))
		}
	}
	return out, version
}

// next event of a kind after a version; a channel to wait on when there is none; false when it was forgotten.
func (s *memServer) next(kind string, after uint64) (*memEvent, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after < s.floor {
		return nil, nil, false
	}
	for _, e := range s.history {
		if e.version > after && e.kind == kind {
			e.event.Object = e.event.Object.DeepCopyObject()
			return &e, nil, true
		}
	}
	return nil, s.changed, true
}

// late waits a random while; breaks tells whether to break now.
func (s *memServer) late(ctx context.Context) (breaks bool) {
	s.mu.Lock()
	delay := time.Duration(s.rand.IntN(40)) * time.Millisecond
	breaks = s.rand.Float64() < s.flaky
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
	}
	return breaks
}

// memSource is the ListerWatcher of one kind.
type memSource struct {
	server *memServer
	kind   string
	list   bool // no initial events
}

func (s *memSource) IsWatchListSemanticsUnSupported() bool { return s.list }

func (s *memSource) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s *memSource) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *memSource) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	fails := s.server.late(ctx)
	objects, version := s.server.state(s.kind, o.ResourceVersion != "0")
	if s.server.late(ctx) || fails { // the answer is old when it arrives
		return nil, errInjected
	}
	list := &metainternal.List{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}}
	for _, o := range objects {
		list.Items = append(list.Items, o)
	}
	return list, ctx.Err()
}

func (s *memSource) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if s.server.late(ctx) {
		return nil, apierrors.NewInternalError(errInjected)
	}
	w := &memWatch{source: s, out: make(chan watch.Event)}
	ctx, w.cancel = context.WithCancel(ctx)
	if o.SendInitialEvents != nil {
		go w.run(ctx, 0, true)
		return w, nil
	}
	from, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	go w.run(ctx, from, false)
	return w, nil
}

type memWatch struct {
	source *memSource
	out    chan watch.Event
	cancel context.CancelFunc
}

func (w *memWatch) ResultChan() <-chan watch.Event { return w.out }
func (w *memWatch) Stop()                          { w.cancel() }

func (w *memWatch) run(ctx context.Context, from uint64, initial bool) {
	defer close(w.out)
	server, kind := w.source.server, w.source.kind
	if initial {
		objects, version := server.state(kind, true)
		for _, o := range objects {
			if server.late(ctx) || !w.send(ctx, watch.Event{Type: watch.Added, Object: o}) {
				return
			}
		}
		end := emptyOf(kind)
		end.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if !w.bookmark(ctx, end, version) {
			return
		}
		from = version
	}
	for {
		e, wait, remembered := server.next(kind, from)
		switch {
		case !remembered:
			status := apierrors.NewResourceExpired("injected").Status()
			w.send(ctx, watch.Event{Type: watch.Error, Object: &status})
			return
		case e == nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return
			}
		default:
			if server.late(ctx) || !w.send(ctx, e.event) {
				return
			}
			from = e.version
		}
	}
}

func (w *memWatch) bookmark(ctx context.Context, o client.Object, version uint64) bool {
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: o})
}

func (w *memWatch) send(ctx context.Context, e watch.Event) bool {
	select {
	case w.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

func emptyOf(kind string) client.Object {
	switch kind {
	case kindPool:
		return &karpv1.NodePool{}
	case kindClaim:
		return &karpv1.NodeClaim{}
	}
	return &corev1.Node{}
}
