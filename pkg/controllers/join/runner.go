package join

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

// errCancelled is the cause of a cancelled operation: whoever cancelled it knows what comes next.
type errCancelled struct{ why string }

func (e errCancelled) Error() string { return "cancelled: " + e.why }

// task names one operation: a host has at most one.
type task struct {
	kind  v1beta1.OperationType
	claim types.UID
}

// retry is the memory of failed attempts at one task.
type retry struct {
	task
	attempts  int32
	first     time.Time
	notBefore time.Time
}

type running struct {
	task
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// runner runs operations beside the reconcile loop, so that a host's state can be looked at, and its operation cancelled, while
// a script runs for minutes. At most one operation runs on a host.
type runner struct {
	clock  clock.Clock
	slots  chan struct{}
	wake   func(host string)
	root   context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	wg      sync.WaitGroup
	running map[string]*running
	retries map[string]retry
}

func newRunner(clk clock.Clock, concurrency int, wake func(host string)) *runner {
	root, cancel := context.WithCancelCause(context.Background())
	return &runner{
		clock: clk, slots: make(chan struct{}, concurrency), wake: wake, root: root, cancel: cancel,
		running: map[string]*running{}, retries: map[string]retry{},
	}
}

// current is the task in flight on a host.
func (r *runner) current(host string) (task, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op, found := r.running[host]; found {
		return op.task, true
	}
	return task{}, false
}

// start runs a task on a host unless it runs already or its pause is not over. wait is how long that still takes. Another task in
// flight on the host is cancelled first; its end wakes the host again.
func (r *runner) start(host string, t task, run func(ctx context.Context, attempt int32) error) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op, found := r.running[host]; found {
		if op.task != t {
			op.cancel(errCancelled{"the host has something else to do"})
		}
		return 0
	}
	memory, found := r.retries[host]
	if found && memory.task != t {
		delete(r.retries, host)
		memory = retry{}
	}
	if pause := memory.notBefore.Sub(r.clock.Now()); found && pause > 0 {
		return pause
	}
	ctx, cancel := context.WithCancelCause(r.root)
	op := &running{task: t, cancel: cancel, done: make(chan struct{})}
	r.running[host] = op
	r.wg.Go(func() {
		defer close(op.done)
		defer cancel(nil)
		defer r.end(host)
		if !r.slot(ctx, t.kind) {
			return
		}
		defer func() { <-r.slots }()
		metrics.OperationsRunning.Inc()
		defer metrics.OperationsRunning.Dec()
		_ = run(ctx, memory.attempts+1) // the task reports; the next reconcile decides on what it wrote
	})
	return 0
}

// slot waits until an operation may run, or is cancelled.
func (r *runner) slot(ctx context.Context, kind v1beta1.OperationType) bool {
	operation, queued := strings.ToLower(string(kind)), r.clock.Now()
	metrics.OperationsQueued.WithLabelValues(operation).Inc()
	defer metrics.OperationsQueued.WithLabelValues(operation).Dec()
	select {
	case r.slots <- struct{}{}:
		metrics.OperationQueue.WithLabelValues(operation).Observe(r.clock.Since(queued).Seconds())
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *runner) end(host string) {
	r.mu.Lock()
	delete(r.running, host)
	r.mu.Unlock()
	if r.root.Err() == nil {
		r.wake(host)
	}
}

// stop cancels what runs on a host; its end wakes the host.
func (r *runner) stop(host, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op, found := r.running[host]; found {
		op.cancel(errCancelled{why})
	}
}

// failed remembers a failed attempt and returns how many there were and since when. The host rests for pause.
func (r *runner) failed(host string, t task, pause func(attempt int32) time.Duration) (attempts int32, first time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	memory := r.retries[host]
	if memory.task != t || memory.attempts == 0 {
		memory = retry{task: t, first: r.clock.Now()}
	}
	memory.attempts++
	memory.notBefore = r.clock.Now().Add(pause(memory.attempts))
	r.retries[host] = memory
	return memory.attempts, memory.first
}

// forget drops the memory of failed attempts on a host.
func (r *runner) forget(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.retries, host)
}

// shutdown cancels everything and waits until nothing of this process touches a machine any more.
func (r *runner) shutdown() {
	r.cancel(errCancelled{"the controller is stopping"})
	r.wg.Wait()
}
