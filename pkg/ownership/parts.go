package ownership

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The seam in parts, for those who have no manager, such as simulations. An instance uses Start and Install, which Assert can check.

// Watch is Start for a source that lists and watches the SSHNodeClasses with spec.instance=<instance>, and no others.
func Watch(ctx context.Context, source toolscache.ListerWatcher, instance string) (*Classes, error) {
	return follow(ctx, source, instance)
}

// NewSeam makes a Seam that no manager has. Its informers and clients are to be made with NewInformer and NewClient.
func NewSeam(id Identity, classes *Classes, clk clock.Clock) *Seam { return newSeam(id, classes, clk) }

// NewInformer is the informer of a kind, seen through its view if it has one.
func (s *Seam) NewInformer(source toolscache.ListerWatcher, o runtime.Object, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return s.newInformer(source, o, 0, indexers)
}

// NewClient is the guarded form of a client that reads caches; live reads the API server.
func (s *Seam) NewClient(cached client.Client, live client.Reader) client.Client {
	return &guardedClient{Client: cached, live: live, seam: s}
}
