package kubelet

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// register creates the Node once per run. A Node that exists is taken over as it is: a kubelet never changes the taints or the
// provider ID of one. A Node deleted later is not created again before the kubelet restarts, as with the real one.
func (o *Options) register(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	desired := o.node()
	var node *corev1.Node
	err := retry(ctx, o.Log, "register node", func() (err error) {
		node, err = client.CoreV1().Nodes().Create(ctx, desired, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		node, err = client.CoreV1().Nodes().Get(ctx, desired.Name, metav1.GetOptions{})
		return err
	})
	if err == nil {
		o.Log("node %s is registered", desired.Name)
	}
	return node, err
}

func (o *Options) node() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   o.Config.NodeName,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: o.Machine.Arch,
	}
	maps.Copy(labels, o.Config.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: o.Config.NodeName, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: o.Config.ProviderID, Taints: o.Config.Taints},
		Status:     o.status(false),
	}
}

func (o *Options) status(ready bool) corev1.NodeStatus {
	now := metav1.Now()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	readyCondition := condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime status check may not have completed yet")
	if ready {
		readyCondition = condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status")
	}
	capacity := o.Machine.Capacity
	allocatable := capacity.DeepCopy()
	// The kubelet's default hard eviction threshold.
	memory := allocatable[corev1.ResourceMemory]
	memory.Sub(resource.MustParse("100Mi"))
	allocatable[corev1.ResourceMemory] = memory
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: allocatable,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: o.Config.NodeIP},
			{Type: corev1.NodeHostName, Address: o.Config.NodeName},
		},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
			readyCondition,
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: o.Machine.MachineID, SystemUUID: o.Machine.MachineID, BootID: o.Machine.BootID,
			KernelVersion: "simulated", OSImage: "simulated machine", ContainerRuntimeVersion: "simulated://1",
			KubeletVersion: o.Version, OperatingSystem: "linux", Architecture: o.Machine.Arch,
		},
	}
}

// reportStatus patches the status: conditions merge by type, so what others wrote there stays.
func (o *Options) reportStatus(ctx context.Context, client kubernetes.Interface, ready bool) error {
	patch, err := json.Marshal(map[string]any{"status": o.status(ready)})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, o.Config.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// leaseKeeper renews a node's Lease with one request, and no read as long as nobody else writes it.
type leaseKeeper struct {
	client   kubernetes.Interface
	node     string
	duration time.Duration
	lease    *coordinationv1.Lease
}

func (k *leaseKeeper) renew(ctx context.Context) error {
	api := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if k.lease == nil {
		lease, err := api.Get(ctx, k.node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return k.create(ctx)
		}
		if err != nil {
			return err
		}
		k.lease = lease
	}
	desired := k.lease.DeepCopy()
	desired.Spec.HolderIdentity = ptr.To(k.node)
	desired.Spec.LeaseDurationSeconds = ptr.To(int32(k.duration.Seconds()))
	desired.Spec.RenewTime = ptr.To(metav1.NowMicro())
	lease, err := api.Update(ctx, desired, metav1.UpdateOptions{})
	k.lease = lease
	if err != nil {
		k.lease = nil // read it again next time
	}
	return err
}

// create makes the Node the owner, so that the Lease goes with it. Without a Node there is no Lease.
func (k *leaseKeeper) create(ctx context.Context) error {
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	k.lease, err = k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: k.node, Namespace: corev1.NamespaceNodeLease, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       ptr.To(k.node),
			LeaseDurationSeconds: ptr.To(int32(k.duration.Seconds())),
			RenewTime:            ptr.To(metav1.NowMicro()),
		},
	}, metav1.CreateOptions{})
	return err
}
