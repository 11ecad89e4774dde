package turn

import (
	"context"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const (
	// LeaseName of the one turn in the cluster.
	LeaseName = "kpssh-disruption"
	// QueueAnnotation on the Lease names the instances that wait, first come first, separated by commas.
	QueueAnnotation = v1beta1.Group + "/waiting"
)

// epoch tells one turn from every other.
type epoch struct {
	holder      string
	transitions int32
}

func epochOf(l *coordinationv1.Lease) epoch {
	return epoch{holder: ptr.Deref(l.Spec.HolderIdentity, ""), transitions: ptr.Deref(l.Spec.LeaseTransitions, 0)}
}

// queueOf is who waits, in order.
func queueOf(l *coordinationv1.Lease) []string {
	return slices.DeleteFunc(strings.Split(l.Annotations[QueueAnnotation], ","), func(name string) bool { return name == "" })
}

func setQueue(l *coordinationv1.Lease, queue []string) {
	if len(queue) == 0 {
		delete(l.Annotations, QueueAnnotation)
		return
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[QueueAnnotation] = strings.Join(queue, ",")
}

// read reads the Lease from the API server; nil if there is none yet.
func (t *Turn) read(ctx context.Context) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	err := t.live.Get(ctx, types.NamespacedName{Namespace: t.namespace, Name: LeaseName}, l)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, fault.New(fault.Configuration, "TurnForbidden", err, "Lease %s/%s may not be read, so nothing is consolidated: give this instance's Role get, create and update on it", t.namespace, LeaseName)
	case err != nil:
		return nil, fault.New(fault.Cluster, "TurnUnknown", err, "reading Lease %s/%s", t.namespace, LeaseName)
	}
	return l, nil
}

// write is a compare-and-swap: an update carries the resourceVersion that was read. It returns false when somebody else was faster.
func (t *Turn) write(ctx context.Context, l *coordinationv1.Lease) (bool, error) {
	var err error
	if l.ResourceVersion == "" {
		err = t.writer.Create(ctx, l)
	} else {
		err = t.writer.Update(ctx, l)
	}
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		return false, fault.New(fault.Configuration, "TurnForbidden", err, "Lease %s/%s may not be written, so nothing is consolidated: give this instance's Role get, create and update on it", t.namespace, LeaseName)
	}
	return false, fault.New(fault.Cluster, "TurnUnknown", err, "writing Lease %s/%s", t.namespace, LeaseName)
}

// take turns a Lease into one that this instance holds, in an epoch of its own. Whoever stood before it in the queue had a chance.
func (t *Turn) take(l *coordinationv1.Lease) *coordinationv1.Lease {
	if l == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: LeaseName}}
	}
	l = l.DeepCopy()
	now := metav1.NewMicroTime(t.clock.Now())
	l.Spec.HolderIdentity = ptr.To(t.instance)
	l.Spec.LeaseTransitions = ptr.To(ptr.Deref(l.Spec.LeaseTransitions, 0) + 1)
	l.Spec.LeaseDurationSeconds = ptr.To(int32(expiry.Seconds()))
	l.Spec.AcquireTime, l.Spec.RenewTime = &now, &now
	queue := queueOf(l)
	setQueue(l, queue[slices.Index(queue, t.instance)+1:])
	return l
}
