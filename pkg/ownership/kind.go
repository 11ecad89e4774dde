package ownership

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of the kinds that core sees through a view.
const (
	kindPool   = "NodePool"
	kindClaim  = "NodeClaim"
	kindNode   = "Node"
	kindBuffer = "CapacityBuffer"
)

// kind is one kind that core sees through a view.
type kind struct {
	name string
	// empty makes an object of the kind.
	empty func() client.Object
	see   func(own *Set, o client.Object) sight
	// target is the class set that core shall see this kind with. Follow moves it.
	target *register
	counts counters
	// stream that feeds core's informer; nil until core asks for one. The cache makes a second one only after it removed the first.
	stream atomic.Pointer[stream]
	// behind is when target began to differ from what is wanted; nil when it does not.
	behind atomic.Pointer[time.Time]
}

// viewedKinds are the kinds with this identity's views. They start with the given class set.
func viewedKinds(id Identity, own *Set) map[string]*kind {
	classBound := func() *register { return newRegister(own.names) }
	return map[string]*kind{
		kindPool: {
			name: kindPool, target: classBound(), empty: func() client.Object { return &karpv1.NodePool{} },
			see: func(own *Set, o client.Object) sight { return id.pool(own, o.(*karpv1.NodePool)) },
		},
		kindClaim: {
			name: kindClaim, target: classBound(), empty: func() client.Object { return &karpv1.NodeClaim{} },
			see: func(own *Set, o client.Object) sight { return id.claim(own, o.(*karpv1.NodeClaim)) },
		},
		kindNode: {
			name: kindNode, target: classBound(), empty: func() client.Object { return &corev1.Node{} },
			see: func(own *Set, o client.Object) sight { return id.node(own, o.(*corev1.Node)) },
		},
		kindBuffer: {
			// Its view asks for no class, so this set never changes and no hand-over is ever needed.
			name: kindBuffer, target: newRegister(nil), empty: func() client.Object { return &autoscalingv1beta1.CapacityBuffer{} },
			see: func(_ *Set, o client.Object) sight { return id.buffer(o.(*autoscalingv1beta1.CapacityBuffer)) },
		},
	}
}

// viewedName is the kind of a typed object, if core sees that kind through a view.
func viewedName(o runtime.Object) (string, bool) {
	switch o.(type) {
	case *karpv1.NodePool:
		return kindPool, true
	case *karpv1.NodeClaim:
		return kindClaim, true
	case *corev1.Node:
		return kindNode, true
	case *autoscalingv1beta1.CapacityBuffer:
		return kindBuffer, true
	}
	return "", false
}

// shown waits until the informer's store, and a handler of it, have everything of the target set. It waits for ever rather than
// let the next kind overtake this one. A kind without informer has nothing to show.
func (k *kind) shown(ctx context.Context) error {
	s := k.stream.Load()
	if s == nil {
		return ctx.Err()
	}
	return s.barrier.wait(ctx, k.target.snapshot())
}

func (k *kind) fallBehind(now time.Time) { k.behind.CompareAndSwap(nil, &now) }
func (k *kind) caughtUp()                { k.behind.Store(nil) }

func (k *kind) lag(now time.Time) time.Duration {
	since := k.behind.Load()
	if since == nil {
		return 0
	}
	return now.Sub(*since)
}

// newStream puts the kind's view before a source and makes it the kind's current stream.
func (k *kind) newStream(source listerWatcher, clk clock.Clock) *stream {
	s := &stream{kind: k, source: source, clock: clk, barrier: newBarrier()}
	k.stream.Store(s)
	return s
}
