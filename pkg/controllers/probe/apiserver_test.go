package probe

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// With a real API server, real informers and a real machine: statuses are accepted, the guard's compare-and-swap succeeds at once though
// the cache lags behind it (section 2 #11), a Secret that is mended is noticed, and a quiet host is written once an interval.
func TestAgainstAPIServer(t *testing.T) {
	log.SetLogger(logr.Discard())
	cfg := apiserver.Start(t, apiserver.OwnCRDs)
	api, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}))

	only := cache.ByObject{Namespaces: map[string]cache.Config{"pool": {}}}
	mgr, err := controllerruntime.NewManager(cfg, controllerruntime.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&v1beta1.SSHHost{}: only, &corev1.Secret{}: only}},
	})
	must(t, err)
	must(t, mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, "spec.providerID", func(o client.Object) []string {
		return []string{o.(*corev1.Node).Spec.ProviderID}
	}))
	inventory := host.NewInventory("pool", mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{})
	must(t, inventory.Register(ctx, mgr))
	controller := NewController(Options{
		Inventory: inventory, Credentials: credentials.NewResolver(mgr.GetClient()), Dialer: &ssh.Dialer{}, Nodes: mgr.GetClient(), Live: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("kpssh-hostprobe"), Clock: clock.RealClock{}, ClusterUID: thisCluster, Instance: "default", Interval: time.Hour,
	})
	must(t, controller.Register(ctx, mgr))
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(running) }()
	t.Cleanup(func() { stop(); <-stopped })

	m := newMachine(t)
	m.host.Spec.Capacity = capacity("1", "1Mi")
	m.host.UID, m.host.Generation = "", 0
	versions := 0
	await := func(what string, done func(*v1beta1.SSHHost) bool) *v1beta1.SSHHost {
		t.Helper()
		watcher, err := api.Watch(ctx, &v1beta1.SSHHostList{}, client.InNamespace("pool"))
		must(t, err)
		defer watcher.Stop()
		var last *v1beta1.SSHHost
		for e := range watcher.ResultChan() {
			h, ok := e.Object.(*v1beta1.SSHHost)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			versions++
			if last = h; done(h) {
				return h
			}
		}
		t.Fatalf("waited in vain until it %s: %+v", what, last)
		return nil
	}

	// No Secret: the host is to blame for nothing, but cannot be used.
	must(t, api.Create(ctx, m.host.DeepCopy()))
	h := await("is Unhealthy", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostUnhealthy })
	if !strings.Contains(h.Status.LastProbeError, "pool/login") || m.Connections() != 0 {
		t.Errorf("without a Secret: %q, %d connections", h.Status.LastProbeError, m.Connections())
	}
	// It is mended: no hour's wait.
	must(t, api.Create(ctx, m.secret.DeepCopy()))
	versions = 0
	await("is Available", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostAvailable })
	if m.AuthAttempts() != 1 || versions > 2 {
		t.Errorf("%d logins and %d versions of the host for one probe", m.AuthAttempts(), versions)
	}

	// A Node with our provider ID and a kubelet, though nobody claims the host.
	must(t, api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "zombie"}, Spec: corev1.NodeSpec{ProviderID: "kpssh://pool/h1"}}))
	m.kubelet("active", "enabled")
	_, err = inventory.Update(ctx, "h1", func(h *v1beta1.SSHHost) error { installed(h); return nil })
	must(t, err)
	h = await("is there", func(*v1beta1.SSHHost) bool { return true })
	h.Spec.Capacity = capacity("1", "2Mi")
	must(t, api.Update(ctx, h)) // an edit, so that it is probed now
	versions = 0
	await("is Leaving", func(h *v1beta1.SSHHost) bool { return h.Status.State == v1beta1.HostLeaving })
	if versions > 3 {
		t.Errorf("the zombie guard needed %d versions of the host", versions)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
