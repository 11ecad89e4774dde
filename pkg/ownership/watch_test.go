package ownership

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	watchRounds   = 4
	watchWriters  = 4
	stepsPerRound = 90 // by each writer
	// settleTime is long because client-go's reflectors back off when watches break; the observers have that in parallel.
	settleTime = 90 * time.Second
)

// seed gives the seed of a random test, and how to run the test with it again.
func seed(t *testing.T) uint64 {
	t.Helper()
	value := uint64(time.Now().UnixNano())
	if s := os.Getenv("OWNERSHIP_SEED"); s != "" {
		parsed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("OWNERSHIP_SEED: %v", err)
		}
		value = parsed
	}
	t.Logf("seed %d: replay with OWNERSHIP_SEED=%d go test ./pkg/ownership -run '^%s$'", value, value, t.Name())
	return value
}

// Whatever writers do and whatever breaks, core's stores and the events of its handlers come to equal the view of a list, without
// ever going back in time. Three observers of one instance list in the three ways that a reflector knows.
func TestFilteredWatchConvergesOnTheViewOfAList(t *testing.T) {
	start := seed(t)
	cfg := apiServer(t)
	live := api(t, cfg)
	var observers []*observer
	for _, mode := range []string{modeStream, modeClassic, modePaged} {
		observers = append(observers, observe(t, cfg, newFaults(mode, start)))
	}
	writers := make([]*writer, watchWriters)
	for i := range writers {
		writers[i] = &writer{rand: rand.New(rand.NewPCG(start, uint64(i))), api: live}
	}
	chaos := rand.New(rand.NewPCG(start, 99))
	for round := range watchRounds {
		// Two rounds of everything that can break; in the others the classes change under watches that live.
		broken := round%2 == 1
		churning := time.Now()
		if err := churn(t.Context(), writers, observers, chaos, broken); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, o := range observers {
			o.faults.breakLists(0, 0)
		}
		truth := ownClassesOf(t, live)
		ctx, cancel := context.WithTimeout(t.Context(), settleTime)
		for _, o := range observers {
			must(t, untilMine(ctx, o.classes, truth.Names()...))
			if err := o.settle(ctx, live, truth); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
		cancel()
		t.Logf("round %d: %v of changes, %d own classes settled after %v", round,
			began.Sub(churning).Round(time.Millisecond), len(truth.Names()), time.Since(began).Round(time.Millisecond))
		if t.Failed() {
			return
		}
	}
	report(t, writers, observers)
}

// churn runs the writers for a fixed number of steps, while connections are cut, watches expire and lists fail if broken is true.
func churn(ctx context.Context, writers []*writer, observers []*observer, chaos *rand.Rand, broken bool) error {
	failures := make(chan error, len(writers))
	var running sync.WaitGroup
	for _, w := range writers {
		running.Go(func() {
			for range stepsPerRound {
				if err := w.step(ctx); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	if broken {
		for _, o := range observers {
			o.faults.breakLists(0.1, 2)
			o.faults.expire(viewedKindNames[chaos.IntN(len(viewedKindNames))])
			if chaos.IntN(2) == 0 {
				o.faults.cut()
			}
		}
	}
	running.Wait()
	close(failures)
	return <-failures
}

// ownClassesOf is the truth about instance me.
func ownClassesOf(t *testing.T, live client.Client) *Set {
	t.Helper()
	list := &v1beta1.SSHNodeClassList{}
	must(t, live.List(t.Context(), list))
	var names []string
	for _, c := range list.Items {
		if c.Spec.Instance == me.Instance {
			names = append(names, c.Name)
		}
	}
	return own(names...)
}

func report(t *testing.T, writers []*writer, observers []*observer) {
	t.Helper()
	changes := 0
	for _, w := range writers {
		changes += w.steps
	}
	t.Logf("%d steps, %d changes", watchRounds*watchWriters*stepsPerRound, changes)
	for _, o := range observers {
		f := o.faults
		t.Logf("%s: %d lists (%d failed), %d watches expired, %d cuts", o.name, f.lists.Load(), f.failed.Load(), f.expired.Load(), f.cuts.Load())
		if streamed := f.initials.Load() > 0; streamed != (o.name == modeStream) {
			t.Errorf("%s: objects were streamed: %v", o.name, streamed)
		}
		for name, s := range o.seam.Stats() {
			if s.HandOvers+s.Dropped > 0 {
				t.Logf("  %s: %+v", name, s)
			}
		}
		for _, name := range []string{kindPool, kindClaim, kindNode} {
			if s := o.seam.Stats()[name]; s.HandOvers == 0 || s.Injected == 0 {
				t.Errorf("%s: no hand-over of %s: the test has tested nothing", o.name, name)
			}
		}
	}
}
