package nodeclass

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	controllerruntime "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// With a real API server and real informers: a class becomes Ready, counts its hosts, is left alone by heartbeats (section 2 #37), and
// goes when its claim has gone (A9). The foreign class beside it is never written.
func TestAgainstAPIServer(t *testing.T) {
	log.SetLogger(logr.Discard())
	cfg := apiserver.Start(t, apiserver.CRDs)
	api, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme.Scheme})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pool}}))

	only := cache.ByObject{Namespaces: map[string]cache.Config{pool: {}}}
	mgr, err := controllerruntime.NewManager(cfg, controllerruntime.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"}, Logger: logr.Discard(),
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&v1beta1.SSHHost{}: only, &corev1.Secret{}: only}},
	})
	must(t, err)
	inventory := host.NewInventory(pool, mgr.GetClient(), mgr.GetAPIReader(), clock.RealClock{})
	must(t, inventory.Register(ctx, mgr))
	var looks atomic.Int32 // at own classes
	controller := NewController(Options{
		Inventory: inventory, Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Discovery: bootstrap.NewDiscovery(mgr.GetAPIReader()), Clock: clock.RealClock{},
		Instance: "default", Recorder: mgr.GetEventRecorder("kpssh-nodeclass"),
		Mine: func(class string) bool {
			if class == "c1" {
				looks.Add(1)
			}
			return class == "c1"
		},
	})
	must(t, controller.Register(ctx, mgr))
	running, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(running) }()
	t.Cleanup(func() { stop(); <-stopped })

	await := func(what string, done func(watch.EventType, *v1beta1.SSHNodeClass) bool) {
		t.Helper()
		watcher, err := api.Watch(ctx, &v1beta1.SSHNodeClassList{})
		must(t, err)
		defer watcher.Stop()
		var last *v1beta1.SSHNodeClass
		for e := range watcher.ResultChan() {
			if class, ok := e.Object.(*v1beta1.SSHNodeClass); ok && class.Name == "c1" {
				if last = class; done(e.Type, class) {
					return
				}
			}
		}
		t.Fatalf("waited in vain until it %s: %+v", what, last)
	}
	counted := func(hosts, free int32) func(watch.EventType, *v1beta1.SSHNodeClass) bool {
		return func(_ watch.EventType, c *v1beta1.SSHNodeClass) bool {
			ready := readyOf(c)
			return ready != nil && (ready.Status == metav1.ConditionTrue) == (hosts > 0) && c.Status.Hosts == hosts && c.Status.Free == free
		}
	}

	foreign := aClass(func(c *v1beta1.SSHNodeClass) { c.Name, c.Spec.Instance, c.Generation = "foreign", "other", 0 })
	must(t, api.Create(ctx, foreign))
	must(t, api.Create(ctx, aProfile(func(p *v1beta1.SSHJoinProfile) { p.UID = "" })))
	must(t, api.Create(ctx, aClass()))
	await("reports that it has no host", counted(0, 0))
	for i := range 20 {
		h := aHost(fmt.Sprintf("h%d", i), false, nil)
		h.Spec = v1beta1.SSHHostSpec{Address: fmt.Sprintf("192.0.2.%d", i), SSHKeySecretRef: v1beta1.SecretReference{Name: "login"},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}}
		must(t, api.Create(ctx, h))
	}
	await("counts its hosts", counted(20, 0))

	set := func(i int, change func(*v1beta1.SSHHost)) {
		t.Helper()
		_, err := inventory.Update(ctx, fmt.Sprintf("h%d", i), func(h *v1beta1.SSHHost) error { change(h); return nil })
		must(t, err)
	}
	before := looks.Load()
	for beat := range 5 {
		for i := range 20 {
			set(i, func(h *v1beta1.SSHHost) {
				h.Status.LastProbeTime = new(metav1.NewTime(noon.Add(time.Duration(beat) * time.Minute)))
			})
		}
	}
	for i := range 20 {
		set(i, func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostAvailable })
	}
	await("counts what is free", counted(20, 20))
	if n := looks.Load() - before; n > 10 {
		t.Errorf("100 heartbeats and a burst of 20 releases were looked at %d times", n)
	} else {
		t.Logf("100 heartbeats and a burst of 20 releases were looked at %d times", n)
	}

	claim := aClaim("busy", v1beta1.Group, "SSHNodeClass", "c1")
	claim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	must(t, api.Create(ctx, claim))
	must(t, api.Delete(ctx, aClass()))
	await("waits for its claim", func(_ watch.EventType, c *v1beta1.SSHNodeClass) bool {
		ready := readyOf(c)
		return ready.Reason == v1beta1.ReasonDeleting && ready.Message == waitingFor([]string{"busy"}, nil)
	})
	must(t, api.Delete(ctx, claim))
	await("is gone", func(e watch.EventType, _ *v1beta1.SSHNodeClass) bool { return e == watch.Deleted })

	must(t, api.Get(ctx, client.ObjectKeyFromObject(foreign), foreign))
	if len(foreign.Finalizers) > 0 || len(foreign.Status.Conditions) > 0 {
		t.Errorf("the foreign class was written: %v %v", foreign.Finalizers, foreign.Status.Conditions)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
