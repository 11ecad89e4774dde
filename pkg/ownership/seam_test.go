package ownership

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// restoreNewManager undoes Install when the test ends.
func restoreNewManager(t *testing.T) {
	original := ctrl.NewManager
	t.Cleanup(func() { ctrl.NewManager = original })
}

// coreEnvironment makes core's operator.NewOperator use a cluster and nothing else of this process.
func coreEnvironment(t *testing.T, cfg *rest.Config) {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*kubeconfig, file))
	t.Setenv("KUBECONFIG", file)
	t.Setenv("DISABLE_LEADER_ELECTION", "true")
	t.Setenv("METRICS_PORT", "0")
	t.Setenv("HEALTH_PROBE_PORT", "0")
	args := os.Args
	os.Args = []string{"controller"} // core parses them
	t.Cleanup(func() { os.Args = args })
}

// The real NewOperator of the karpenter version we build with goes through the seam, with all its informers.
func TestCoreGoesThroughTheSeam(t *testing.T) {
	cfg := apiServer(t)
	live := api(t, cfg)
	coreEnvironment(t, cfg)
	restoreNewManager(t)
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()

	must(t, live.Create(ctx, class("mine", me.Instance)))
	classes := startClasses(t, cfg, me)
	extraRan := false
	seam := Install(me, classes, func(o *ctrl.Options) {
		extraRan = true
		o.Cache.ByObject[&v1beta1.SSHHost{}] = cache.ByObject{Namespaces: map[string]cache.Config{me.PoolNamespace: {}}}
	})
	_, core := operator.NewOperator()
	must(t, seam.Assert(core.GetClient()))
	if !extraRan {
		t.Error("the extra options were not applied")
	}
	expectFault(t, seam.Assert(live), "SeamMissing")

	stopped := make(chan struct{})
	go func() { defer close(stopped); core.Start(ctx) }()
	go seam.Follow(ctx)
	defer func() { cancel(); <-stopped }()
	if !core.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("core's cache did not sync")
	}
	events := newShadow(kindPool)
	informer, err := core.GetCache().GetInformer(ctx, &karpv1.NodePool{})
	must(t, err)
	_, err = informer.AddEventHandler(events.handler())
	must(t, err)

	for _, p := range []*karpv1.NodePool{pool("own", ref("mine")), pool("foreign", ref("theirs"))} {
		p.UID, p.Spec.Template.Spec.Requirements = "", []karpv1.NodeSelectorRequirementWithMinValues{}
		p.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
		must(t, live.Create(ctx, p))
	}
	must(t, events.until(ctx, "own"))
	kube := core.GetClient()
	if err := kube.Get(ctx, client.ObjectKey{Name: "foreign"}, &karpv1.NodePool{}); !apierrors.IsNotFound(err) {
		t.Errorf("core reads a foreign pool: %v", err)
	}
	foreignPool := &karpv1.NodePool{}
	must(t, core.GetAPIReader().Get(ctx, client.ObjectKey{Name: "foreign"}, foreignPool)) // the truth is for those who ask for it
	if err := kube.Delete(ctx, foreignPool); !errors.Is(err, ErrForeign) {
		t.Errorf("core deletes a foreign pool: %v", err)
	}
	must(t, live.Create(ctx, class("theirs", me.Instance))) // it was not theirs, it was nobody's
	must(t, events.until(ctx, "own", "foreign"))
	must(t, kube.Delete(ctx, foreignPool))
	must(t, events.until(ctx, "own"))
}

// until waits until exactly these objects are shown.
func (s *shadow) until(ctx context.Context, names ...string) error {
	for {
		objects, faults, changed := s.look()
		if len(faults) > 0 {
			return errors.New(faults[0])
		}
		found := 0
		for _, n := range names {
			if _, ok := objects[client.ObjectKey{Name: n}]; ok {
				found++
			}
		}
		if found == len(names) && found == len(objects) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.New("never shown: exactly " + strings.Join(names, ", "))
		}
	}
}

func TestAssertFindsWhatWasLeftOut(t *testing.T) {
	seam := newSeam(me, &Classes{own: newRegister(nil)}, clock.RealClock{})
	err := seam.Assert(&guardedClient{seam: seam})
	expectFault(t, err, "SeamMissing")
	for _, part := range []string{"ctrl.NewManager was called 0 times", "no informer for NodePool", "no informer for NodeClaim", "no informer for Node:"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	for _, k := range seam.kinds {
		seam.newInformer(&toolscache.ListWatch{}, k.empty(), 0, nil)
	}
	seam.managers.Add(1)
	must(t, seam.Assert(&guardedClient{seam: seam}))
	other := newSeam(me, &Classes{own: newRegister(nil)}, clock.RealClock{})
	expectFault(t, seam.Assert(&guardedClient{seam: other}), "SeamMissing")
}

// An informer without the type would see the objects of all instances.
func TestUntypedInformersOfViewedKindsPanic(t *testing.T) {
	seam := newSeam(me, &Classes{own: newRegister(nil)}, clock.RealClock{})
	try := func(o runtime.Object, gvk schema.GroupVersionKind) (panicked bool) {
		defer func() { panicked = recover() != nil }()
		o.GetObjectKind().SetGroupVersionKind(gvk)
		seam.newInformer(&toolscache.ListWatch{}, o, 0, nil)
		return false
	}
	for gvk, want := range map[schema.GroupVersionKind]bool{
		{Group: "karpenter.sh", Version: "v1", Kind: kindPool}:                true,
		{Group: "karpenter.sh", Version: "v1beta1", Kind: kindClaim}:          true,
		{Group: "", Version: "v1", Kind: kindNode}:                            true,
		{Group: "autoscaling.x-k8s.io", Version: "v1beta1", Kind: kindBuffer}: true,
		{Group: "karpenter.sh", Version: "v1alpha1", Kind: "NodeOverlay"}:     false,
		{Group: "", Version: "v1", Kind: "Pod"}:                               false,
		{Group: "metrics.k8s.io", Version: "v1", Kind: kindNode}:              false,
		v1beta1.GroupVersion.WithKind(ClassKind):                              false,
	} {
		for _, o := range []runtime.Object{&unstructured.Unstructured{}, &metav1.PartialObjectMetadata{}} {
			if got := try(o, gvk); got != want {
				t.Errorf("informer for %v as %T: panic %v, want %v", gvk, o, got, want)
			}
		}
	}
}

func TestScopingOfViewedKindsIsRefused(t *testing.T) {
	for name, change := range map[string]func(*cache.Options){
		"field selector on NodePool": func(o *cache.Options) {
			o.ByObject = map[client.Object]cache.ByObject{&karpv1.NodePool{}: {Field: fields.Everything()}}
		},
		"transform of Nodes": func(o *cache.Options) {
			o.ByObject = map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: cache.TransformStripManagedFields()}}
		},
		"default namespaces":      func(o *cache.Options) { o.DefaultNamespaces = map[string]cache.Config{"x": {}} },
		"default label selector":  func(o *cache.Options) { o.DefaultLabelSelector = labels.Everything() },
		"another seam's informer": func(o *cache.Options) { o.NewInformer = toolscacheInformer },
	} {
		t.Run(name, func(t *testing.T) {
			seam := newSeam(me, &Classes{own: newRegister(nil)}, clock.RealClock{})
			options := ctrl.Options{}
			change(&options.Cache)
			expectFault(t, seam.fill(&options), "SeamMissing")
		})
	}
}

// The pointers of viewed objects are known to sessions and barriers, and read without a lock.
func TestDefaultTransformLeavesViewedKindsAlone(t *testing.T) {
	seam := newSeam(me, &Classes{own: newRegister(nil)}, clock.RealClock{})
	options := ctrl.Options{}
	options.Cache.DefaultTransform = func(any) (any, error) { return "transformed", nil }
	options.Cache.ByObject = map[client.Object]cache.ByObject{&v1beta1.SSHHost{}: {Namespaces: map[string]cache.Config{"x": {}}}}
	must(t, seam.fill(&options))
	for _, k := range seam.kinds {
		o := k.empty()
		if got, err := options.Cache.DefaultTransform(o); err != nil || got != o {
			t.Errorf("%s became %v, %v", k.name, got, err)
		}
	}
	if got, _ := options.Cache.DefaultTransform(&corev1.Pod{}); got != "transformed" {
		t.Errorf("a Pod became %v", got)
	}
	// An entry for a kind whose CRD is missing, as CapacityBuffer's may be, would keep the manager from being made.
	if n := len(options.Cache.ByObject); n != 1 {
		t.Errorf("%d kinds have options of their own, want 1", n)
	}
}

func toolscacheInformer(lw toolscache.ListerWatcher, o runtime.Object, resync time.Duration, ix toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(lw, o, resync, ix)
}

func expectFault(t *testing.T, err error, reason string) {
	t.Helper()
	if err == nil || fault.Of(err).Reason != reason {
		t.Errorf("got %v, want a fault %s", err, reason)
	}
}
