package operator

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator"

	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// countTimeout bounds how long a scrape waits for a cache.
const countTimeout = 2 * time.Second

// registerMetrics adds every metric of the instance to a registry.
func registerMetrics(registry prometheus.Registerer, s Settings, cached client.Reader, inventory *host.Inventory, classes *ownership.Classes, seam *ownership.Seam, more ...prometheus.Collector) error {
	return metrics.Register(registry, s.Instance, append(more,
		metrics.Info(s.PoolNamespace, operator.Version),
		metrics.Pool(func() metrics.PoolStats { return inventory.Stats(bootstrap.Lifetime) }),
		metrics.Owned(func() map[string]int {
			return lo.Assign(countOwned(cached, s.ProviderIDPrefix()), map[string]int{
				ownership.ClassKind: len(classes.Snapshot().Names()), "SSHHost": len(inventory.All()),
			})
		}),
		metrics.Views(func() map[string]metrics.ViewStats { return lo.MapValues(seam.Stats(), viewStats) }),
	)...)
}

// countOwned counts own NodePools, NodeClaims and Nodes in core's caches, which hold no foreign NodePool or NodeClaim, and foreign Nodes
// without the class label only. A cache that cannot be read leaves its kind out.
func countOwned(cached client.Reader, providerIDs string) map[string]int {
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	counts := map[string]int{}
	pools, claims, nodes := &karpv1.NodePoolList{}, &karpv1.NodeClaimList{}, &corev1.NodeList{}
	if cached.List(ctx, pools, client.UnsafeDisableDeepCopy) == nil {
		counts["NodePool"] = len(pools.Items)
	}
	if cached.List(ctx, claims, client.UnsafeDisableDeepCopy) == nil {
		counts["NodeClaim"] = len(claims.Items)
	}
	if cached.List(ctx, nodes, client.UnsafeDisableDeepCopy) == nil {
		counts["Node"] = lo.CountBy(nodes.Items, func(n corev1.Node) bool {
			_, classed := n.Labels[ownership.ClassLabel]
			return classed || strings.HasPrefix(n.Spec.ProviderID, providerIDs)
		})
	}
	return counts
}

func viewStats(s ownership.KindStats, _ string) metrics.ViewStats {
	return metrics.ViewStats{
		Dropped: s.Dropped, Masked: s.Masked, Split: s.Split, Translated: s.Translated, Injected: s.Injected,
		HandOvers: s.HandOvers, HandOverFailures: s.HandOverFailures, Refused: s.Refused, LagSeconds: s.Lag.Seconds(),
	}
}
