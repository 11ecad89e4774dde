package ownership

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// handoverRetry is the pause after a hand-over that could not read the cluster.
const handoverRetry = time.Second

// pump is one watch as core sees it.
type pump struct {
	stream  *stream
	session *session
	source  watch.Interface
	out     chan watch.Event
	// initial is true until the server has sent the objects that exist, if it was asked to.
	initial bool
	// position on the server's watch.
	position string
	// owed is true when the reflector does not know position, because the last event was not for it.
	owed bool

	stop    context.CancelFunc
	stopped <-chan struct{}
}

// ResultChan implements watch.Interface.
func (p *pump) ResultChan() <-chan watch.Event { return p.out }

// Stop implements watch.Interface.
func (p *pump) Stop() { p.stop() }

// run ends when the reflector or the server ends the watch, after an error, or after a hand-over. In the latter case the reflector
// watches again at once: a watch that ends without error after an event is nothing unusual to it.
func (p *pump) run(ctx context.Context) {
	defer close(p.out)
	defer p.stop()
	defer p.source.Stop()
	var retry <-chan time.Time
	for {
		stale := p.session.own.Stale()
		if p.initial || retry != nil {
			stale = nil
		}
		select {
		case <-p.stopped:
			return
		case <-stale:
			if p.handOver(ctx) {
				return
			}
			retry = p.stream.clock.After(handoverRetry) // meanwhile the old view stays in force
		case <-retry:
			retry = nil
		case event, ok := <-p.source.ResultChan():
			if !ok {
				p.settlePosition()
				return
			}
			if !p.forward(event) {
				return
			}
		}
	}
}

// forward tells core of one event, if it is core's business. It returns false when the watch is over.
func (p *pump) forward(event watch.Event) bool {
	o, ok := event.Object.(client.Object)
	if event.Type == watch.Error || !ok {
		// What follows an error belongs to no position: end here, and let the reflector decide.
		if p.settlePosition() {
			p.send(event)
		}
		return false
	}
	p.position = o.GetResourceVersion()
	if event.Type == watch.Bookmark {
		return p.pass(event, o)
	}
	told, ok := p.translate(event.Type, o)
	if !ok {
		p.owed = true
		return true
	}
	p.owed = false
	return p.send(told)
}

// pass gives the server's bookmark to the reflector, among them the one that ends the initial objects.
func (p *pump) pass(event watch.Event, bookmark client.Object) bool {
	p.owed = false
	last := p.initial && bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	if last {
		p.stream.expectFirst(p.session)
	}
	if !p.send(event) {
		return false
	}
	if last {
		p.initial = false
		p.stream.complete()
	}
	return true
}

// translate turns an event of the server into one that fits what core was told before; false means core needs none.
func (p *pump) translate(t watch.EventType, o client.Object) (watch.Event, bool) {
	key := client.ObjectKeyFromObject(o)
	known, had := p.session.seen[key]
	saw := p.stream.look(p.session, o)
	switch {
	case t == watch.Deleted:
		// Core's queue would hand on the deletion of an object that it never had.
		delete(p.session.seen, key)
		p.session.splits.saw(o, false)
		return watch.Event{Type: t, Object: o}, had
	case saw.visible():
		// MODIFIED of an object that core does not have becomes an addition in its informer.
		p.session.seen[key] = entry{object: o, masked: saw == masked}
		return watch.Event{Type: t, Object: o}, true
	case had:
		// Deleted in its old form: predicates of core drop the deletion of an object that does not look like its own.
		delete(p.session.seen, key)
		p.stream.kind.counts.translated.Add(1)
		return watch.Event{Type: watch.Deleted, Object: at(known.object, p.position)}, true
	}
	return watch.Event{}, false
}

// settlePosition tells the reflector where the watch stands, so that it resumes there and not where it last got an event, which
// may be so long ago that the server has forgotten. While the initial objects arrive, there is no position to resume from.
func (p *pump) settlePosition() bool {
	if !p.owed || p.initial {
		return true
	}
	return p.bookmark(p.position)
}

func (p *pump) bookmark(position string) bool {
	if position == "" || position == "0" {
		return true
	}
	o := p.stream.kind.empty()
	o.SetResourceVersion(position)
	p.owed = false
	return p.send(watch.Event{Type: watch.Bookmark, Object: o})
}

// send returns false when the reflector has stopped listening.
func (p *pump) send(event watch.Event) bool {
	select {
	case p.out <- event:
		return true
	case <-p.stopped:
		return false
	}
}
