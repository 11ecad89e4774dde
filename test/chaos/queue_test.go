package chaos

import (
	"context"
	"sync"
	"time"
)

// queue is a workqueue and its workers: one reconcile of a name at a time, any number of names, with the back-off of the real ones.
type queue struct {
	p         *process
	name      string
	reconcile func(context.Context, string) (time.Duration, error)

	mu      sync.Mutex
	started bool
	waiting map[string]bool
	busy    map[string]bool
	failed  map[string]int
}

func newQueue(p *process, name string, reconcile func(context.Context, string) (time.Duration, error)) *queue {
	return &queue{p: p, name: name, reconcile: reconcile, waiting: map[string]bool{}, busy: map[string]bool{}, failed: map[string]int{}}
}

func (q *queue) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	for name := range q.waiting {
		q.begin(name)
	}
}

func (q *queue) add(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[name] = true
	q.begin(name)
}

func (q *queue) after(name string, d time.Duration) {
	time.AfterFunc(d, func() { q.add(name) })
}

func (q *queue) begin(name string) {
	if !q.started || q.busy[name] || q.p.ctx.Err() != nil {
		return
	}
	q.busy[name] = true
	go q.work(name)
}

func (q *queue) work(name string) {
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.busy, name)
	}()
	for {
		if q.p.pass(q.p.ctx, q.p.w.dice.roll(q.p.name+q.name+name).between(time.Millisecond, 20*time.Millisecond)) != nil {
			return
		}
		q.mu.Lock()
		delete(q.waiting, name)
		q.mu.Unlock()
		again, err := q.reconcile(q.p.ctx, name)
		q.mu.Lock()
		if err != nil {
			again = min(30*time.Second, 200*time.Millisecond<<min(q.failed[name], 10))
			q.failed[name]++
		} else {
			delete(q.failed, name)
		}
		more := q.waiting[name]
		if !more {
			delete(q.busy, name)
		}
		q.mu.Unlock()
		if again > 0 {
			q.after(name, again)
		}
		if !more {
			return
		}
	}
}
