package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// env is a cloud provider of instance default over a real inventory and an in-memory API server. The inventory sees what was there
// at the start and what it writes itself; anything else is a change that has not reached its cache.
type env struct {
	*CloudProvider
	api       client.WithWatch // the API server itself, past every interceptor
	inventory *host.Inventory
	clock     *clocktesting.FakeClock
	events    *recorder
	own       map[string]bool // classes of this instance
	cached    interceptor.Funcs
	uncached  interceptor.Funcs
}

func newEnv(t *testing.T, objects ...client.Object) *env {
	t.Helper()
	e := &env{clock: clocktesting.NewFakeClock(now), events: &recorder{}, own: map[string]bool{"web": true}}
	e.api = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).
		WithStatusSubresource(&v1beta1.SSHHost{}, &v1beta1.SSHNodeClass{}).
		WithIndex(&v1beta1.SSHHost{}, "status.claimRef.uid", func(o client.Object) []string {
			if ref := o.(*v1beta1.SSHHost).Status.ClaimRef; ref != nil {
				return []string{string(ref.UID)}
			}
			return nil
		}).
		WithIndex(&karpv1.NodeClaim{}, "status.providerID", func(o client.Object) []string { return []string{o.(*karpv1.NodeClaim).Status.ProviderID} }).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		Build()
	cached, live := intercepted(e.api, &e.cached), intercepted(e.api, &e.uncached)
	e.inventory = host.NewInventory("pool", cached, live, e.clock)
	e.CloudProvider = New("default", cached, live, e.inventory, func(class string) bool { return e.own[class] }, e.events, e.clock)
	e.observe(t)
	return e
}

// observe lets the inventory's cache catch up.
func (e *env) observe(t *testing.T) {
	t.Helper()
	list := &v1beta1.SSHHostList{}
	if err := e.api.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for index := range list.Items {
		e.inventory.Observe(&list.Items[index])
	}
}

// intercepted is a client whose Get can be replaced while it is in use.
func intercepted(api client.WithWatch, funcs *interceptor.Funcs) client.WithWatch {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if funcs.Get != nil {
				return funcs.Get(ctx, c, key, o, options...)
			}
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if funcs.List != nil {
				return funcs.List(ctx, c, list, options...)
			}
			return c.List(ctx, list, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if funcs.SubResourcePatch != nil {
				return funcs.SubResourcePatch(ctx, c, sub, o, patch, options...)
			}
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		},
	})
}

// failing makes reads of one kind fail.
func failing[T client.Object](err error) interceptor.Funcs {
	return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, match := o.(T); match {
			return err
		}
		return c.Get(ctx, key, o, options...)
	}}
}

var errBlip = errors.New("the API server is having a moment")

func (e *env) host(t *testing.T, name string) *v1beta1.SSHHost {
	t.Helper()
	h := &v1beta1.SSHHost{}
	if err := e.api.Get(t.Context(), types.NamespacedName{Namespace: "pool", Name: name}, h); err != nil {
		t.Fatal(err)
	}
	return h
}

// claimedHosts is `host claim` for every claimed host.
func (e *env) claimedHosts(t *testing.T) []string {
	t.Helper()
	list := &v1beta1.SSHHostList{}
	if err := e.api.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	claimed := []string{}
	for _, h := range list.Items {
		if h.Status.ClaimRef != nil {
			claimed = append(claimed, h.Name+" "+h.Status.ClaimRef.Name)
		}
	}
	return claimed
}

// verdict is what karpenter does with an error.
func verdict(err error) string {
	var create *karpcloud.CreateError
	switch {
	case err == nil:
		return "ok"
	case karpcloud.IsInsufficientCapacityError(err):
		return "InsufficientCapacity"
	case karpcloud.IsNodeClassNotReadyError(err):
		return "NodeClassNotReady"
	case karpcloud.IsNodeClaimNotFoundError(err):
		return "NodeClaimNotFound"
	case errors.As(err, &create):
		return "CreateError " + create.ConditionReason
	}
	return "retry"
}

type recorder struct {
	mu     sync.Mutex
	events []events.Event
}

func (r *recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, published...)
}

// lines is `kind reason message` of every event.
func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := []string{}
	for _, e := range r.events {
		lines = append(lines, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Message))
	}
	return lines
}

type hostOption func(*v1beta1.SSHHost)

// freeHost makes an available host of 4 cores and 16Gi in host class big.
func freeHost(name string, options ...hostOption) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "pool", UID: types.UID("host-" + name), CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour)),
			Labels: map[string]string{v1beta1.HostClassLabel: "big"},
		},
		Spec: v1beta1.SSHHostSpec{Address: "192.0.2.11", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
	}
	for _, option := range options {
		option(h)
	}
	return h
}

func sized(cpu, memory string) hostOption {
	return func(h *v1beta1.SSHHost) {
		h.Spec.Capacity[corev1.ResourceCPU], h.Spec.Capacity[corev1.ResourceMemory] = resource.MustParse(cpu), resource.MustParse(memory)
	}
}

func with(name corev1.ResourceName, quantity string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Spec.Capacity[name] = resource.MustParse(quantity) }
}

func arch(a string) hostOption { return func(h *v1beta1.SSHHost) { h.Status.ObservedArch = a } }

func inZone(z string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Labels[corev1.LabelTopologyZone] = z }
}

func inState(s v1beta1.HostState) hostOption {
	return func(h *v1beta1.SSHHost) { h.Status.State = s }
}

func maintenance(h *v1beta1.SSHHost) {
	h.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""}
}

func marked(profile string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Status.InstalledProfile = profile }
}

func withID(providerID string) hostOption {
	return func(h *v1beta1.SSHHost) { h.Status.ProviderID = providerID }
}

// usedBy makes the host serve a NodeClaim of class web.
func usedBy(name string, uid types.UID) hostOption {
	return func(h *v1beta1.SSHHost) {
		h.Status.State = v1beta1.HostInUse
		h.Status.ClaimRef = &v1beta1.ClaimReference{Name: name, UID: uid, NodeClass: "web", InstanceType: "big", ClaimedAt: &metav1.Time{Time: now.Add(-time.Hour)}}
	}
}

// webClass is a ready class of instance default with profile kubelet.
func webClass(options ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	class := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "class-web", Generation: 1},
		Spec:       v1beta1.SSHNodeClassSpec{Instance: "default", PricePerCPUHour: "0.02", JoinProfileRef: v1beta1.ProfileReference{Name: "kubelet"}},
	}
	setReady(metav1.ConditionTrue, "Ready")(class)
	for _, option := range options {
		option(class)
	}
	return class
}

func setReady(is metav1.ConditionStatus, reason string) func(*v1beta1.SSHNodeClass) {
	return func(class *v1beta1.SSHNodeClass) {
		class.Status.Conditions = nil
		if is != "" {
			class.Status.Conditions = []status.Condition{{Type: status.ConditionReady, Status: is, Reason: reason, Message: "because"}}
		}
	}
}

func ofInstance(name string) func(*v1beta1.SSHNodeClass) {
	return func(class *v1beta1.SSHNodeClass) { class.Spec.Instance = name }
}

func deleting(class *v1beta1.SSHNodeClass) {
	class.DeletionTimestamp = &metav1.Time{Time: now}
	class.Finalizers = []string{v1beta1.TerminationFinalizer}
}

func profile(version string) *v1beta1.SSHJoinProfile {
	return &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "kubelet"}, Spec: v1beta1.SSHJoinProfileSpec{Version: version}}
}

func ref(group, kind, name string) *karpv1.NodeClassReference {
	return &karpv1.NodeClassReference{Group: group, Kind: kind, Name: name}
}

// claim makes a NodeClaim of class web whose UID is `uid-<name>`.
func claim(name string, options ...func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	nodeClaim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{karpv1.NodePoolLabelKey: "pool"}},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: ref(v1beta1.Group, "SSHNodeClass", "web")},
	}
	for _, option := range options {
		option(nodeClaim)
	}
	return nodeClaim
}

func classRef(r *karpv1.NodeClassReference) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) { n.Spec.NodeClassRef = r }
}

func providerID(id string) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) { n.Status.ProviderID = id }
}

func noUID(n *karpv1.NodeClaim) { n.UID = "" }

func requiring(key string, values ...string) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) {
		n.Spec.Requirements = append(n.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
}

func requesting(name corev1.ResourceName, quantity string) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) {
		if n.Spec.Resources.Requests == nil {
			n.Spec.Resources.Requests = corev1.ResourceList{}
		}
		n.Spec.Resources.Requests[name] = resource.MustParse(quantity)
	}
}

func annotated(hash, version string) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) {
		n.Annotations = map[string]string{v1beta1.NodeClassHashAnnotation: hash, v1beta1.NodeClassHashVersionAnnotation: version}
	}
}

func nodePool(r *karpv1.NodeClassReference) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
	pool.Spec.Template.Spec.NodeClassRef = r
	return pool
}

// foreignRefs are references that name nothing of this instance (A4).
func foreignRefs() map[string]*karpv1.NodeClassReference {
	return map[string]*karpv1.NodeClassReference{
		"nil":                       nil,
		"empty":                     {},
		"another provider's":        ref("karpenter.k8s.aws", "EC2NodeClass", "web"),
		"another kind of our group": ref(v1beta1.Group, "SSHHost", "web"),
		"another instance's":        ref(v1beta1.Group, "SSHNodeClass", "seg-b"),
		"unknown":                   ref(v1beta1.Group, "SSHNodeClass", "never-made"),
	}
}

func TestStaticAnswers(t *testing.T) {
	g := NewWithT(t)
	e := newEnv(t)
	g.Expect(e.Name()).To(Equal("ssh"))
	g.Expect(e.GetSupportedNodeClasses()).To(ConsistOf(BeAssignableToTypeOf(&v1beta1.SSHNodeClass{})))
	g.Expect(e.RepairPolicies()).To(ConsistOf(
		karpcloud.RepairPolicy{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: 10 * time.Minute},
		karpcloud.RepairPolicy{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: 10 * time.Minute},
	))
}

// oneClass is a client that knows one class, and copies it as a cache does.
type oneClass struct {
	client.Client
	class *v1beta1.SSHNodeClass
}

func (o oneClass) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	o.class.DeepCopyInto(into.(*v1beta1.SSHNodeClass))
	return nil
}
