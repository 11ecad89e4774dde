package chaos

import (
	"context"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// source is the ListerWatcher of one kind for one process. It lags as the weather says; first lists may be of the past. It waits where
// a real one would fail and be tried again, for reflectors pause for a time that no seed determines.
type source struct {
	p        *process
	what     string // tells a process's sources apart
	kind     string
	selected func(client.Object) bool
}

func (s *source) IsWatchListSemanticsUnSupported() bool { return true }

func (s *source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(s.p.ctx, o)
}

func (s *source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(s.p.ctx, o)
}

func (s *source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	d := s.p.w.dice.roll(s.p.name + "list" + s.what)
	if err := s.p.awaitAPI(ctx); err != nil {
		return nil, err
	}
	weather := s.p.w.weatherOf(s.p.id.Instance)
	if err := s.p.pass(ctx, d.between(200*time.Microsecond, weather.slow)); err != nil {
		return nil, err
	}
	at := time.Now()
	if o.ResourceVersion == "0" {
		at = at.Add(-d.upTo(weather.lag)) // any version will do: the server's own cache lags
	}
	objects, version := s.p.w.api.past(s.kind, at)
	list := &metainternal.List{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}}
	for _, o := range objects {
		if s.selected == nil || s.selected(o) {
			list.Items = append(list.Items, o.DeepCopyObject())
		}
	}
	if err := s.p.pass(ctx, d.between(200*time.Microsecond, weather.slow)); err != nil {
		return nil, err
	}
	return list, nil
}

func (s *source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	from, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	if err := s.p.awaitAPI(ctx); err != nil {
		return nil, err
	}
	t := &stream{source: s, out: make(chan watch.Event), began: time.Now()}
	ctx, t.cancel = context.WithCancel(ctx)
	go t.run(ctx, from)
	return t, nil
}

type stream struct {
	*source
	out    chan watch.Event
	cancel context.CancelFunc
	began  time.Time
}

func (t *stream) ResultChan() <-chan watch.Event { return t.out }
func (t *stream) Stop()                          { t.cancel() }

func (t *stream) run(ctx context.Context, from uint64) {
	defer close(t.out)
	defer t.cancel()
	cut := t.p.cutting()
	for {
		e, wait := t.p.w.api.next(t.kind, from)
		if e == nil {
			select {
			case <-wait:
				continue
			case <-cut:
				t.end(ctx)
				return
			case <-ctx.Done():
				return
			}
		}
		from = e.version
		o := e.Object.(client.Object)
		if t.selected != nil && !t.selected(o) {
			continue
		}
		d := t.p.w.dice.roll(t.p.name + "event" + t.what + o.GetName())
		weather := t.p.w.weatherOf(t.p.id.Instance)
		lag := d.upTo(30*time.Millisecond) + d.upTo(weather.lag)
		select {
		case <-time.After(time.Until(e.at.Add(lag))):
		case <-cut: // the event is lost with the watch
			t.end(ctx)
			return
		case <-ctx.Done():
			return
		}
		if t.p.awaitAPI(ctx) != nil || !t.send(ctx, watch.Event{Type: e.Type, Object: o.DeepCopyObject()}) {
			return
		}
	}
}

// end ends the watch: it can be resumed, or must be listed anew.
func (t *stream) end(ctx context.Context) {
	d := t.p.w.dice.roll(t.p.name + "cut" + t.what)
	select { // shorter watches than a second make a reflector pause
	case <-time.After(time.Until(t.began.Add(1100*time.Millisecond)) + d.upTo(time.Second)):
	case <-ctx.Done():
		return
	}
	if d.chance(0.5) {
		status := apierrors.NewResourceExpired("injected").Status()
		t.send(ctx, watch.Event{Type: watch.Error, Object: &status})
	}
}

func (t *stream) send(ctx context.Context, e watch.Event) bool {
	select {
	case t.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
