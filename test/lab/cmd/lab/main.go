// Command lab builds the Kubernetes binaries of the test lab, and keeps a control plane running to play with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
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
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a control plane until Ctrl-C",
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
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s PATH=%s:$PATH\n", kubeconfig, cp.Assets)
			fmt.Fprintln(cmd.ErrOrStderr(), "lab: running; Ctrl-C ends it and removes everything")
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&opts.Audit, "audit", false, "write an audit log")
	cmd.Flags().StringVar(&opts.ListenIP, "listen", "127.0.0.1", "IP address that kube-apiserver listens on")
	cmd.Flags().StringVar(&opts.AdvertiseAddress, "advertise", "", "IP address that machines reach kube-apiserver by (default: the one it listens on)")
	cmd.Flags().StringSliceVar(&opts.ServerNames, "server-name", nil, "further names in kube-apiserver's certificate")
	return cmd
}
