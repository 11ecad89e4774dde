// Command demo shows the whole thing on one computer, without root or containers: a real control plane, simulated machines that
// are joined by real SSH, one real controller process, and the manifests of examples/. It scales a Deployment up, waits until
// every pod runs on a machine of its own, scales down, and waits until every machine is back in the pool.
//
// It leaves nothing behind, also when interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	machines := flag.Int("machines", 6, "number of simulated machines, and of pods that need one each")
	keep := flag.Bool("keep", os.Getenv("KEEP") != "" && os.Getenv("KEEP") != "0", "leave everything running at the end, to explore (also: KEEP=1)")
	portable := flag.Bool("portable", false, "run the machines as on a Mac: bash 3.2, no /proc, no util-linux")
	patience := flag.Duration("timeout", 5*time.Minute, "how long each step may take")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *machines, *portable, *keep, *patience); err != nil {
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			fmt.Println("\ninterrupted; everything is stopped and removed")
		} else {
			fmt.Fprintf(os.Stderr, "\nFAIL: %v\n", err)
		}
		os.Exit(1)
	}
}

func demo(ctx context.Context, machines int, portable, keep bool, patience time.Duration) error {
	begin := time.Now()
	s, err := setStage(ctx, machines, portable)
	if err != nil {
		return err
	}
	defer s.close()
	err = s.play(ctx, begin, patience)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w\n\nend of the controller's log:\n%s", err, s.controller.LogTail(30))
	}
	if keep && ctx.Err() == nil {
		if err != nil {
			fmt.Fprintf(os.Stderr, "\nFAIL: %v\n", err)
		}
		s.explain()
		<-ctx.Done()
	}
	return err
}
