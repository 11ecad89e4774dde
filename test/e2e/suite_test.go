//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// Paths of what prepare made, for the part of the program that has no network to make it.
const (
	controllerVariable = "KPSSH_E2E_CONTROLLER"
	chartsVariable     = "KPSSH_E2E_CHARTS"
)

func TestMain(m *testing.M) {
	if code, inside := machine.Enclose(prepare); !inside {
		os.Exit(code)
	}
	ctrl.SetLogger(logr.Discard()) // client libraries' own; the controller is another process
	os.Exit(m.Run())
}

func TestEndToEnd(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(2 * time.Minute)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyPollingInterval(200 * time.Millisecond)
	suite, reporter := GinkgoConfiguration()
	suite.Timeout = 30 * time.Minute
	RunSpecs(t, "real machines", suite, reporter)
}

// prepare builds everything while there is a network.
func prepare() error {
	ctx := context.Background()
	if err := machine.Preflight(len(machineNames) + 3); err != nil {
		return err
	}
	root, err := lab.Root()
	if err != nil {
		return err
	}
	if _, err := siteOptions(ctx, root); err != nil {
		return err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "kpssh", "e2e")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	program := filepath.Join(dir, "controller")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/controller")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the controller: %w: %s", err, out)
	}
	if err := renderCharts(ctx, dir); err != nil {
		return err
	}
	for variable, path := range map[string]string{controllerVariable: program, chartsVariable: dir} {
		if err := os.Setenv(variable, path); err != nil {
			return err
		}
	}
	return nil
}

func siteOptions(ctx context.Context, root string) (machine.Options, error) {
	rootfs, err := machine.RootFS(ctx, os.Stderr)
	if err != nil {
		return machine.Options{}, err
	}
	binaries, err := lab.Binaries(ctx, os.Stderr)
	if err != nil {
		return machine.Options{}, err
	}
	kubelet, err := filepath.EvalSymlinks(filepath.Join(binaries, "kubelet"))
	if err != nil {
		return machine.Options{}, fmt.Errorf("machines need a kubelet beside the control plane's programs: %w", err)
	}
	pause, err := machine.Pause(ctx, root)
	return machine.Options{RootFS: rootfs, Kubebin: kubelet, Pause: pause}, err
}

var lives *world

var _ = BeforeSuite(func(ctx SpecContext) {
	var err error
	lives, err = newWorld(ctx)
	Expect(err).NotTo(HaveOccurred())
}, NodeTimeout(6*time.Minute))

var _ = AfterSuite(func() {
	if lives != nil {
		defer lives.stop()
		lives.expectNoForeignWrites()
		lives.expectRightsInUse()
	}
})

// Whatever a scenario leaves behind would be the next one's puzzle.
var _ = ReportAfterEach(func(report SpecReport) {
	if report.Failed() && lives != nil {
		GinkgoWriter.Println(lives.postmortem())
	}
})
