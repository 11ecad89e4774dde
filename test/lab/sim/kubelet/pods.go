package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

// Watches are what any number of kubelets watch together, the bound pods and the Nodes of the whole cluster: a watch each would cost
// the API server more than everything else they do.
type Watches struct {
	pods, nodes cache.SharedIndexInformer
	mu          sync.Mutex
	queues      map[string]workqueue.TypedRateLimitingInterface[string] // by node
}

const byNode = "node"

// Watch starts the watches and returns when the first lists are in. The client must be allowed to list all pods and Nodes.
func Watch(ctx context.Context, client kubernetes.Interface) (*Watches, error) {
	bound := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll, fields.OneTermNotEqualSelector("spec.nodeName", ""))
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", corev1.NamespaceAll, fields.Everything())
	w := &Watches{
		pods: cache.NewSharedIndexInformer(bound, &corev1.Pod{}, 0, cache.Indexers{byNode: func(obj any) ([]string, error) {
			return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
		}}),
		nodes:  cache.NewSharedIndexInformer(nodes, &corev1.Node{}, 0, cache.Indexers{}),
		queues: map[string]workqueue.TypedRateLimitingInterface[string]{},
	}
	_, err := w.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { w.notify(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { w.notify(obj.(*corev1.Pod)) },
	})
	if err != nil {
		return nil, err
	}
	go w.pods.RunWithContext(ctx)
	go w.nodes.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), w.pods.HasSynced, w.nodes.HasSynced) {
		return nil, fmt.Errorf("watch pods and nodes: %w", context.Cause(ctx))
	}
	return w, nil
}

// calledDead tells whether the Node exists and is not Ready, in the control plane's opinion.
func (w *Watches) calledDead(node string) bool {
	obj, found, err := w.nodes.GetStore().GetByKey(node)
	if err != nil || !found {
		return false
	}
	return !slices.ContainsFunc(obj.(*corev1.Node).Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (w *Watches) notify(pod *corev1.Pod) {
	w.mu.Lock()
	queue := w.queues[pod.Spec.NodeName]
	w.mu.Unlock()
	if queue != nil {
		queue.Add(pod.Namespace + "/" + pod.Name)
	}
}

// subscribe puts the keys of the node's pods, those there are and those to come, into the queue.
func (w *Watches) subscribe(node string, queue workqueue.TypedRateLimitingInterface[string]) (unsubscribe func()) {
	w.mu.Lock()
	w.queues[node] = queue
	w.mu.Unlock()
	bound, err := w.pods.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		panic("the index exists since Watch: " + err.Error())
	}
	for _, obj := range bound {
		pod := obj.(*corev1.Pod)
		queue.Add(pod.Namespace + "/" + pod.Name)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.queues[node] == queue {
			delete(w.queues, node)
		}
	}
}

func (w *Watches) get(key string) *corev1.Pod {
	obj, found, err := w.pods.GetIndexer().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return obj.(*corev1.Pod)
}

// startPods runs pods until stop is called or the context ends.
func (o *Options) startPods(ctx context.Context, client kubernetes.Interface) (stop func()) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 5*time.Second))
	unsubscribe := o.Watches.subscribe(o.Config.NodeName, queue)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			key, closed := queue.Get()
			if closed {
				return
			}
			wait, err := o.syncPod(ctx, client, key)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				// The Node authorizer learns of a binding a moment after we do, so a refusal now and then is normal.
				o.Log("pod %s: %v", key, err)
				queue.AddRateLimited(key)
			default:
				queue.Forget(key)
				if wait > 0 {
					queue.AddAfter(key, wait)
				}
			}
			queue.Done(key)
		}
	}()
	return func() {
		unsubscribe()
		queue.ShutDown()
		<-done
	}
}

// syncPod makes a pod run or end; it returns how long to wait when the time has not come.
func (o *Options) syncPod(ctx context.Context, client kubernetes.Interface, key string) (time.Duration, error) {
	pod := o.Watches.get(key)
	switch {
	case pod == nil || pod.Spec.NodeName != o.Config.NodeName:
		return 0, nil
	case pod.DeletionTimestamp != nil:
		// deletionTimestamp is when the grace period is over; it was asked for that much earlier.
		asked := pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
		if wait := o.PodStopDelay - time.Since(asked); o.PodStopDelay > 0 && wait > 0 {
			return wait, nil
		}
		err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return 0, nil
		}
		return 0, err
	case pod.Status.Phase != corev1.PodPending:
		return 0, nil
	}
	if wait := o.PodStartDelay - time.Since(boundAt(pod)); o.PodStartDelay > 0 && wait > 0 {
		return wait, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": o.running(pod)})
	if err != nil {
		return 0, err
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return 0, nil
	}
	return 0, err
}

func boundAt(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

func (o *Options) running(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		StartTime: &now,
		HostIP:    o.Config.NodeIP,
		HostIPs:   []corev1.HostIP{{IP: o.Config.NodeIP}},
		PodIP:     podIP(pod.UID),
	}
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: "simulated", ContainerID: "simulated://" + string(pod.UID) + "/" + container.Name,
			Ready: true, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// podIP is made up, stable, and different for different pods often enough.
func podIP(uid types.UID) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	sum := hash.Sum32()
	return fmt.Sprintf("10.200.%d.%d", byte(sum>>8), byte(sum)%254+1)
}
