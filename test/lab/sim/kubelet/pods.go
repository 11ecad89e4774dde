package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
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

// Pods watches the bound pods of all nodes with one watch, on behalf of any number of kubelets: a watch each would cost the API
// server more than everything else they do.
type Pods struct {
	informer cache.SharedIndexInformer
	mu       sync.Mutex
	queues   map[string]workqueue.TypedRateLimitingInterface[string] // by node
}

const byNode = "node"

// WatchPods starts the watch and returns when the first list is in. The client must be allowed to list all pods.
func WatchPods(ctx context.Context, client kubernetes.Interface) (*Pods, error) {
	listWatch := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll, fields.OneTermNotEqualSelector("spec.nodeName", ""))
	p := &Pods{
		informer: cache.NewSharedIndexInformer(listWatch, &corev1.Pod{}, 0, cache.Indexers{byNode: func(obj any) ([]string, error) {
			return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
		}}),
		queues: map[string]workqueue.TypedRateLimitingInterface[string]{},
	}
	_, err := p.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.notify(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { p.notify(obj.(*corev1.Pod)) },
	})
	if err != nil {
		return nil, err
	}
	go p.informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced) {
		return nil, fmt.Errorf("watch pods: %w", context.Cause(ctx))
	}
	return p, nil
}

func (p *Pods) notify(pod *corev1.Pod) {
	p.mu.Lock()
	queue := p.queues[pod.Spec.NodeName]
	p.mu.Unlock()
	if queue != nil {
		queue.Add(pod.Namespace + "/" + pod.Name)
	}
}

// subscribe puts the keys of the node's pods, those there are and those to come, into the queue.
func (p *Pods) subscribe(node string, queue workqueue.TypedRateLimitingInterface[string]) (unsubscribe func()) {
	p.mu.Lock()
	p.queues[node] = queue
	p.mu.Unlock()
	bound, err := p.informer.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		panic("the index exists since WatchPods: " + err.Error())
	}
	for _, obj := range bound {
		pod := obj.(*corev1.Pod)
		queue.Add(pod.Namespace + "/" + pod.Name)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.queues[node] == queue {
			delete(p.queues, node)
		}
	}
}

func (p *Pods) get(key string) *corev1.Pod {
	obj, found, err := p.informer.GetIndexer().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return obj.(*corev1.Pod)
}

// startPods runs pods until stop is called or the context ends.
func (o *Options) startPods(ctx context.Context, client kubernetes.Interface) (stop func()) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 5*time.Second))
	unsubscribe := o.Pods.subscribe(o.Config.NodeName, queue)
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
	pod := o.Pods.get(key)
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
