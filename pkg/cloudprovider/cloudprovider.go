// Package cloudprovider is karpenter's CloudProvider for machines that are reached by SSH. It decides which error karpenter sees,
// which instance types fit a NodeClaim and in which order, and whether a node has drifted. It opens no connection and waits for
// none: what it writes is a claim on an SSHHost, or its end, through the inventory; the join controller does the rest.
//
// Karpenter deletes a NodeClaim for some errors and strips its finalizer for others, so each error here is a decision. About
// objects that are not this instance's it answers nothing, or an error that karpenter retries.
package cloudprovider

import (
	"context"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// Name of the provider, as metrics carry it.
const Name = "ssh"

// repairAfter is how long a node may be NotReady, or not heard of, before karpenter replaces it (if its NodeRepair gate is on).
const repairAfter = 10 * time.Minute

// Hosts is what this package needs of the inventory (pkg/host). The hosts it returns are shared: read only.
type Hosts interface {
	// Synced tells whether every host that exists has been seen; before that, absence means nothing.
	Synced() bool
	Namespace() string
	// Generation changes whenever what the hosts can offer changes.
	Generation() uint64
	All() []*v1beta1.SSHHost
	Selected(*v1beta1.SSHNodeClass) ([]*v1beta1.SSHHost, error)
	ByClaim(types.UID) *v1beta1.SSHHost
	ByProviderID(string) *v1beta1.SSHHost
	// HeldBy reads from the API server; nil if the claim holds no host.
	HeldBy(context.Context, types.UID) (*v1beta1.SSHHost, error)
	// Claim gives a NodeClaim the host it has, or a new one. Errors: host.ErrNoHost, host.ErrEnding, else retryable ones.
	Claim(context.Context, host.ClaimRequest) (*v1beta1.SSHHost, error)
	// BeginLeave ends a claim. Idempotent. Error host.ErrFenced: the host is not held by this claim.
	BeginLeave(ctx context.Context, name string, uid types.UID, nodeClaim string) error
}

// CloudProvider implements karpenter's interface of that name for one instance. It is safe for concurrent use.
type CloudProvider struct {
	instance string
	kube     client.Client // cached
	live     client.Reader // not cached
	hosts    Hosts
	mine     func(class string) bool
	recorder events.Recorder
	clock    clock.Clock

	mu       sync.Mutex
	listings map[listingKey]*listing
}

var _ karpcloud.CloudProvider = (*CloudProvider)(nil)

// New makes the cloud provider of an instance. kube reads from a cache, live from the API server; mine tells whether this
// instance owns the SSHNodeClass of that name.
func New(instance string, kube client.Client, live client.Reader, hosts Hosts, mine func(class string) bool, recorder events.Recorder, clk clock.Clock) *CloudProvider {
	return &CloudProvider{instance: instance, kube: kube, live: live, hosts: hosts, mine: mine, recorder: recorder, clock: clk, listings: map[listingKey]*listing{}}
}

// Name implements karpenter's CloudProvider.
func (c *CloudProvider) Name() string { return Name }

// GetSupportedNodeClasses implements karpenter's CloudProvider.
func (c *CloudProvider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1beta1.SSHNodeClass{}}
}

// RepairPolicies implements karpenter's CloudProvider.
func (c *CloudProvider) RepairPolicies() []karpcloud.RepairPolicy {
	return []karpcloud.RepairPolicy{
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairAfter},
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: repairAfter},
	}
}
