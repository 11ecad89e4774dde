package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// caller is who sends requests. Without a process it is a user, a kubelet or kube-controller-manager: nothing befalls its requests.
type caller struct {
	name string
	proc *process
}

// direct is the client that reads and writes the API server itself.
type direct struct {
	client.Client // what nothing here uses is nil
	w             *world
	by            *caller
}

var (
	errDead    = errors.New("this process is dead")
	errRefused = apierrors.NewServiceUnavailable("injected")
	errTimeout = apierrors.NewTimeoutError("injected: the answer was lost", 1)
)

// request makes one request, with what befalls it on the way there and back.
func (c *direct) request(ctx context.Context, verb string, k key, writes bool, do func(write) error) error {
	return c.requestOf(ctx, verb, k, nil, writes, do)
}

// requestOf is request for what is sent about an object as the sender has it in memory.
func (c *direct) requestOf(ctx context.Context, verb string, k key, sent client.Object, writes bool, do func(write) error) error {
	w := write{by: c.by, verb: verb, knew: func(string) bool { return false }}
	p := c.by.proc
	if p == nil {
		return do(w)
	}
	w.knew = p.believes(sent)
	if calm[k.kind] {
		if p.isDead() {
			return errDead
		}
		return do(w)
	}
	name := k.name
	if k.kind == kindSecret {
		name = "" // tokens have names by chance
	}
	d := c.w.dice.roll(p.name + verb + k.kind + name)
	weather := c.w.weatherOf(p.id.Instance)
	if err := p.pass(ctx, d.between(200*time.Microsecond, weather.slow)); err != nil {
		return err
	}
	if weather.down {
		if err := p.pass(ctx, time.Second); err != nil {
			return err
		}
		return errRefused
	}
	if d.chance(weather.refuse) {
		return errRefused
	}
	err := do(w)
	if writes && err == nil && p.wrote() {
		return errDead
	}
	if gone := p.pass(ctx, d.between(200*time.Microsecond, weather.slow)); gone != nil {
		return gone
	}
	if writes && d.chance(weather.lose) {
		return errTimeout
	}
	return err
}

func (c *direct) Get(ctx context.Context, name client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	k := key{kindOf(o), name.Namespace, name.Name}
	if k.kind == kindProfile {
		into(c.w.profile, o)
		return nil
	}
	return c.request(ctx, "get", k, false, func(write) error {
		found, err := c.w.api.get(k)
		if err == nil {
			into(found, o)
		}
		return err
	})
}

func (c *direct) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind := kindOf(list)
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	name := ""
	if o.FieldSelector != nil {
		name = o.FieldSelector.String()
	}
	return c.request(ctx, "list", key{kind: kind, name: name}, false, func(write) error { return fill(list, c.w.api.list(kind), opts) })
}

func (c *direct) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	return c.requestOf(ctx, "create", keyOf(o), o, true, func(w write) error {
		made, err := c.w.api.create(w, o)
		if err == nil {
			into(made, o)
		}
		return err
	})
}

func (c *direct) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	do := client.DeleteOptions{}
	do.ApplyOptions(opts)
	return c.requestOf(ctx, "delete", keyOf(o), o, true, func(w write) error {
		if do.Preconditions != nil {
			return c.w.api.delete(w, keyOf(o), do.Preconditions.UID)
		}
		return c.w.api.delete(w, keyOf(o), nil)
	})
}

func (c *direct) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	return c.patch(ctx, o, patch, false)
}

func (c *direct) patch(ctx context.Context, o client.Object, patch client.Patch, status bool) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	verb := "patch"
	if status {
		verb = "patch status"
	}
	return c.requestOf(ctx, verb, keyOf(o), o, true, func(w write) error {
		next, err := c.w.api.patch(w, keyOf(o), status, data)
		if err == nil {
			into(next, o)
		}
		return err
	})
}

func (c *direct) Status() client.SubResourceWriter { return c.SubResource("status") }

func (c *direct) SubResource(name string) client.SubResourceClient {
	if name != "status" {
		panic("subresource " + name)
	}
	return &directStatus{c: c}
}

type directStatus struct {
	client.SubResourceClient
	c *direct
}

func (s *directStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.c.patch(ctx, o, patch, true)
}

// cached is a manager's client: it reads informers' stores and writes to the API server.
type cached struct {
	*direct
	stores map[string]toolscache.Store
}

func (c *cached) Get(ctx context.Context, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	kind := kindOf(o)
	if kind == kindSecret {
		found, err := c.w.api.get(key{kind, name.Namespace, name.Name})
		if err == nil {
			into(found, o)
		}
		return err
	}
	store := c.stores[kind]
	if store == nil {
		return c.direct.Get(ctx, name, o, opts...)
	}
	k := name.Name
	if name.Namespace != "" {
		k = name.Namespace + "/" + name.Name
	}
	found, exists, err := store.GetByKey(k)
	if err != nil {
		return err
	}
	if !exists {
		return apierrors.NewNotFound(resource(kind), name.Name)
	}
	into(found.(client.Object), o)
	return nil
}

func (c *cached) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind := kindOf(list)
	store := c.stores[kind]
	if store == nil {
		return fmt.Errorf("no cache of %s", kind)
	}
	return fill(list, contents(store), opts)
}

func contents(store toolscache.Store) []client.Object {
	var out []client.Object
	for _, x := range store.List() {
		out = append(out, x.(client.Object))
	}
	sortObjects(out)
	return out
}
