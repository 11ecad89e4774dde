package join

import (
	"context"
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

var (
	joinA  = task{v1beta1.OperationJoin, "a"}
	leaveA = task{v1beta1.OperationLeave, "a"}
)

func TestAHostHasOneOperationAndAnotherCancelsIt(t *testing.T) {
	woken := make(chan string, 8)
	r := newRunner(clocktesting.NewFakeClock(start), 4, func(h string) { woken <- h })
	started, ended := make(chan struct{}), make(chan error, 1)
	run := func(ctx context.Context, _ int32) error {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}
	r.start("h", joinA, run)
	<-started
	r.start("h", joinA, func(context.Context, int32) error { t.Error("the same task ran twice"); return nil })
	if wait := r.start("h", leaveA, func(context.Context, int32) error { t.Error("two tasks at once"); return nil }); wait != 0 {
		t.Errorf("wait %s", wait)
	}
	var cancelled errCancelled
	if cause := <-ended; !errors.As(cause, &cancelled) {
		t.Errorf("cause %v", cause)
	}
	if h := <-woken; h != "h" {
		t.Errorf("woke %q", h)
	}
	ran := make(chan struct{})
	r.start("h", leaveA, func(context.Context, int32) error { close(ran); return nil })
	<-ran
	r.shutdown()
}

func TestAFailedTaskRestsAndCountsItsAttempts(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	woken := make(chan string, 8)
	r := newRunner(clk, 1, func(h string) { woken <- h })
	attempts := make(chan int32, 8)
	fail := func(_ context.Context, attempt int32) error {
		attempts <- attempt
		r.failed("h", joinA, pause)
		return errors.New("no")
	}
	r.start("h", joinA, fail)
	<-woken
	if wait := r.start("h", joinA, fail); wait != time.Second {
		t.Fatalf("wait %s, want 1s", wait)
	}
	clk.Step(time.Second)
	r.start("h", joinA, fail)
	<-woken
	if first, second := <-attempts, <-attempts; first != 1 || second != 2 {
		t.Errorf("attempts %d, %d", first, second)
	}
	other := task{v1beta1.OperationJoin, "b"}
	ran := make(chan int32, 1)
	if wait := r.start("h", other, func(_ context.Context, attempt int32) error { ran <- attempt; return nil }); wait != 0 {
		t.Errorf("another claim's task inherits a pause of %s", wait)
	}
	if attempt := <-ran; attempt != 1 {
		t.Errorf("another claim's task inherits attempt %d", attempt)
	}
	r.shutdown()
}

func TestOneSlowMachineTakesOneSlot(t *testing.T) {
	woken := make(chan string, 8)
	r := newRunner(clocktesting.NewFakeClock(start), 2, func(h string) { woken <- h })
	r.start("slow", joinA, func(ctx context.Context, _ int32) error { <-ctx.Done(); return nil })
	for _, h := range []string{"x", "y", "z"} {
		r.start(h, joinA, func(context.Context, int32) error { return nil })
	}
	for range 3 {
		<-woken
	}
	r.shutdown()
	if _, found := r.current("slow"); found {
		t.Error("shutdown left an operation running")
	}
}

func TestAnOperationThatWaitsForASlotCanBeCancelled(t *testing.T) {
	woken := make(chan string, 8)
	r := newRunner(clocktesting.NewFakeClock(start), 1, func(h string) { woken <- h })
	r.start("slow", joinA, func(ctx context.Context, _ int32) error { <-ctx.Done(); return nil })
	for len(r.slots) == 0 { // until it has the slot
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
		}
	}
	r.start("queued", joinA, func(context.Context, int32) error { t.Error("ran without a slot"); return nil })
	r.stop("queued", "test")
	if h := <-woken; h != "queued" {
		t.Errorf("woke %q", h)
	}
	r.shutdown()
}
