package ownership

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// remembered bounds what is kept to tell people: of a flood, some examples are enough.
const remembered = 64

// objectKey of an object of any kind.
type objectKey struct{ kind, namespace, name string }

// Refusal is a write that the guard did not let out.
type Refusal struct {
	// Kind is one of NodePool, NodeClaim, Node, CapacityBuffer, SSHNodeClass and SSHHost.
	Kind, Namespace, Name string
	// UID is empty when the writer did not know it.
	UID types.UID
	// Verb of the last write, in words.
	Verb string
	// Count of writes since the process started, unless the object was forgotten in between.
	Count int
	// Last is when the last one was refused.
	Last time.Time
}

// Split is a NodeClaim of an own class on a host of another instance.
type Split struct {
	Name       string
	UID        types.UID
	Class      string
	ProviderID string
}

// Refusals are the objects with the latest refused writes, at most a few dozen, ordered by kind and name.
func (s *Seam) Refusals() []Refusal {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.guard.recent), func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// remember keeps a refusal, in place of the oldest one if there are many.
func (g *guard) remember(v verb, kind string, o client.Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := objectKey{kind: kind, namespace: o.GetNamespace(), name: o.GetName()}
	known, found := g.recent[key]
	if !found && len(g.recent) >= remembered {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(g.recent)), func(a, b objectKey) int { return g.recent[a].Last.Compare(g.recent[b].Last) })
		delete(g.recent, oldest)
	}
	g.recent[key] = Refusal{
		Kind: kind, Namespace: key.namespace, Name: key.name, UID: cmp.Or(o.GetUID(), known.UID),
		Verb: string(v), Count: known.Count + 1, Last: g.clock.Now(),
	}
}

// Splits are the NodeClaims of own classes on other instances' hosts, as of the last that the watch said: at most a few dozen, ordered by
// name. Nobody acts for them.
func (s *Seam) Splits() []Split {
	stream := s.kinds[kindClaim].stream.Load()
	if stream == nil {
		return nil
	}
	session := stream.session()
	if session == nil {
		return nil
	}
	return session.splits.all()
}

// splits of a session. Its own lock: the pump of the session and who asks for them are different goroutines.
type splits struct {
	mu    sync.Mutex
	known map[string]Split
}

// saw keeps an object that is split, and forgets one that is so no more.
func (s *splits) saw(o client.Object, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || !is {
		delete(s.known, o.GetName())
		return
	}
	if _, found := s.known[claim.Name]; !found && len(s.known) >= remembered {
		return
	}
	if s.known == nil {
		s.known = map[string]Split{}
	}
	s.known[claim.Name] = Split{Name: claim.Name, UID: claim.UID, Class: claim.Spec.NodeClassRef.Name, ProviderID: claim.Status.ProviderID}
}

func (s *splits) all() []Split {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.known), func(a, b Split) int { return cmp.Compare(a.Name, b.Name) })
}
