package ownership

import (
	"fmt"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// shadow is a store built from nothing but the events that an informer gives its handlers, as core's state is. It also checks that
// the events make sense one after the other.
type shadow struct {
	kind string
	// on is called with each event, outside the lock, with nil for what was not there before or is not there after; may be nil.
	on func(before, after client.Object)

	mu      sync.Mutex
	objects map[types.NamespacedName]client.Object
	newest  map[types.UID]uint64 // resourceVersion last shown
	faults  []string
	changed chan struct{} // closed and replaced with every event
}

func newShadow(kind string) *shadow {
	return &shadow{
		kind: kind, objects: map[types.NamespacedName]client.Object{}, newest: map[types.UID]uint64{}, changed: make(chan struct{}),
	}
}

func (s *shadow) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.event("add", nil, o.(client.Object)) },
		UpdateFunc: func(before, after any) {
			s.event("update", before.(client.Object), after.(client.Object))
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			s.event("delete", o.(client.Object), nil)
		},
	}
}

func (s *shadow) event(what string, before, after client.Object) {
	subject := after
	if subject == nil {
		subject = before
	}
	key := client.ObjectKeyFromObject(subject)
	s.mu.Lock()
	_, known := s.objects[key]
	if known == (what == "add") {
		s.faults = append(s.faults, fmt.Sprintf("%s %s: %s, though known is %v", s.kind, key, what, known))
	}
	if after == nil {
		delete(s.objects, key)
	} else {
		s.objects[key] = after
		rv, err := strconv.ParseUint(after.GetResourceVersion(), 10, 64)
		if err != nil || rv < s.newest[after.GetUID()] {
			s.faults = append(s.faults, fmt.Sprintf("%s %s: went back from resourceVersion %d to %s", s.kind, key, s.newest[after.GetUID()], after.GetResourceVersion()))
		}
		s.newest[after.GetUID()] = rv
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if s.on != nil {
		s.on(before, after)
	}
}

// look gives the objects, the faults so far and a channel that is closed at the next event.
func (s *shadow) look() (map[types.NamespacedName]client.Object, []string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[types.NamespacedName]client.Object, len(s.objects))
	for k, o := range s.objects {
		out[k] = o
	}
	return out, append([]string(nil), s.faults...), s.changed
}
