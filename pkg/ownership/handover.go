package ownership

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	handoverTimeout  = time.Minute
	handoverPageSize = 500
)

// handOver moves core from (old class set, position of the watch) to (target set, L): a consistent list at L, the difference, a
// bookmark at L. It then returns true and the watch must end; the reflector watches again from L. Since no event up to L follows,
// no object can be overwritten by an older one. Telling core of changes inside a running watch could do just that.
//
// It returns false, and has told core nothing, when the cluster could not be read.
func (p *pump) handOver(ctx context.Context) bool {
	next, position, err := p.survey(ctx)
	if err != nil {
		p.stream.kind.counts.failures.Add(1)
		log.FromContext(ctx).Error(err, "class set changed but the cluster could not be read; trying again", "kind", p.stream.kind.name)
		return false
	}
	p.stream.barrier.begin(next.own)
	// From the first to the last event of the difference, core's store fits no position.
	p.session.torn.Store(true)
	if !p.tellDifference(next, position) || !p.bookmark(position) {
		return true
	}
	if p.stream.replace(p.session, next) {
		p.stream.barrier.seal()
		p.stream.kind.counts.handovers.Add(1)
	}
	return true
}

// survey lists everything, consistently, under the target set.
func (p *pump) survey(ctx context.Context) (*session, string, error) {
	ctx, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	next := newSession(p.stream.kind.target.snapshot())
	// No resourceVersion: the most recent state, not older than anything a watch has sent.
	options := metav1.ListOptions{Limit: handoverPageSize}
	for {
		page, err := p.stream.page(ctx, next, options)
		if err != nil {
			return nil, "", err
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return next, page.ResourceVersion, nil
		}
	}
}

// tellDifference tells core what changed between its session and next. Deletions go first: they include those of objects that come
// back under the same name as another object or with another mask.
func (p *pump) tellDifference(next *session, position string) bool {
	for key, old := range p.session.seen {
		if !old.same(next.seen[key]) && !p.tell(watch.Deleted, at(old.object, position)) {
			return false
		}
	}
	for key, now := range next.seen {
		old := p.session.seen[key]
		told := watch.Added
		if old.same(now) {
			if old.object.GetResourceVersion() == now.object.GetResourceVersion() {
				next.seen[key] = old // core keeps its pointer, so we do
				continue
			}
			told = watch.Modified
		}
		if !p.tell(told, now.object) {
			return false
		}
	}
	return true
}

// tell sends one event of the difference; the barrier waits for it.
func (p *pump) tell(t watch.EventType, o runtime.Object) bool {
	p.stream.barrier.expect(o)
	if p.send(watch.Event{Type: t, Object: o}) {
		p.stream.kind.counts.injected.Add(1)
		return true
	}
	p.stream.barrier.cancel(o)
	return false
}
