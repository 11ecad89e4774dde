package ownership

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"
)

// How a reflector lists, and the names of the observers that do so.
const (
	modeStream  = "watch-list"
	modeClassic = "classic list"
	modePaged   = "paged list"
)

// pageLimit is small, so that a list has several pages.
const pageLimit = 7

var errInjected = errors.New("injected: the list failed")

// faults makes the API server of one observer unreliable.
type faults struct {
	mode   string
	dialer *connrotation.Dialer

	mu      sync.Mutex
	rand    *rand.Rand
	failing float64 // share of lists that fail
	cutting int     // how many more lists have their connection cut, just before or just after
	sources map[string]*faultySource

	lists, failed, expired, cuts, initials atomic.Int64

	listFailed chan struct{} // gets a message when a list failed, if somebody listens
}

func newFaults(mode string, seed uint64) *faults {
	return &faults{
		mode: mode, rand: rand.New(rand.NewPCG(seed, uint64(len(mode)))), sources: map[string]*faultySource{},
		listFailed: make(chan struct{}),
		dialer:     connrotation.NewDialer((&net.Dialer{Timeout: 10 * time.Second}).DialContext),
	}
}

// config makes connections that cut can close.
func (f *faults) config(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = f.dialer.DialContext
	return cfg
}

// cut closes all connections of the observer.
func (f *faults) cut() {
	f.cuts.Add(1)
	f.dialer.CloseAll()
}

// breakLists makes this share of lists fail from now on, and cuts all connections around some of the next ones.
func (f *faults) breakLists(share float64, cuts int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing, f.cutting = share, cuts
}

// nextList says what is wrong with the next list.
func (f *faults) nextList() (fails, cutBefore, cutAfter bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rand.Float64() < f.failing {
		return true, false, false
	}
	if f.cutting > 0 && f.rand.IntN(4) == 0 {
		f.cutting--
		before := f.rand.IntN(2) == 0
		return false, before, !before
	}
	return false, false, false
}

// expire ends the running watch of a kind with 410 Gone. For custom resources the server itself says so, when asked to watch from
// the beginning of time; for Nodes it might still have the history.
func (f *faults) expire(kind string) {
	f.mu.Lock()
	source := f.sources[kind]
	f.mu.Unlock()
	select {
	case source.gone <- struct{}{}:
		f.expired.Add(1)
	default: // one is waiting already
	}
}

func (f *faults) wrap(kind string, lw toolscache.ListerWatcher) toolscache.ListerWatcher {
	source := &faultySource{
		ListerWatcherWithContext: toolscache.ToListerWatcherWithContext(lw), faults: f,
		gone: make(chan struct{}, 1), synthetic: kind == kindNode,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources[kind] = source
	return source
}

// faultySource is between the stream under test and the API server.
type faultySource struct {
	toolscache.ListerWatcherWithContext
	faults    *faults
	gone      chan struct{}
	synthetic bool
	ancient   atomic.Bool // the next watch starts at a forgotten resourceVersion
}

func (s *faultySource) IsWatchListSemanticsUnSupported() bool { return s.faults.mode != modeStream }

func (s *faultySource) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s *faultySource) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *faultySource) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.faults.lists.Add(1)
	fails, cutBefore, cutAfter := s.faults.nextList()
	if fails {
		s.faults.failed.Add(1)
		select {
		case s.faults.listFailed <- struct{}{}:
		default:
		}
		return nil, errInjected
	}
	if cutBefore {
		s.faults.cut()
	}
	if cutAfter {
		defer s.faults.cut()
	}
	if s.faults.mode == modePaged {
		o.Limit = pageLimit
		if o.Continue == "" { // a list at a resourceVersion may come from the watch cache, which knows no pages
			o.ResourceVersion, o.ResourceVersionMatch = "", ""
		}
	}
	return s.ListerWatcherWithContext.ListWithContext(ctx, o)
}

func (s *faultySource) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		s.faults.initials.Add(1)
	} else if s.ancient.CompareAndSwap(true, false) {
		o.ResourceVersion = "1"
	}
	inner, err := s.ListerWatcherWithContext.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	w := &faultyWatch{Interface: inner, out: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run(s)
	return w, nil
}

// faultyWatch ends with 410 when told to, or so that the next watch does.
type faultyWatch struct {
	watch.Interface
	out     chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

func (w *faultyWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *faultyWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

func (w *faultyWatch) run(s *faultySource) {
	defer close(w.out)
	for {
		var event watch.Event
		select {
		case <-w.stopped:
			return
		case <-s.gone:
			if !s.synthetic {
				s.ancient.Store(true)
				return
			}
			status := apierrors.NewResourceExpired("injected").Status()
			event = watch.Event{Type: watch.Error, Object: &status}
		case e, ok := <-w.Interface.ResultChan():
			if !ok {
				return
			}
			event = e
		}
		select {
		case w.out <- event:
		case <-w.stopped:
			return
		}
		if event.Type == watch.Error {
			return
		}
	}
}
