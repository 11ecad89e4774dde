package ownership

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const (
	classResource = "sshnodeclasses"
	// instanceField is declared selectable by the CRD, so the server sends this instance no class of another one.
	instanceField = "spec.instance"
)

// Classes is the live set of the names of this instance's SSHNodeClasses.
type Classes struct {
	own *register
}

// Mine tells whether a class is this instance's, now.
func (c *Classes) Mine(class string) bool { return c.own.snapshot().Has(class) }

// Snapshot is the set as it is now; it never changes, see Set.Stale.
func (c *Classes) Snapshot() *Set { return c.own.snapshot() }

// Start watches the SSHNodeClasses with spec.instance=<id.Instance> until ctx ends and returns when the set is complete. Call it
// before any cache is made: a cache made earlier would take all objects for foreign ones.
// It returns a *fault.Error: of the configuration when the identity is invalid or the cluster does not know SSHNodeClasses by
// instance, of the cluster when the API server does not answer.
func Start(ctx context.Context, cfg *rest.Config, id Identity) (*Classes, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	api, err := classClient(cfg)
	if err != nil {
		return nil, fault.New(fault.Configuration, "ClientInvalid", err, "making a client for SSHNodeClasses")
	}
	selector := fields.OneTermEqualSelector(instanceField, id.Instance)
	if err := probe(ctx, api, selector); err != nil {
		return nil, err
	}
	return follow(ctx, toolscache.NewListWatchFromClient(api, classResource, metav1.NamespaceAll, selector), id.Instance)
}

// follow keeps the set of the names that a source has, and returns when it is complete.
func follow(ctx context.Context, source toolscache.ListerWatcher, instance string) (*Classes, error) {
	c := &Classes{own: newRegister(nil)}
	informer := toolscache.NewSharedIndexInformerWithOptions(source, &v1beta1.SSHNodeClass{}, toolscache.SharedIndexInformerOptions{ObjectDescription: "own SSHNodeClasses"})
	// Only names matter here; specs can be long.
	if err := informer.SetTransform(nameOnly); err != nil {
		return nil, fault.New(fault.Cluster, "ClassWatchFailed", err, "watching SSHNodeClasses")
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: c.add, UpdateFunc: func(_, o any) { c.add(o) }, DeleteFunc: c.remove,
	})
	if err != nil {
		return nil, fault.New(fault.Cluster, "ClassWatchFailed", err, "watching SSHNodeClasses")
	}
	go informer.RunWithContext(ctx)
	if !toolscache.WaitForCacheSync(ctx.Done(), handle.HasSynced) {
		return nil, fault.New(fault.Cluster, "ClassWatchFailed", ctx.Err(), "the SSHNodeClasses of instance %q could not be read in time", instance)
	}
	return c, nil
}

func (c *Classes) add(o any) {
	if class, ok := o.(*v1beta1.SSHNodeClass); ok {
		c.own.change(func(names map[string]struct{}) { names[class.Name] = struct{}{} })
	}
}

func (c *Classes) remove(o any) {
	if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if class, ok := o.(*v1beta1.SSHNodeClass); ok {
		c.own.change(func(names map[string]struct{}) { delete(names, class.Name) })
	}
}

// nameOnly keeps what an informer needs of a class and its name.
func nameOnly(o any) (any, error) {
	class, ok := o.(*v1beta1.SSHNodeClass)
	if !ok {
		return o, nil
	}
	return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{
		Name: class.Name, UID: class.UID, ResourceVersion: class.ResourceVersion,
	}}, nil
}

// classClient is typed and has its own scheme, so that it depends on no package's registration with the global one.
func classClient(cfg *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	own := rest.CopyConfig(cfg)
	own.GroupVersion = &v1beta1.GroupVersion
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // custom resources have no protobuf
	return rest.RESTClientFor(own)
}

// probe asks once, because an informer would retry a cluster without our CRDs for ever and say nothing to a person.
func probe(ctx context.Context, api rest.Interface, selector fields.Selector) error {
	err := api.Get().Resource(classResource).
		Param("fieldSelector", selector.String()).Param("limit", "1").Do(ctx).Error()
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fault.New(fault.Configuration, "CRDMissing", err, "the cluster has no SSHNodeClass CRD: install the CRDs of this chart")
	case apierrors.IsBadRequest(err):
		return fault.New(fault.Configuration, "CRDOutdated", err,
			"the SSHNodeClass CRD does not declare %s as a selectable field: update the CRDs; Kubernetes 1.32 or newer is needed", instanceField)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fault.New(fault.Configuration, "ClassesForbidden", err, "this instance may not list SSHNodeClasses: check its ClusterRole")
	}
	return fault.New(fault.Cluster, "ClassListFailed", err, "listing SSHNodeClasses")
}
