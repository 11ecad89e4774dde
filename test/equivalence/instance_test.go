package equivalence

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/logr"
	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/arbitration"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// coreContext is what karpenter's parts want to find in a context: its settings, one worker, no log.
func coreContext(t *testing.T) context.Context {
	ctx := options.ToContext(t.Context(), &options.Options{
		PreferencePolicy: options.PreferencePolicyRespect, MinValuesPolicy: options.MinValuesPolicyStrict, CPURequests: 1000, IgnoreDRARequests: true,
	})
	return log.IntoContext(ctx, logr.Discard())
}

// cluster is the world in an API server, told for one instance of all segments, or for one instance per segment.
type cluster struct {
	*world
	api    client.Client
	single bool
}

func (w *world) in(single bool, pods []*corev1.Pod) *cluster {
	c := &cluster{world: w, single: single}
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	for _, k := range w.classes {
		builder.WithObjects(c.class(k))
	}
	for _, p := range w.pools {
		builder.WithObjects(p.DeepCopy())
	}
	for _, p := range pods {
		builder.WithObjects(c.told(p))
	}
	c.api = builder.Build()
	return c
}

func (c *cluster) instances() []string {
	if c.single {
		return []string{one}
	}
	return c.segments
}

func (c *cluster) instanceOf(segment string) string {
	if c.single {
		return one
	}
	return segment
}

func (c *cluster) class(k class) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: k.name, UID: types.UID(k.name), Generation: 1},
		Spec: v1beta1.SSHNodeClassSpec{
			Instance: c.instanceOf(k.segment), Zone: k.zone, PricePerCPUHour: "0.02", JoinProfileRef: v1beta1.ProfileReference{Name: "p"},
			HostSelector: &metav1.LabelSelector{MatchLabels: map[string]string{segmentLabel: k.segment}},
		},
		Status: v1beta1.SSHNodeClassStatus{Conditions: []status.Condition{{Type: status.ConditionReady, Status: metav1.ConditionTrue}}},
	}
}

// told is a pod that picks a segment: by its instance, or where that cannot be, by the segment's label.
func (c *cluster) told(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	if segment, picks := p.Spec.NodeSelector[v1beta1.InstanceLabel]; picks && c.single {
		delete(p.Spec.NodeSelector, v1beta1.InstanceLabel)
		p.Spec.NodeSelector[segmentLabel] = segment
	}
	return p
}

// instance is one instance's core.
type instance struct {
	name        string
	kube        client.Client
	provisioner *provisioning.Provisioner
	events      *recorder
}

// start makes an instance; filtered hides pending pods from it as pkg/operator does.
func (c *cluster) start(name string, filtered bool) *instance {
	clk := clocktesting.NewFakeClock(now)
	i := &instance{name: name, events: &recorder{failed: map[string]bool{}}}
	var classes []string
	overview := arbitration.NewOverview()
	for _, k := range c.classes {
		made := c.class(k)
		overview.Observe(made)
		if made.Spec.Instance == name {
			classes = append(classes, made.Name)
		}
	}
	for _, p := range c.pools {
		overview.Observe(p.NodePool)
	}
	var provider *cloudprovider.CloudProvider
	var filter ownership.PodFilter
	if filtered {
		filter = arbitration.NewFilter(name, overview, offers(func() *cloudprovider.CloudProvider { return provider }), clk)
	}
	i.kube = ownership.InMemory(c.api, ownership.Identity{Instance: name, PoolNamespace: name}, classes, filter)
	inventory := host.NewInventory(name, i.kube, c.api, clk)
	for _, h := range c.hosts {
		if c.instanceOf(h.Labels[segmentLabel]) == name {
			h = h.DeepCopy()
			h.Namespace = name
			inventory.Observe(h)
		}
	}
	mine := func(class string) bool { return slices.Contains(classes, class) }
	provider = cloudprovider.New(name, i.kube, c.api, inventory, mine, i.events, clk)
	i.provisioner = provisioning.NewProvisioner(i.kube, i.events, provider, state.NewCluster(clk, i.kube, provider), clk,
		deviceallocation.NewController(i.kube), virtualpods.NewVirtualPodCache(i.kube))
	return i
}

// provision is one turn of core's provisioner: a line for each NodeClaim that it created.
func (i *instance) provision(ctx context.Context) ([]string, error) {
	results, err := i.provisioner.Schedule(ctx)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, planned := range results.NewNodeClaims {
		pods := lo.Map(planned.Pods, func(p *corev1.Pod, _ int) string { return p.Name })
		sort.Strings(pods)
		name, err := i.provisioner.Create(ctx, planned)
		if err != nil {
			return nil, err
		}
		made := &karpv1.NodeClaim{}
		if err := i.kube.Get(ctx, client.ObjectKey{Name: name}, made); err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%s of %s for %s: %s", made.Labels[karpv1.NodePoolLabelKey], made.Spec.NodeClassRef.Name, strings.Join(pods, " "), describe(made)))
	}
	return lines, nil
}

// fits tells whether the instance's core would find a pod a node if there were no other pod.
func (i *instance) fits(ctx context.Context, p *corev1.Pod) (bool, error) {
	alone := []*corev1.Pod{p.DeepCopy()}
	scheduler, err := i.provisioner.NewScheduler(ctx, alone, nil, nil)
	if err != nil {
		if strings.Contains(err.Error(), provisioning.ErrNodePoolsNotFound.Error()) {
			return false, nil
		}
		return false, err
	}
	results, err := scheduler.Solve(ctx, alone)
	return len(results.NewNodeClaims) > 0, err
}

// describe is what a NodeClaim asks for, but for what tells instances apart. Of labels, core makes up values where requirements leave a
// choice; the requirements tell the same.
func describe(n *karpv1.NodeClaim) string {
	var requirements []string
	for _, r := range n.Spec.Requirements {
		if r.Key != v1beta1.InstanceLabel && r.Key != segmentLabel {
			requirements = append(requirements, fmt.Sprintf("%s %s %v", r.Key, r.Operator, slices.Sorted(slices.Values(r.Values))))
		}
	}
	sort.Strings(requirements)
	return fmt.Sprintf("%s; requests cpu %s, memory %s, pods %s; taints %v", strings.Join(requirements, ", "),
		n.Spec.Resources.Requests.Cpu(), n.Spec.Resources.Requests.Memory(), n.Spec.Resources.Requests.Pods(), n.Spec.Taints)
}

// offers asks a cloud provider that is made later.
func offers(of func() *cloudprovider.CloudProvider) arbitration.Offers {
	return arbitration.TypesOf(func(ctx context.Context, p *karpv1.NodePool) ([]*karpcloud.InstanceType, error) {
		return of().GetInstanceTypes(ctx, p)
	})
}

// recorder notes the pods that core could not find a node for.
type recorder struct{ failed map[string]bool }

func (r *recorder) Publish(published ...events.Event) {
	for _, e := range published {
		if p, ok := e.InvolvedObject.(*corev1.Pod); ok && e.Reason == events.FailedScheduling {
			r.failed[p.Name] = true
		}
	}
}
