package lease

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// again is how often a stand-by looks whom it stands by for.
const again = 10 * time.Second

// Guard ends a stand-by that finds another release on its lease: two releases that started at the same moment both passed Check.
// It is a runnable of every replica.
type Guard struct {
	Claim Claim
	API   client.Client
	Clock clock.Clock
	// Elected is closed once this process leads.
	Elected <-chan struct{}
}

var _ manager.LeaderElectionRunnable = (*Guard)(nil)

// NeedLeaderElection tells the manager to start this before the lease is won.
func (g *Guard) NeedLeaderElection() bool { return false }

// Start returns nil when this process leads or ctx ends, and Check's error, which ends the process, when the name is another's.
func (g *Guard) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.Elected:
			return nil // losing the lease ends the process
		case <-g.Clock.After(again):
		}
		if err := g.Claim.Check(ctx, g.API, g.Clock); err != nil && ctx.Err() == nil {
			if isDuplicate(err) {
				return err
			}
			log.FromContext(ctx).Error(err, "the lease could not be looked at; trying again")
		}
	}
}

func isDuplicate(err error) bool { return fault.Of(err).Reason == v1beta1.ReasonDuplicateInstance }
