package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const poolNamespace = "kpssh-system" // as in examples/

// stage is everything that runs.
type stage struct {
	cp         *lab.ControlPlane
	fleet      *sim.Fleet
	controller *lab.Process
	client     client.Client
	kubeconfig string
}

// setStage starts a control plane, machines and a controller, and applies the examples.
func setStage(ctx context.Context, machines int, portable bool) (_ *stage, err error) {
	s := &stage{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	var controller string
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		done := announce("building the controller", "the controller is built")
		controller, err = lab.BuildController(starting)
		done(err)
		return err
	})
	group.Go(func() (err error) {
		s.cp, err = lab.StartControlPlane(starting, lab.Options{Log: os.Stdout, ControllerManager: true, Scheduler: true, CRDs: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if s.client, err = client.New(s.cp.RESTConfig(), client.Options{Scheme: scheme.Scheme}); err != nil {
		return nil, err
	}
	if s.kubeconfig, err = s.cp.AdminKubeconfig(); err != nil {
		return nil, err
	}
	if err := s.prepareCluster(ctx); err != nil {
		return nil, err
	}
	if s.fleet, err = sim.NewFleet(ctx, sim.Options{Config: s.cp.RESTConfig(), Log: os.Stderr, Portable: portable}); err != nil {
		return nil, err
	}
	if err := s.applyExamples(ctx, machines); err != nil {
		return nil, err
	}
	s.controller, err = s.cp.StartController(lab.ControllerOptions{Binary: controller, PoolNamespace: poolNamespace})
	return s, err
}

func (s *stage) prepareCluster(ctx context.Context) error {
	clientset, err := kubernetes.NewForConfig(s.cp.RESTConfig())
	if err != nil {
		return err
	}
	if err := lab.EnsureNamespace(ctx, clientset, poolNamespace); err != nil {
		return err
	}
	return s.cp.PublishClusterInfo(ctx)
}

// announce says that something begins, and returns what says that it has ended; meanwhile it shows that it goes on.
func announce(begins, ends string) (done func(error)) {
	start := time.Now()
	fmt.Printf("demo: %s\n", begins)
	stop := make(chan struct{})
	go func() {
		ticker := time.NewTicker(10 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				fmt.Printf("demo: still %s, %s\n", begins, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func(err error) {
		close(stop)
		if err == nil {
			fmt.Printf("demo: %s, %.1fs\n", ends, time.Since(start).Seconds())
		}
	}
}

// close stops everything. The controller first: it would try to save what is being taken down.
func (s *stage) close() {
	if s.controller != nil {
		s.controller.Kill()
	}
	if s.fleet != nil {
		s.fleet.Close()
	}
	if s.cp != nil {
		s.cp.Stop()
	}
}

func (s *stage) explain() {
	fmt.Printf(`
Everything is left running. In another terminal:

  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl get sshhosts,nodeclaims,nodes -A
  kubectl scale deployment/%s --replicas=3
  tail -f %s

Ctrl-C here ends it and removes everything.
`, s.kubeconfig, s.cp.Assets, workload, s.controller.LogPath())
}
