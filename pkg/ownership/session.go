package ownership

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// session is one unbroken stretch of list and watches: what core was told, and under which class set.
type session struct {
	own *Set
	// seen mirrors core's store: what core was told of, and nothing else. Nothing is kept of hidden objects.
	seen map[types.NamespacedName]entry
	// torn is true while a hand-over is partly told: no watch may continue from there.
	torn atomic.Bool
	// splits are objects that are hidden and that a person should know of.
	splits splits
}

// entry is an object as core has it. The pointer is the one that core's informer holds, so it costs no copy and is read-only.
type entry struct {
	object client.Object
	masked bool
}

func newSession(own *Set) *session {
	return &session{own: own, seen: map[types.NamespacedName]entry{}}
}

// same tells whether core can go from e to other by an update. Another UID is another object; another mask keeps the
// resourceVersion, and an informer tells no handler of an update that keeps it.
func (e entry) same(other entry) bool {
	return e.object != nil && other.object != nil &&
		e.object.GetUID() == other.object.GetUID() && e.masked == other.masked
}

// at is a copy of an object with another resourceVersion.
func at(o client.Object, resourceVersion string) client.Object {
	c := o.DeepCopyObject().(client.Object)
	c.SetResourceVersion(resourceVersion)
	return c
}
