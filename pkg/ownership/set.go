package ownership

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Set is an immutable snapshot of class names. Whoever decided with one keeps it until Stale is closed.
type Set struct {
	names map[string]struct{}
	stale chan struct{}
}

// Has tells whether a class is in the set. An unknown class is not: ownership fails closed.
func (s *Set) Has(class string) bool {
	_, ok := s.names[class]
	return ok
}

// Names returns the class names in order.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.names)) }

// Stale is closed once another set has replaced this one. It is a state, not a message: a late reader misses nothing.
func (s *Set) Stale() <-chan struct{} { return s.stale }

// register holds the current Set of something.
type register struct {
	mu      sync.Mutex // serialises writers
	current atomic.Pointer[Set]
}

func newRegister(names map[string]struct{}) *register {
	r := &register{}
	r.current.Store(&Set{names: maps.Clone(names), stale: make(chan struct{})})
	return r
}

func (r *register) snapshot() *Set { return r.current.Load() }

// change derives a new set. The old one stays in force when nothing differs, so that its readers do no work.
func (r *register) change(edit func(names map[string]struct{})) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	names := maps.Clone(old.names)
	if names == nil {
		names = map[string]struct{}{}
	}
	edit(names)
	if maps.Equal(names, old.names) {
		return
	}
	r.current.Store(&Set{names: names, stale: make(chan struct{})})
	close(old.stale)
}

// replace makes the set exactly these names.
func (r *register) replace(with *Set) {
	r.change(func(names map[string]struct{}) {
		clear(names)
		maps.Copy(names, with.names)
	})
}

// extend adds these names.
func (r *register) extend(with *Set) {
	r.change(func(names map[string]struct{}) { maps.Copy(names, with.names) })
}
