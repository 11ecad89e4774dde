package arbitration

import (
	"context"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// The overview sees what the manager's cache keeps out: NodePools and classes of all owners, on a real API server.
func TestTheOverviewSeesAllOwners(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.CRDs)
	api, err := client.New(cfg, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	theirs := sshClass("b", "seg-b")
	theirs.Spec.JoinProfileRef.Name = "p"
	poolB := nodePool("pool-b", "b", weighing(3))
	poolB.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	poolB.UID, poolB.Generation = "", 0
	aws := poolB.DeepCopy()
	aws.Name = "pool-aws"
	ofAWS(aws)
	for _, o := range []client.Object{theirs, poolB, aws} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	o, err := Watch(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if o.Synced() {
		t.Error("it is complete before it has begun")
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { o.Start(ctx); close(stopped) }()
	until := func(want ...string) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return o.Synced() && slices.Equal(owners(o), want), nil
		}); err != nil {
			t.Errorf("owners are %v, want %v", owners(o), want)
		}
	}
	until("pool-aws *", "pool-b seg-b")
	if err := api.Delete(t.Context(), poolB); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), &v1beta1.SSHNodeClass{ObjectMeta: theirs.ObjectMeta}); err != nil {
		t.Fatal(err)
	}
	until("pool-aws *")
	stop()
	<-stopped
}
