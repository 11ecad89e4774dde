package ownership

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// environment is the one etcd and kube-apiserver of this package's tests.
var environment struct {
	once sync.Once
	env  *envtest.Environment
	err  error
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())  // the tests break watches by the dozen
	utilruntime.ErrorHandlers = nil // their pauses mix real time with the time of a bubble
	code := m.Run()
	if environment.env != nil {
		if err := environment.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// apiServer gives the configuration of a real kube-apiserver that knows karpenter's and our kinds, and has no objects of them.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	environment.once.Do(func() {
		environment.env, environment.err = apiserver.Run(apiserver.CRDs)
	})
	if environment.err != nil {
		t.Fatalf("starting the API server: %v", environment.err)
	}
	cfg := rest.CopyConfig(environment.env.Config)
	cfg.QPS = -1 // the tests are the only users
	clean(t, api(t, cfg))
	return cfg
}

// api is an unguarded client that reads and writes the API server itself.
func api(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clean removes what an earlier test left.
func clean(t *testing.T, c client.Client) {
	t.Helper()
	ctx := t.Context()
	for _, list := range []client.ObjectList{
		&karpv1.NodePoolList{}, &karpv1.NodeClaimList{}, &corev1.NodeList{}, &autoscalingv1beta1.CapacityBufferList{}, &v1beta1.SSHNodeClassList{},
	} {
		must(t, c.List(ctx, list))
		all, err := itemsOf(list)
		must(t, err)
		for _, o := range all {
			if len(o.GetFinalizers()) > 0 {
				must(t, client.IgnoreNotFound(c.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
			}
			must(t, client.IgnoreNotFound(c.Delete(ctx, o, client.GracePeriodSeconds(0))))
		}
	}
}

// class is an SSHNodeClass that the API server accepts.
func class(name, instance string) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1beta1.SSHNodeClassSpec{
			Instance:       instance,
			JoinProfileRef: v1beta1.ProfileReference{Name: "tls-bootstrap"},
		},
	}
}

// startClasses is Start for an instance until the test ends.
func startClasses(t *testing.T, cfg *rest.Config, id Identity) *Classes {
	t.Helper()
	classes, err := Start(t.Context(), cfg, id)
	if err != nil {
		t.Fatal(err)
	}
	return classes
}

// untilMine waits until the set has exactly these classes.
func untilMine(ctx context.Context, classes *Classes, names ...string) error {
	for {
		set := classes.Snapshot()
		if fmt.Sprint(set.Names()) == fmt.Sprint(own(names...).Names()) {
			return nil
		}
		select {
		case <-set.Stale():
		case <-ctx.Done():
			return fmt.Errorf("classes are %v, want %v", set.Names(), names)
		}
	}
}

// itemsOf a list, as pointers into it.
func itemsOf(list client.ObjectList) ([]client.Object, error) {
	var out []client.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		out = append(out, o.(client.Object))
		return nil
	})
	return out, err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
