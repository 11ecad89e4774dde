package ownership

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// InMemory is what Install makes of a manager's client, for a client that has no watch to put the views into: over an API server in
// memory, to run core's parts on what an instance would see. Classes are the instance's; filter may be nil.
func InMemory(base client.Client, id Identity, classes []string, filter PodFilter) client.Client {
	own := newRegister(nil)
	own.change(func(names map[string]struct{}) {
		for _, class := range classes {
			names[class] = struct{}{}
		}
	})
	seam := newSeam(id, &Classes{own: own}, clock.RealClock{})
	if filter != nil {
		seam.FilterPending(filter)
	}
	return &guardedClient{Client: &viewedClient{Client: base, seam: seam}, live: base, seam: seam}
}

// viewedClient shows of what it reads what the views let through.
type viewedClient struct {
	client.Client
	seam *Seam
}

func (c *viewedClient) visible(o runtime.Object) bool {
	name, viewed := viewedName(o)
	return !viewed || c.seam.kinds[name].see(c.seam.classes.Snapshot(), o.(client.Object)).visible()
}

func (c *viewedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	if !c.visible(o) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "hidden"}, key.Name)
	}
	return nil
}

func (c *viewedClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, list, opts...); err != nil {
		return err
	}
	var seen []runtime.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		if c.visible(o) {
			seen = append(seen, o)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return meta.SetList(list, seen)
}
