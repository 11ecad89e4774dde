package chaos

import (
	"strconv"
	"sync"
	"time"
)

// dice draws numbers that depend on the seed, on what they are for, and on how often that was drawn before.
type dice struct {
	seed uint64

	mu     sync.Mutex
	counts map[string]uint64
}

func newDice(seed uint64) *dice { return &dice{seed: seed, counts: map[string]uint64{}} }

// die is a short stream of numbers.
type die struct{ state uint64 }

func (d *dice) roll(what string) *die {
	d.mu.Lock()
	d.counts[what]++
	n := d.counts[what]
	d.mu.Unlock()
	h := d.seed*0x9E3779B97F4A7C15 + 14695981039346656037
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 1099511628211
	}
	return &die{state: h ^ n*0xD1B54A32D192ED03}
}

func (d *die) next() uint64 { // splitmix64
	d.state += 0x9E3779B97F4A7C15
	z := d.state
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

func (d *die) n(below int) int { return int(d.next() % uint64(below)) } //nolint:gosec // small

func (d *die) unit() float64 { return float64(d.next()>>11) / (1 << 53) }

func (d *die) chance(p float64) bool { return p > 0 && d.unit() < p }

// upTo is a duration below limit, in nanoseconds, so that two of them are hardly ever the same instant.
func (d *die) upTo(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration(d.next() % uint64(limit)) //nolint:gosec // positive
}

func (d *die) between(least, most time.Duration) time.Duration { return least + d.upTo(most-least) }

func pick[T any](d *die, from []T) T { return from[d.n(len(from))] }

func number(n int) string { return strconv.Itoa(n) }
