package ssh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// defaultJumpHostConnections stays below sshd's default MaxStartups of 10, so that no login is dropped even if all begin at once.
const defaultJumpHostConnections = 8

// slots bound the connections through each jump host. The zero value works.
type slots struct {
	mu sync.Mutex
	of map[string]*semaphore.Weighted
}

// take waits for one slot at every jump host and returns what gives them back. All are taken before the first one is dialled, in one
// order for everybody: two paths over the same jump hosts in opposite directions would else wait for each other for ever.
func (s *slots) take(ctx context.Context, jumps []Target, limit int) (release func(), err error) {
	if limit <= 0 {
		limit = defaultJumpHostConnections
	}
	names := make([]string, 0, len(jumps))
	for _, jump := range jumps {
		names = append(names, jump.identity())
	}
	slices.Sort(names)
	var taken []*semaphore.Weighted
	release = func() {
		for _, slot := range taken {
			slot.Release(1)
		}
	}
	for _, name := range names {
		slot := s.slot(name, limit)
		if err := slot.Acquire(ctx, 1); err != nil {
			release()
			if errors.Is(err, context.DeadlineExceeded) {
				return nil, fault.New(fault.Cluster, "JumpHostBusy", err,
					"jump host %s: all %d connections that may lead through it are in use: raise JUMP_HOST_CONNECTIONS, and MaxStartups on the jump host with it", name, limit).BeforeMachine()
			}
			return nil, fmt.Errorf("waiting for a connection through jump host %s: %w", name, err)
		}
		taken = append(taken, slot)
	}
	return release, nil
}

func (s *slots) slot(name string, limit int) *semaphore.Weighted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]*semaphore.Weighted{}
	}
	if s.of[name] == nil {
		s.of[name] = semaphore.NewWeighted(int64(limit))
	}
	return s.of[name]
}
