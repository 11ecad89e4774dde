package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// world is what all tests of the package share: one control plane, one built controller, and the memory of who owns what.
type world struct {
	cp        *lab.ControlPlane
	api       client.Client
	clientset kubernetes.Interface
	binary    string
	owners    *owners
	instances []string // that may make machines join
	addresses atomic.Uint32
}

var shared *world

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// favour raises this session over those of the simulated machines: the kernel shares the processors out by session, and each phase on a
// machine is one, so that a hundred of them would leave the API server a hundredth. Without the right to do so all is the same, slower.
func favour() {
	_ = os.WriteFile("/proc/self/autogroup", []byte("-10"), 0o644) //nolint:gosec // the kernel's file
}

func run(m *testing.M) int {
	favour()
	log.SetLogger(logr.Discard()) // controller-runtime's, which complains of having none
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	w, err := newWorld(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer w.cp.Stop()
	defer w.owners.stop()
	shared = w
	code := m.Run()
	return max(code, w.audited())
}

func newWorld(ctx context.Context) (*world, error) {
	fmt.Println("integration: building the controller")
	binary, err := lab.BuildController(ctx)
	if err != nil {
		return nil, err
	}
	return openWorld(ctx, binary)
}

// openWorld is a world whose control plane serves CRDs, those of the working tree if none is given.
func openWorld(ctx context.Context, binary string, crds ...*apiextensionsv1.CustomResourceDefinition) (*world, error) {
	cp, err := lab.StartControlPlane(ctx, lab.Options{
		Log: os.Stdout, Scheduler: true, ControllerManager: true, Bootstrap: true, Audit: true,
		NodeMonitorGracePeriod: 2 * time.Minute, // two busy cores and hundreds of stand-in kubelets: a late heartbeat is no fault here
	})
	if err != nil {
		return nil, err
	}
	if err := cp.InstallCRDs(ctx, crds...); err != nil {
		cp.Stop()
		return nil, err
	}
	w := &world{cp: cp, binary: binary}
	if w.api, err = client.New(cp.RESTConfig(), client.Options{Scheme: scheme.Scheme}); err == nil {
		w.clientset, err = kubernetes.NewForConfig(cp.RESTConfig())
	}
	if err == nil {
		w.owners, err = rememberOwners(cp.RESTConfig())
	}
	if err != nil {
		cp.Stop()
		return nil, err
	}
	return w, nil
}

// audited is S6 over everything that the tests of this process did, whatever they looked at themselves.
func (w *world) audited() int {
	audit, err := w.cp.ReadAudit()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	verdict := w.owners.judge(audit)
	fmt.Println("integration: S6 over the whole suite:", verdict)
	if foreign := verdict.but(planted); len(foreign) > 0 {
		fmt.Fprintf(os.Stderr, "S6: %d writes on foreign objects:\n%s\n", len(foreign), strings.Join(foreign, "\n"))
		return 1
	}
	return 0
}

// nodeIP is an address that no other machine of the suite has.
func (w *world) nodeIP() string {
	n := w.addresses.Add(1)
	return fmt.Sprintf("10.77.%d.%d", n/250, n%250+1)
}
