package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// api is an API server in memory: one resourceVersion for all kinds, optimistic locks, UIDs, finalizers, a status subresource, and a
// history from which late watches and stale lists are served.
type api struct {
	mu      sync.Mutex
	version uint64
	uids    int
	objects map[key]client.Object
	log     map[string][]event
	changed map[string]chan struct{} // by kind
	// written is called under mu for each write that changed something.
	written func(write)
	// blind drops optimistic locks of SSHHosts: a control of the test.
	blind bool
}

type key struct{ kind, namespace, name string }

type event struct {
	version uint64
	at      time.Time
	watch.Event
}

// write is one line of the history.
type write struct {
	by            *caller
	verb          string
	kind          string
	before, after client.Object // nil: did not exist, does not exist any more
	// knew tells whether the writer, when it sent the request, took the class for its own.
	knew func(class string) bool
}

func newAPI() *api {
	return &api{version: 100, objects: map[key]client.Object{}, log: map[string][]event{}, changed: map[string]chan struct{}{}}
}

func keyOf(o client.Object) key { return key{kindOf(o), o.GetNamespace(), o.GetName()} }

func resource(kind string) schema.GroupResource { return schema.GroupResource{Resource: kind} }

// get is a copy.
func (a *api) get(k key) (client.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[k]
	if o == nil {
		return nil, apierrors.NewNotFound(resource(k.kind), k.name)
	}
	return o.DeepCopyObject().(client.Object), nil
}

// list is the objects of a kind in order; they are shared.
func (a *api) list(kind string) []client.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listLocked(kind)
}

func (a *api) listLocked(kind string) []client.Object {
	var out []client.Object
	for k, o := range a.objects {
		if k.kind == kind {
			out = append(out, o)
		}
	}
	sortObjects(out)
	return out
}

func sortObjects(list []client.Object) {
	slices.SortFunc(list, func(x, y client.Object) int {
		return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()))
	})
}

// past is a kind as it was at some time, and its version then.
func (a *api) past(kind string, at time.Time) ([]client.Object, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log[kind]
	if len(log) == 0 || !log[len(log)-1].at.After(at) {
		return a.listLocked(kind), a.version
	}
	state, version := map[key]client.Object{}, uint64(100)
	for _, e := range log {
		if e.at.After(at) {
			break
		}
		version = e.version
		o := e.Object.(client.Object)
		if e.Type == watch.Deleted {
			delete(state, keyOf(o))
		} else {
			state[keyOf(o)] = o
		}
	}
	var out []client.Object
	for _, o := range state {
		out = append(out, o)
	}
	sortObjects(out)
	return out, version
}

// next event of a kind after a version, or what to wait for.
func (a *api) next(kind string, after uint64) (*event, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log[kind]
	i, _ := slices.BinarySearchFunc(log, after+1, func(e event, v uint64) int { return cmp.Compare(e.version, v) })
	if i < len(log) {
		return &log[i], nil
	}
	if a.changed[kind] == nil {
		a.changed[kind] = make(chan struct{})
	}
	return nil, a.changed[kind]
}

func (a *api) create(w write, o client.Object) (client.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := keyOf(o)
	if a.objects[k] != nil {
		return nil, apierrors.NewAlreadyExists(resource(k.kind), k.name)
	}
	next := o.DeepCopyObject().(client.Object)
	a.uids++
	next.SetUID(types.UID(fmt.Sprintf("uid-%d-%s", a.uids, k.name)))
	next.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	next.SetGeneration(1)
	next.SetDeletionTimestamp(nil)
	a.store(w, k, nil, next, watch.Added)
	return next, nil
}

func (a *api) delete(w write, k key, uid *types.UID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	current := a.objects[k]
	switch {
	case current == nil:
		return apierrors.NewNotFound(resource(k.kind), k.name)
	case uid != nil && *uid != current.GetUID():
		return apierrors.NewConflict(resource(k.kind), k.name, fmt.Errorf("precondition: UID %s is %s", *uid, current.GetUID()))
	case current.GetDeletionTimestamp() != nil && len(current.GetFinalizers()) > 0:
		return nil
	}
	next := current.DeepCopyObject().(client.Object)
	if len(next.GetFinalizers()) == 0 {
		a.store(w, k, current, next, watch.Deleted)
		return nil
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	next.SetDeletionTimestamp(&now)
	a.store(w, k, current, next, watch.Modified)
	return nil
}

// patch applies a merge patch to an object or to its status.
func (a *api) patch(w write, k key, status bool, data []byte) (client.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	current := a.objects[k]
	if current == nil {
		return nil, apierrors.NewNotFound(resource(k.kind), k.name)
	}
	var change, was, is map[string]any
	if err := json.Unmarshal(data, &change); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	raw, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &was); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &is); err != nil {
		return nil, err
	}
	if meta, ok := change["metadata"].(map[string]any); ok {
		if locked, ok := meta["resourceVersion"].(string); ok && locked != current.GetResourceVersion() && (!a.blind || k.kind != kindHost) {
			return nil, apierrors.NewConflict(resource(k.kind), k.name, fmt.Errorf("it is at %s, not %s", current.GetResourceVersion(), locked))
		}
		delete(meta, "resourceVersion")
	}
	if status {
		only := map[string]any{}
		if told, found := change["status"]; found {
			only["status"] = told
		}
		change = only
	} else if hasStatus[k.kind] {
		delete(change, "status")
	}
	merge(is, change)
	if reflect.DeepEqual(was, is) {
		return current, nil
	}
	raw, err = json.Marshal(is)
	if err != nil {
		return nil, err
	}
	next := newOf(k.kind)
	if err := json.Unmarshal(raw, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !reflect.DeepEqual(was["spec"], is["spec"]) {
		next.SetGeneration(next.GetGeneration() + 1)
	}
	told := watch.Modified
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		told = watch.Deleted
	}
	a.store(w, k, current, next, told)
	return next, nil
}

func merge(into, change map[string]any) {
	for name, value := range change {
		if value == nil {
			delete(into, name)
			continue
		}
		inner, isMap := value.(map[string]any)
		if !isMap {
			into[name] = value
			continue
		}
		was, ok := into[name].(map[string]any)
		if !ok {
			was = map[string]any{}
			into[name] = was
		}
		merge(was, inner)
	}
}

// store makes the write, tells watches of it, and puts it into the history.
func (a *api) store(w write, k key, before, next client.Object, told watch.EventType) {
	a.version++
	next.SetResourceVersion(strconv.FormatUint(a.version, 10))
	w.kind, w.before, w.after = k.kind, before, next
	if told == watch.Deleted {
		delete(a.objects, k)
		w.after = nil
	} else {
		a.objects[k] = next
	}
	a.log[k.kind] = append(a.log[k.kind], event{a.version, time.Now(), watch.Event{Type: told, Object: next}})
	if c := a.changed[k.kind]; c != nil {
		close(c)
		delete(a.changed, k.kind)
	}
	if a.written != nil {
		a.written(w)
	}
}
