// Package lease decides whether this process may be the instance whose name it was given: there is one lease of each name in the
// whole cluster, in one namespace, whatever namespace the releases are in. Its labels say which release and which pool namespace the
// name belongs to. Another replica of that release stands by, as usual; another release is a mistake, says so and ends.
//
// The lease is for people and for liveness. What keeps two owners apart are the claims on hosts, which are compared and swapped.
//
// The package writes an Event on the lease, and an annotation that tells the holder of the mistake.
package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const (
	// NamePrefix of the leases of instances.
	NamePrefix = "kpssh-"
	// ContenderAnnotation on a lease names the release that last tried to be the same instance, and when.
	ContenderAnnotation = v1beta1.Group + "/contender"
	// unchanged is for how long a lease must not have changed before its holder counts as gone: longer than any renewal takes.
	unchanged = 20 * time.Second
	look      = 2 * time.Second
)

// Claim is what a process says about itself.
type Claim struct {
	// Instance name, pool namespace, and release: what tells one installation from another.
	Instance, PoolNamespace, Release string
	// Namespace of the leases.
	Namespace string
}

// Name of the lease.
func (c Claim) Name() string { return NamePrefix + c.Instance }

// Labels that the lease carries while this release holds it.
func (c Claim) Labels() map[string]string {
	return map[string]string{
		v1beta1.InstanceLabel: c.Instance, v1beta1.PoolNamespaceLabel: c.PoolNamespace, v1beta1.ReleaseLabel: c.Release,
	}
}

// others tells whether a lease is held by another release. One without labels, of a version that set none, is nobody's.
func (c Claim) others(l *coordinationv1.Lease) bool {
	pool, release := l.Labels[v1beta1.PoolNamespaceLabel], l.Labels[v1beta1.ReleaseLabel]
	return ptr.Deref(l.Spec.HolderIdentity, "") != "" && pool != "" && (pool != c.PoolNamespace || release != c.Release)
}

// Check returns nil when this process may stand for election, or a *fault.Error of the configuration when the name is another
// release's. It takes up to 20 s if another release holds the lease, or held it when it died, and no time otherwise.
func (c Claim) Check(ctx context.Context, api client.Client, clk clock.Clock) error {
	first, err := c.read(ctx, api)
	if err != nil || first == nil || !c.others(first) {
		return err
	}
	log.FromContext(ctx).Info("another release holds this instance's lease; waiting to see whether it lives", "instance", c.Instance,
		"release", first.Labels[v1beta1.ReleaseLabel], "poolNamespace", first.Labels[v1beta1.PoolNamespaceLabel])
	for began := clk.Now(); clk.Since(began) < unchanged; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-clk.After(look):
		}
		now, err := c.read(ctx, api)
		switch {
		case err != nil:
			return err
		case now == nil || !c.others(now):
			return nil // it has given the name up
		case renewed(now) != renewed(first):
			return c.duplicate(ctx, api, now, "it is alive: give one of the two another instance.name")
		}
	}
	if first.Labels[v1beta1.PoolNamespaceLabel] == c.PoolNamespace {
		return nil // the same hosts under another release's name
	}
	return c.duplicate(ctx, api, first, fmt.Sprintf("it has not been heard of, but its hosts are not this release's: if it is gone for good, delete Lease %s/%s", c.Namespace, c.Name()))
}

func renewed(l *coordinationv1.Lease) time.Time {
	return ptr.Deref(l.Spec.RenewTime, metav1.MicroTime{}).Time
}

func (c Claim) read(ctx context.Context, api client.Reader) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	err := api.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: c.Name()}, l)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return nil, fault.New(fault.Configuration, "LeaseForbidden", err, "this instance may not read Lease %s/%s: check its Role there", c.Namespace, c.Name())
	case err != nil:
		return nil, fault.New(fault.Cluster, "LeaseUnknown", err, "reading Lease %s/%s", c.Namespace, c.Name())
	}
	return l, nil
}

// duplicate reports a name that is taken, on the lease too, where whoever looks for the reason finds it and where the holder sees it.
func (c Claim) duplicate(ctx context.Context, api client.Client, l *coordinationv1.Lease, what string) error {
	taken := fault.New(fault.Configuration, v1beta1.ReasonDuplicateInstance, nil, "instance name %q belongs to release %q with pool namespace %q, and this is release %q with pool namespace %q; %s",
		c.Instance, l.Labels[v1beta1.ReleaseLabel], l.Labels[v1beta1.PoolNamespaceLabel], c.Release, c.PoolNamespace, what)
	now := time.Now() // an Event's time is wall-clock time, whatever clock this process decides by
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: c.Name() + "-duplicate-"},
		EventTime:  metav1.NewMicroTime(now), ReportingController: "kpssh-lease", ReportingInstance: c.Release,
		Action: "Contend", Reason: v1beta1.ReasonDuplicateInstance, Type: corev1.EventTypeWarning, Note: taken.Message,
		Regarding: corev1.ObjectReference{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Namespace: c.Namespace, Name: c.Name(), UID: l.UID},
	}
	if err := api.Create(ctx, event); err != nil {
		log.FromContext(ctx).Error(err, "the duplicate could not be reported as an Event")
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, ContenderAnnotation,
		fmt.Sprintf("release %s, pool namespace %s, at %s", c.Release, c.PoolNamespace, now.UTC().Format(time.RFC3339)))
	if err := api.Patch(ctx, l.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		log.FromContext(ctx).Error(err, "the holder of the name could not be told of the duplicate")
	}
	return taken
}
