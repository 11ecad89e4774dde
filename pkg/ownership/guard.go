package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// ErrForeign is in the chain of every refused write.
var ErrForeign = errors.New("the object belongs to another instance or provider")

// refusalLogInterval keeps the log readable: core retries a refused write, and some are normal in the moment a class goes away.
const refusalLogInterval = 10 * time.Second

// verb of a write, for messages.
type verb string

const (
	verbCreate    verb = "create"
	verbUpdate    verb = "update"
	verbPatch     verb = "patch"
	verbApply     verb = "apply"
	verbDelete    verb = "delete"
	verbDeleteAll verb = "delete collection"
)

// guard decides whether a write may go out. It asks the live class set, not the cache that the object came from: in the moment
// of a hand-over a cache still shows what is no longer ours.
type guard struct {
	id      Identity
	classes *Classes
	clock   clock.PassiveClock
	refused map[string]*atomic.Uint64 // by kind

	mu         sync.Mutex
	lastLog    time.Time
	suppressed int
	recent     map[objectKey]Refusal // see Seam.Refusals
}

func newGuard(id Identity, classes *Classes, clk clock.PassiveClock) *guard {
	g := &guard{id: id, classes: classes, clock: clk, refused: map[string]*atomic.Uint64{}, recent: map[objectKey]Refusal{}}
	for gk := range guardedKinds {
		g.refused[gk.Kind] = &atomic.Uint64{}
	}
	return g
}

// check returns nil for what may be written, a *fault.Error around ErrForeign for what may not, and another *fault.Error of the
// cluster when the owner cannot be found out.
func (g *guard) check(ctx context.Context, live client.Reader, v verb, o client.Object) error {
	gk, ok := guardedKind(o)
	if !ok {
		return nil
	}
	if v == verbCreate {
		typed, err := asTyped(gk, o)
		if err != nil {
			return fault.New(fault.Cluster, "OwnerUnknown", err, "%s of %s %q", v, gk.Kind, o.GetName())
		}
		return g.decide(ctx, v, gk.Kind, o, g.judge(typed, true))
	}
	verdict := g.judge(o, false)
	if verdict == unknown {
		actual := guardedKinds[gk]()
		err := live.Get(ctx, client.ObjectKeyFromObject(o), actual)
		switch {
		case apierrors.IsNotFound(err) && v == verbApply: // would create it
			return g.check(ctx, live, verbCreate, o)
		case apierrors.IsNotFound(err):
			return nil // the API server's answer is the better one
		case err != nil:
			return fault.New(fault.Cluster, "OwnerUnknown", err, "%s of %s %q: its owner could not be read", v, gk.Kind, o.GetName())
		}
		if verdict, err = g.judgeActual(ctx, live, v, actual); err != nil {
			return fault.New(fault.Cluster, "OwnerUnknown", err, "%s of %s %q: the owner of its class could not be read", v, gk.Kind, o.GetName())
		}
	}
	return g.decide(ctx, v, gk.Kind, o, verdict)
}

// checkApply is check for an apply configuration, of which only name, namespace and kind are trusted.
func (g *guard) checkApply(ctx context.Context, live client.Reader, config runtime.ApplyConfiguration) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return fault.New(fault.Cluster, "OwnerUnknown", err, "reading an apply configuration")
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		return fault.New(fault.Cluster, "OwnerUnknown", err, "reading an apply configuration")
	}
	u.SetUID("")
	return g.check(ctx, live, verbApply, u)
}

// checkAll refuses: a selector says nothing about owners.
func (g *guard) checkAll(ctx context.Context, o client.Object) error {
	gk, ok := guardedKind(o)
	if !ok {
		return nil
	}
	return g.decide(ctx, verbDeleteAll, gk.Kind, o, foreign)
}

func (g *guard) judge(o client.Object, creating bool) verdict {
	return g.id.judge(g.classes.Snapshot(), o, creating)
}

// judgeActual judges an object as the server has it. A Node of an own host whose class is gone may be deleted: nobody else is there to
// delete what a kubelet registered after the class went.
func (g *guard) judgeActual(ctx context.Context, live client.Reader, v verb, actual client.Object) (verdict, error) {
	verdict := g.judge(actual, false)
	node, ok := actual.(*corev1.Node)
	if !ok || v != verbDelete || verdict != foreign || !g.id.ownProviderID(node.Spec.ProviderID) {
		return verdict, nil
	}
	err := live.Get(ctx, client.ObjectKey{Name: node.Labels[ClassLabel]}, &v1beta1.SSHNodeClass{})
	if apierrors.IsNotFound(err) {
		return ours, nil
	}
	return verdict, err
}

// decide counts and reports a refusal. An owner that is unknown even to the server is no instance's.
func (g *guard) decide(ctx context.Context, v verb, kind string, o client.Object, verdict verdict) error {
	if verdict != foreign {
		return nil
	}
	g.refused[kind].Add(1)
	g.remember(v, kind, o)
	if refusals, ok := g.mayLog(); ok {
		log.FromContext(ctx).Info("refused to write an object of another owner", "verb", string(v), "kind", kind,
			"name", o.GetName(), "namespace", o.GetNamespace(), "refusalsSinceLastMessage", refusals)
	}
	return fault.New(fault.Cluster, "ForeignObject", ErrForeign, "%s of %s %q refused for instance %q", v, kind, o.GetName(), g.id.Instance)
}

// mayLog allows one message per interval and tells how many refusals it stands for.
func (g *guard) mayLog() (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	g.suppressed++
	if !g.lastLog.IsZero() && now.Sub(g.lastLog) < refusalLogInterval {
		return 0, false
	}
	refusals := g.suppressed
	g.lastLog, g.suppressed = now, 0
	return refusals, true
}

// asTyped gives the typed form of an object that is about to be created.
func asTyped(gk schema.GroupKind, o client.Object) (client.Object, error) {
	u, ok := o.(runtime.Unstructured)
	if !ok {
		return o, nil
	}
	typed := guardedKinds[gk]()
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), typed)
}
