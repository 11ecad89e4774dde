package ownership

import "context"

// The order in which kinds move from one class set to the next.
//
// Gain: no own Node before its NodeClaim, or core drains a Node that is being deleted without knowing the claim, and strips its
// finalizer if there is nothing to drain; no NodePool before its NodeClaims, or core provisions again what exists.
// Loss: Nodes first for the same reason; NodePools last, because the cost of a claim is booked on its pool.
var (
	gainOrder = []string{kindClaim, kindPool, kindNode}
	lossOrder = []string{kindNode, kindClaim, kindPool}
)

// Follow moves core's caches to the class set whenever that changes, kind by kind, each step only after the one before is in
// core's cache. It returns when ctx ends. It must run in every replica: a stand-by's caches are core's when it becomes leader. A
// second call while one runs returns at once.
func (s *Seam) Follow(ctx context.Context) {
	if !s.following.TryLock() {
		return
	}
	defer s.following.Unlock()
	for {
		want := s.classes.Snapshot()
		if !s.moveTo(ctx, want) {
			return
		}
		select {
		case <-want.Stale():
		case <-ctx.Done():
			return
		}
	}
}

// moveTo returns false when ctx ended on the way. It stays with one set from beginning to end: following a newer set half-way
// would let a kind overtake another.
func (s *Seam) moveTo(ctx context.Context, want *Set) bool {
	for _, name := range gainOrder {
		s.kinds[name].fallBehind(s.clock.Now())
	}
	for _, name := range gainOrder {
		k := s.kinds[name]
		k.target.extend(want)
		if k.shown(ctx) != nil {
			return false
		}
	}
	for _, name := range lossOrder {
		k := s.kinds[name]
		k.target.replace(want)
		if k.shown(ctx) != nil {
			return false
		}
		k.caughtUp()
	}
	return true
}
