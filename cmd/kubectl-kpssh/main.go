// Command kubectl-kpssh is the kubectl plugin: kubectl finds it as `kubectl kpssh` once it is on the PATH.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kpssh/karpenter-provider-ssh/pkg/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := plugin.Command(os.Stdin, os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl kpssh:", err)
		os.Exit(1) //nolint:gocritic // what is deferred ends with the process
	}
}
