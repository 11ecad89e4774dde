package v1beta1

import (
	"k8s.io/apimachinery/pkg/util/sets"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	// HostClassLabel on an SSHHost names its host class; absent or empty means DefaultHostClass.
	HostClassLabel = Group + "/host-class"
	// DefaultHostClass is the host class of an SSHHost without HostClassLabel.
	DefaultHostClass = "default"
	// InstanceLabel on NodeClaims and Nodes names the instance that made them. It lets a workload select a segment and is
	// never used to decide ownership.
	InstanceLabel = Group + "/instance"
	// ManagedLabel is set by users in NodePool templates; the controller's own affinity keeps off nodes that carry it.
	ManagedLabel = Group + "/managed"
	// PoolNamespaceLabel on an instance's Lease names its pool namespace. The Lease carries InstanceLabel, too.
	PoolNamespaceLabel = Group + "/pool-namespace"
	// ReleaseLabel on an instance's Lease names the installation that holds it, <namespace>.<release name>, so that two installations with one
	// instance name can be told apart.
	ReleaseLabel = Group + "/release"
	// PoolTaint is the taint key by which examples keep workloads of other autoscalers off SSH nodes.
	PoolTaint = Group + "/pool"

	// MaintenanceAnnotation on an SSHHost parks it; only its presence counts.
	MaintenanceAnnotation = Group + "/maintenance"
	// TakeOverAnnotation on an SSHHost quotes the owner found on the machine that may be replaced (see HostOwnedElsewhere).
	TakeOverAnnotation = Group + "/take-over"
	// TrustHostKeyAnnotation on an SSHHost quotes the SHA256 fingerprint of a new host key that replaces the recorded one.
	TrustHostKeyAnnotation = Group + "/trust-host-key"
	// ClearFailuresAnnotation on an SSHHost has its failures forgotten, once for each value.
	ClearFailuresAnnotation = Group + "/clear-failures"
	// OwnerAnnotation on a NodePool names its instance, which writes it: for people to read, and for the policy that keeps a NodePool from being
	// moved to another instance's class. No instance decides ownership by it.
	OwnerAnnotation = Group + "/owner"
	// NodeClassHashAnnotation on a NodeClaim is the SSHNodeClass.JoinHash it was made with.
	NodeClassHashAnnotation = Group + "/nodeclass-hash"
	// NodeClassHashVersionAnnotation on a NodeClaim is the NodeClassHashVersion of NodeClassHashAnnotation.
	NodeClassHashVersionAnnotation = Group + "/nodeclass-hash-version"

	// TerminationFinalizer holds an SSHNodeClass while NodeClaims name it.
	TerminationFinalizer = Group + "/termination"
	// InstalledFinalizerPrefix and an instance's name make the finalizer by which that instance holds an SSHJoinProfile: see InstalledFinalizer.
	InstalledFinalizerPrefix = Group + "/installed."
	// HostFinalizer holds an SSHHost while it is claimed or its machine has yet to leave the cluster.
	HostFinalizer = Group + "/leave"

	// DefaultInstance is the instance that owns classes which do not name one.
	DefaultInstance = "default"
	// DefaultZone is the zone of hosts whose class and labels name none.
	DefaultZone = "pool"
	// ProviderIDScheme starts every static provider ID: kpssh://<pool namespace>/<host name>.
	ProviderIDScheme = "kpssh://"
)

// InstalledFinalizer holds an SSHJoinProfile while a host of this instance has it installed. Profiles are everybody's, so each instance has a
// finalizer of its own and takes off no other.
func InstalledFinalizer(instance string) string { return InstalledFinalizerPrefix + instance }

func init() {
	// A workload may select these labels though its NodePool does not mention them: every instance type advertises them.
	karpv1.WellKnownLabels = karpv1.WellKnownLabels.Union(sets.New(InstanceLabel, HostClassLabel))
}
