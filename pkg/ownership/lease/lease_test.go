package lease

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

var mine = Claim{Instance: "seg-a", PoolNamespace: "kp-a", Release: "kp-a.kpssh", Namespace: "kube-system"}

// held is the lease of a claim, or of nobody if holder is empty.
func held(by Claim, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kpssh-seg-a", Labels: by.Labels()},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder), RenewTime: &metav1.MicroTime{Time: time.Unix(1, 0)}},
	}
}

func apiWith(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{coordinationv1.AddToScheme, eventsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

// A10, C6: an instance name belongs to one release in the whole cluster. Another release is told so, at once if the first one lives;
// replicas of the same release stand by.
func TestANameBelongsToOneRelease(t *testing.T) {
	otherRelease := Claim{Instance: "seg-a", PoolNamespace: "kp-b", Release: "kp-b.kpssh", Namespace: "kube-system"}
	renamed := Claim{Instance: "seg-a", PoolNamespace: "kp-a", Release: "kp-a.renamed", Namespace: "kube-system"}
	for _, row := range []struct {
		name  string
		lease *coordinationv1.Lease
		alive bool
		// says is in the error; empty means that the process may go on.
		says string
		// within is how long that takes at most.
		within time.Duration
	}{
		{name: "no lease yet"},
		{name: "another replica of this release", lease: held(mine, "pod-1"), alive: true},
		{name: "given up in order", lease: held(otherRelease, "")},
		{name: "of a version that labelled nothing", lease: held(Claim{}, "pod-1"), alive: true},
		{name: "another release, alive", lease: held(otherRelease, "pod-1"), alive: true, within: 6 * time.Second,
			says: `belongs to release "kp-b.kpssh" with pool namespace "kp-b", and this is release "kp-a.kpssh" with pool namespace "kp-a"; it is alive`},
		{name: "another release with the same hosts, alive", lease: held(renamed, "pod-1"), alive: true, within: 6 * time.Second, says: "it is alive"},
		{name: "another release with the same hosts, dead", lease: held(renamed, "pod-1"), within: unchanged + look},
		{name: "another release with other hosts, dead", lease: held(otherRelease, "pod-1"), within: unchanged + look, says: "delete Lease kube-system/kpssh-seg-a"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var objects []client.Object
				if row.lease != nil {
					if row.lease.Labels["karpenter.dklesev.github.io/instance"] == "" {
						row.lease.Labels = nil
					}
					objects = append(objects, row.lease)
				}
				api := apiWith(t, interceptor.Funcs{}, objects...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if row.alive {
					go renewEvery(ctx, api, 2*time.Second)
				}
				began := time.Now()
				err := mine.Check(ctx, api, clock.RealClock{})
				if took := time.Since(began); took > row.within {
					t.Errorf("it took %s", took)
				}
				events := &eventsv1.EventList{}
				if err := api.List(ctx, events); err != nil {
					t.Fatal(err)
				}
				if row.says == "" {
					if err != nil || len(events.Items) > 0 {
						t.Errorf("%v, events %v", err, events.Items)
					}
					return
				}
				if !fault.Is(err, fault.Configuration) || fault.Of(err).Reason != v1beta1.ReasonDuplicateInstance || !strings.Contains(err.Error(), row.says) {
					t.Fatalf("%v", err)
				}
				if len(events.Items) != 1 || events.Items[0].Reason != v1beta1.ReasonDuplicateInstance || events.Items[0].Note != err.Error() {
					t.Errorf("events %+v", events.Items)
				}
				l := &coordinationv1.Lease{}
				if err := api.Get(ctx, client.ObjectKeyFromObject(row.lease), l); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(l.Annotations[ContenderAnnotation], "kp-a.kpssh") || ptr.Deref(l.Spec.HolderIdentity, "") != "pod-1" {
					t.Errorf("the holder sees %v, lease %+v", l.Annotations, l.Spec)
				}
			})
		})
	}
}

func renewEvery(ctx context.Context, api client.Client, every time.Duration) {
	for {
		select {
		case <-time.After(every): // in a bubble: no time passes
		case <-ctx.Done():
			return
		}
		l := &coordinationv1.Lease{}
		if api.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "kpssh-seg-a"}, l) != nil {
			return
		}
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		_ = api.Update(ctx, l)
	}
}

// Two releases that start at the same moment both find no lease. The one that stands by finds out and ends; the one that leads goes on.
func TestAStandByOfAnotherReleaseEnds(t *testing.T) {
	other := Claim{Instance: "seg-a", PoolNamespace: "kp-b", Release: "kp-b.kpssh", Namespace: "kube-system"}
	synctest.Test(t, func(t *testing.T) {
		api := apiWith(t, interceptor.Funcs{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		elected := make(chan struct{})
		ended := make(chan error, 2)
		go func() {
			ended <- (&Guard{Claim: mine, API: api, Clock: clock.RealClock{}, Elected: make(chan struct{})}).Start(ctx)
		}()
		go func() {
			_ = (&Guard{Claim: other, API: api, Clock: clock.RealClock{}, Elected: elected}).Start(ctx)
			ended <- nil
		}()
		if err := api.Create(ctx, held(other, "pod-1")); err != nil {
			t.Fatal(err)
		}
		go renewEvery(ctx, api, 2*time.Second)
		if err := <-ended; !isDuplicate(err) {
			t.Fatalf("the stand-by ended with %v", err)
		}
		close(elected)
		if err := <-ended; err != nil {
			t.Errorf("the leader ended with %v", err)
		}
	})
}

// Whose fault it is when the lease cannot be read.
func TestALeaseThatCannotBeRead(t *testing.T) {
	for _, row := range []struct {
		err   error
		blame fault.Blame
	}{
		{err: apierrors.NewForbidden(coordinationv1.Resource("leases"), "kpssh-seg-a", nil), blame: fault.Configuration},
		{err: apierrors.NewInternalError(context.DeadlineExceeded), blame: fault.Cluster},
	} {
		api := apiWith(t, interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return row.err
		}})
		if err := mine.Check(t.Context(), api, clock.RealClock{}); !fault.Is(err, row.blame) {
			t.Errorf("%v: %v", row.err, err)
		}
	}
}
