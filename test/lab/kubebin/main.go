// Command kubebin is Kubernetes' control plane, kubelet and kubectl, and etcd, as one multi-call binary.
//
// It is built from the projects' own Go modules, so that the test lab needs nothing but a Go toolchain and the module
// proxy. The program to run is chosen by the name it is called by (a symlink), else by its first argument. One binary
// instead of six halves the disk and, because all processes map the same file, the memory that a lab needs.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func run(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

var applets = map[string]func() int{
	"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }),
}

func main() {
	applet, found := applets[filepath.Base(os.Args[0])]
	if !found && len(os.Args) > 1 {
		if applet, found = applets[os.Args[1]]; found {
			os.Args = os.Args[1:]
		}
	}
	if !found {
		names := make([]string, 0, len(applets))
		for name := range applets {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "kubebin: call it by one of these names, or give one as the first argument: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(applet())
}
