package chaos

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	gossh "golang.org/x/crypto/ssh"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// sabotage takes one guard out of the product or the machines, to see that the test notices.
type sabotage string

const (
	sound     sabotage = ""
	unguarded sabotage = "unguarded" // instances write through a client without guard
	blind     sabotage = "blind"     // the API server ignores optimistic locks of SSHHosts
	unfenced  sabotage = "unfenced"  // machines look at neither owner nor epoch
	lockless  sabotage = "lockless"  // machines have no lock
)

const (
	stepsPerSeed = 40
	// restWithin is how long after the last fault everything must be at rest. The longest single wait is karpenter's for a registration.
	restWithin = 45 * time.Minute
	// seeds is how many a run tries that is not told how many; patience bounds it on a machine that is busy with something else.
	seeds    = 500
	patience = 5 * time.Minute
)

var (
	loginKey  []byte
	authority []byte
	verbose   = os.Getenv("SEED") != ""
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	log.SetLogger(logr.Discard())
	utilruntime.ErrorHandlers = nil // one of them sleeps until a time that it remembers from another bubble
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	block, err := gossh.MarshalPrivateKey(private, "")
	must(err)
	loginKey = pem.EncodeToMemory(block)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(err)
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	os.Exit(m.Run())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// tally is what many seeds did together.
type tally struct {
	seeds, steps, writes, sessions, kills, pauses, moves, collected, late, doubled atomic.Int64
}

func (t *tally) add(r *rules) {
	t.seeds.Add(1)
	for _, pair := range [][2]*atomic.Int64{
		{&t.steps, &r.steps}, {&t.writes, &r.writes}, {&t.sessions, &r.sessions}, {&t.kills, &r.kills}, {&t.pauses, &r.pauses},
		{&t.moves, &r.moves}, {&t.collected, &r.collected}, {&t.late, &r.late}, {&t.doubled, &r.doubled},
	} {
		pair[0].Add(pair[1].Load())
	}
}

func (t *tally) String() string {
	return fmt.Sprintf("%d seeds, %d steps, %d writes, %d sessions, %d kills, %d pauses, %d class moves, %d claims collected, %d late writes, %d claims by two leaders",
		t.seeds.Load(), t.steps.Load(), t.writes.Load(), t.sessions.Load(), t.kills.Load(), t.pauses.Load(), t.moves.Load(), t.collected.Load(), t.late.Load(), t.doubled.Load())
}

// history runs one seed and returns what it breached.
func history(t *testing.T, seed uint64, s sabotage, total *tally) []string {
	var breaches []string
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, s)
		w.misfortune(stepsPerSeed)
		w.heal()
		var unrest []string
		for end := time.Now().Add(restWithin); time.Now().Before(end); {
			w.sleep(20 * time.Second)
			w.mend()
			if unrest = w.unrest(); len(unrest) == 0 {
				break
			}
		}
		w.end()
		w.rules.mu.Lock()
		defer w.rules.mu.Unlock()
		breaches = w.rules.breaches
		for _, u := range unrest {
			breaches = append(breaches, "L1/L3: "+u)
		}
		total.add(w.rules)
	})
	return breaches
}

// The safety rules hold in every history, and when its faults have healed everything comes to rest (S1 to S6, L1, L3).
//
// By default every run tries the same 500 seeds, so that a failure is the change's that is tested.
// SEEDS=n tries n others, from the time of day on: for a long run, and for finding what nobody has seen yet. SEED=x replays one, and tells
// what happens in it.
func TestSeeds(t *testing.T) {
	first, limit, began := uint64(1), int64(seeds), time.Now()
	bounded := true
	if text := os.Getenv("SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		must(err)
		first, limit, bounded = seed, 1, false
	} else if text := os.Getenv("SEEDS"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		must(err)
		limit, bounded = n, false
		first = uint64(began.UnixNano()) //nolint:gosec // a seed
	}
	var total tally
	var taken atomic.Int64
	t.Run("all", func(t *testing.T) {
		for worker := range runtime.GOMAXPROCS(0) {
			t.Run(number(worker), func(t *testing.T) {
				t.Parallel()
				for {
					n := taken.Add(1)
					took := time.Since(began)
					if n > limit || bounded && took > patience {
						return
					}
					seed := first + uint64(n) - 1 //nolint:gosec // positive
					if breaches := history(t, seed, sound, &total); len(breaches) > 0 {
						t.Errorf("SEED=%d replays this:\n%s", seed, strings.Join(breaches, "\n"))
					}
				}
			})
		}
	})
	t.Logf("from seed %d: %s", first, &total)
}

// A test of the test: with one guard taken out, breaches of the rule that it stands for are found.
func TestSabotageIsNoticed(t *testing.T) {
	const enough = 300
	for _, control := range []struct {
		sabotage sabotage
		first    uint64   // seed that was seen to notice; others follow, should the product have changed
		rules    []string // one of these must be found breached
	}{
		{unguarded, 29, []string{"S6", "S5"}},
		{blind, 149, []string{"S1", "S2"}},
		{unfenced, 14, []string{"S1", "S4"}},
		{lockless, 3, []string{"S3"}},
	} {
		t.Run(string(control.sabotage), func(t *testing.T) {
			t.Parallel()
			var total tally
			for seed := control.first; seed < control.first+enough; seed++ {
				for _, breach := range history(t, seed, control.sabotage, &total) {
					for _, rule := range control.rules {
						if strings.Contains(breach, rule+":") {
							t.Logf("seed %d: %s", seed, breach)
							return
						}
					}
				}
			}
			t.Errorf("no breach of %v in %s", control.rules, &total)
		})
	}
}
