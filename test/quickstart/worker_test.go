package quickstart

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim/kubelet"
)

const (
	workerName = "worker-1"
	// chartName is on every pod of the chart's Deployments.
	chartName = "app.kubernetes.io/name=karpenter-provider-ssh"
)

// worker is the one node that the newcomer's cluster has. It says of every pod that it runs, and a controller's really does: as a
// process with the environment and the ServiceAccount of its pod.
type worker struct {
	cp         *lab.ControlPlane
	client     kubernetes.Interface
	controller string

	mu        sync.Mutex
	processes map[types.UID]*lab.Process
}

func startWorker(t *testing.T, cp *lab.ControlPlane, client kubernetes.Interface) *worker {
	t.Helper()
	binary, err := lab.BuildController(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watches, err := kubelet.Watch(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	options := kubelet.Options{
		Config: kubelet.Config{NodeName: workerName, NodeIP: "10.76.0.1"}, StateDir: t.TempDir(), Watches: watches, Version: "v1.35.4",
		Heartbeat: 4 * time.Second, Log: func(string, ...any) {},
		Machine: kubelet.Machine{Arch: "amd64", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
			corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("50Gi"),
		}},
	}
	identity, err := cp.Kubeconfig("system:node:"+workerName, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(options.StateDir, kubelet.CredentialsFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	w := &worker{cp: cp, client: client, controller: binary, processes: map[types.UID]*lab.Process{}}
	running.Go(func() {
		if err := kubelet.Run(ctx, options); err != nil && ctx.Err() == nil {
			t.Errorf("the worker node's kubelet: %v", err)
		}
	})
	running.Go(func() { w.follow(ctx, t) })
	return w
}

// follow keeps a process for each running pod of the chart. Trouble with the API server is tried again at the next look.
func (w *worker) follow(ctx context.Context, t *testing.T) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		pods, err := w.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: chartName})
		if err != nil {
			continue
		}
		wanted := map[types.UID]bool{}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
				continue
			}
			wanted[pod.UID] = true
			if err := w.run(ctx, pod); err != nil && ctx.Err() == nil {
				t.Errorf("pod %s/%s: %v", pod.Namespace, pod.Name, err)
			}
		}
		w.stopAllBut(wanted)
	}
}

func (w *worker) run(ctx context.Context, pod *corev1.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.processes[pod.UID] != nil {
		return nil
	}
	kubeconfig, err := w.cp.ServiceAccountKubeconfig(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	// What StartController would otherwise choose must come from the chart; only the ports cannot be the pod's own here.
	var env []string
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.ValueFrom == nil && variable.Name != "METRICS_PORT" && variable.Name != "HEALTH_PROBE_PORT" {
			env = append(env, variable.Name+"="+variable.Value)
		}
	}
	w.processes[pod.UID], err = w.cp.StartController(lab.ControllerOptions{
		Binary: w.controller, Name: "controller-" + pod.Namespace, Kubeconfig: kubeconfig, Env: env,
	})
	return err
}

func (w *worker) stopAllBut(wanted map[types.UID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, process := range w.processes {
		if !wanted[uid] {
			process.Stop(10 * time.Second)
			delete(w.processes, uid)
		}
	}
}

// logs are the ends of the controllers' logs, for a failure.
func (w *worker) logs() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text string
	for _, process := range w.processes {
		text += fmt.Sprintf("\n%s:\n%s\n", process.LogPath(), process.LogTail(15))
	}
	return text
}
