// Command lab builds the Kubernetes binaries of the test lab, and keeps a control plane running to play with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "lab", Short: "Kubernetes on this machine, from Go modules", SilenceUsage: true}
	root.AddCommand(binaries(), up())
	if err := root.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func binaries() *cobra.Command {
	return &cobra.Command{
		Use:   "binaries",
		Short: "Build the Kubernetes binaries unless they are cached, and print their directory (usable as KUBEBUILDER_ASSETS)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := lab.Binaries(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), dir)
			return nil
		},
	}
}

func up() *cobra.Command {
	opts := lab.Options{ControllerManager: true, Scheduler: true, CRDs: true, Bootstrap: true}
	var machines int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a control plane, and simulated machines if asked to, until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Log = cmd.ErrOrStderr()
			cp, err := lab.StartControlPlane(cmd.Context(), opts)
			if err != nil {
				return err
			}
			defer cp.Stop()
			kubeconfig, err := cp.AdminKubeconfig()
			if err != nil {
				return err
			}
			if machines > 0 {
				fleet, err := simulate(cmd.Context(), cp, machines)
				if err != nil {
					return err
				}
				defer fleet.Close()
				fmt.Fprintf(cmd.ErrOrStderr(), "lab: %d simulated machines, as SSHHosts in namespace %s with join profile %q\n", machines, poolNamespace, sim.Profile().Name)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s PATH=%s:$PATH\n", kubeconfig, cp.Assets)
			fmt.Fprintln(cmd.ErrOrStderr(), "lab: running; Ctrl-C ends it and removes everything")
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().IntVar(&machines, "machines", 0, "number of simulated machines")
	cmd.Flags().BoolVar(&opts.Audit, "audit", false, "write an audit log")
	cmd.Flags().StringVar(&opts.ListenIP, "listen", "127.0.0.1", "IP address that kube-apiserver listens on")
	cmd.Flags().StringVar(&opts.AdvertiseAddress, "advertise", "", "IP address that machines reach kube-apiserver by (default: the one it listens on)")
	cmd.Flags().StringSliceVar(&opts.ServerNames, "server-name", nil, "further names in kube-apiserver's certificate")
	return cmd
}

const poolNamespace = "kpssh-system"

func simulate(ctx context.Context, cp *lab.ControlPlane, count int) (*sim.Fleet, error) {
	fleet, err := sim.NewFleet(ctx, sim.Options{Config: cp.RESTConfig(), Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	specs := make([]sim.Spec, count)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("sim-%03d", i+1)
	}
	if err := register(ctx, cp, fleet, specs); err != nil {
		fleet.Close()
		return nil, err
	}
	return fleet, nil
}

func register(ctx context.Context, cp *lab.ControlPlane, fleet *sim.Fleet, specs []sim.Spec) error {
	if _, err := fleet.Add(specs...); err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err != nil {
		return err
	}
	if err := lab.EnsureNamespace(ctx, clientset, poolNamespace); err != nil {
		return err
	}
	c, err := client.New(cp.RESTConfig(), client.Options{})
	if err != nil {
		return err
	}
	return fleet.Register(ctx, c, poolNamespace)
}
