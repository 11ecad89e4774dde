package arbitration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// The overview sees what the manager's cache keeps out: NodePools and classes of all owners, on a real API server.
func TestTheOverviewSeesAllOwners(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS must name a directory with etcd and kube-apiserver: run this with `make test`, which builds them")
	}
	env := &envtest.Environment{
		CRDs: karpapis.CRDs, CRDDirectoryPaths: []string{filepath.Join("..", "..", "charts", "karpenter-provider-ssh", "crds")}, ErrorIfCRDPathMissing: true,
		ControlPlaneStartTimeout: 3 * time.Minute, ControlPlaneStopTimeout: time.Minute,
	}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
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
