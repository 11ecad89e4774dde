package v1beta1

import (
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProviderIDSource is where a Node's provider ID comes from.
// +kubebuilder:validation:Enum=Static;Adopt
type ProviderIDSource string

const (
	// ProviderIDStatic passes kpssh://<namespace>/<name> to the kubelet.
	ProviderIDStatic ProviderIDSource = "Static"
	// ProviderIDAdopt takes over the ID that an agent on the machine (nodeadm, for one) gives the Node.
	ProviderIDAdopt ProviderIDSource = "Adopt"
)

// ConditionOwnershipConflict is True on an SSHNodeClass whose instance found a conflict about who owns what that concerns the class; its
// reason is the type of the worst one. It is absent otherwise. Ready does not depend on it.
const ConditionOwnershipConflict = "OwnershipConflict"

// ConditionPrewarmed is True on an SSHNodeClass with spec.prewarm when every host that could be claimed has the profile installed. It is absent
// without spec.prewarm. Ready does not depend on it.
const ConditionPrewarmed = "Prewarmed"

// Reasons of an SSHNodeClass's Prewarmed condition, and of Events on hosts; part of the API.
const (
	ReasonPrewarmed        = "Prewarmed"
	ReasonPrewarming       = "Prewarming"
	ReasonPrewarmStopped   = "PrewarmStopped"
	ReasonPrewarmContested = "PrewarmContested"
	ReasonPrewarmFailed    = "PrewarmFailed"
)

// Reasons of an SSHNodeClass's OwnershipConflict condition, and of Events on the objects concerned; part of the API.
const (
	ReasonDuplicateInstance   = "DuplicateInstance"
	ReasonSharedPoolNamespace = "SharedPoolNamespace"
	ReasonUnownedNodeClass    = "UnownedNodeClass"
	ReasonDanglingNodePool    = "DanglingNodePool"
	ReasonDanglingNodeClaim   = "DanglingNodeClaim"
	ReasonUnownedNodePool     = "UnownedNodePool"
	ReasonMovedNodePool       = "MovedNodePool"
	ReasonSharedMachine       = "SharedMachine"
	ReasonNodeNameInUse       = "NodeNameInUse"
	ReasonForeignWrite        = "ForeignWrite"
	ReasonOverlappingPools    = "OverlappingPools"
	ReasonMissingManagedLabel = "MissingManagedLabel"
	ReasonSplitNodeClaim      = "SplitNodeClaim"
)

// ConditionNodesCurrent is True on an SSHNodeClass all of whose nodes joined with the version of the profile that it names now. Ready does not
// depend on it.
const ConditionNodesCurrent = "NodesCurrent"

// Reasons of an SSHNodeClass's NodesCurrent condition; part of the API.
const (
	// ReasonRolling: nodes are replaced one after the other.
	ReasonRolling = "Rolling"
	// ReasonNoSpareHost: they are not, because no host is free to take their pods.
	ReasonNoSpareHost = "NoSpareHost"
)

// Reasons of an SSHNodeClass's Ready condition; part of the API.
const (
	ReasonProfileNotFound    = "ProfileNotFound"
	ReasonProfileInvalid     = "ProfileInvalid"
	ReasonProfileDeleting    = "ProfileDeleting"
	ReasonSelectorError      = "SelectorError"
	ReasonNoHosts            = "NoHosts"
	ReasonJoinSecretNotFound = "JoinSecretNotFound"
	ReasonJoinSecretInvalid  = "JoinSecretInvalid"
	ReasonClusterUnknown     = "ClusterUnknown"
	ReasonDeleting           = "Deleting"
)

// ConditionProfileChecked of an SSHNodeClass is False when the linter has findings about the class's profile. It does not decide Ready.
const ConditionProfileChecked = "ProfileChecked"

// ReasonProfileFindings is the reason of ConditionProfileChecked when it is False.
const ReasonProfileFindings = "ProfileFindings"

// ProfileReference names an SSHJoinProfile.
// +structType=atomic
type ProfileReference struct {
	// name of the SSHJoinProfile. It must not be empty.
	// +optional
	// +kubebuilder:default=""
	Name string `json:"name,omitempty"`
}

// ClusterSpec overrides what machines are told about the cluster.
type ClusterSpec struct {
	// endpoint is the API server's URL as machines reach it: https:// and at most 253 characters.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^https://.+$`
	Endpoint string `json:"endpoint"`
	// caBundle is the PEM bundle, base64 in YAML, that signs the API server's certificate. Default: the one in ConfigMap
	// kube-public/cluster-info. At most 65536 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	CABundle []byte `json:"caBundle,omitempty"`
}

// PodsReady opens a gate when enough pods of a selector are ready on the node.
type PodsReady struct {
	// namespace of the pods, at most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// selector of the pods; must not be empty.
	// +required
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="selector must have matchLabels or matchExpressions"
	Selector metav1.LabelSelector `json:"selector"`
	// minReady is how many of these pods must be ready on the node, at least 1. Default: 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	MinReady int32 `json:"minReady,omitempty"`
}

// NodeConditionIs opens a gate when a condition of the Node has a status.
type NodeConditionIs struct {
	// type of the Node's condition, at most 316 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type string `json:"type"`
	// status that opens the gate: True, False or Unknown. A condition that is absent keeps it closed. Default: True.
	// +optional
	// +kubebuilder:default="True"
	// +kubebuilder:validation:Enum="True";"False";Unknown
	Status corev1.ConditionStatus `json:"status,omitempty"`
}

// RemoveWhen says when a startup taint goes.
// +kubebuilder:validation:XValidation:rule="(has(self.podsReady) ? 1 : 0) + (has(self.nodeCondition) ? 1 : 0) == 1",message="exactly one of podsReady and nodeCondition must be set"
type RemoveWhen struct {
	// podsReady opens the gate when enough pods are ready on the node.
	// +optional
	PodsReady *PodsReady `json:"podsReady,omitempty"`
	// nodeCondition opens the gate when a condition of the Node has a status.
	// +optional
	NodeCondition *NodeConditionIs `json:"nodeCondition,omitempty"`
}

// StartupTaintGate removes a startup taint when something is ready.
type StartupTaintGate struct {
	// taintKey is the key of the startup taint, which the NodePool must list in startupTaints too. One gate a key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	TaintKey string `json:"taintKey"`
	// removeWhen says when the taint goes: exactly one of podsReady and nodeCondition.
	// +required
	RemoveWhen RemoveWhen `json:"removeWhen"`
}

// Prewarm says how install runs before a host is claimed.
type Prewarm struct {
	// maxConcurrent is on how many hosts install may run at once, 1 to 50. It begins with one and doubles with each success. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=50
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`
}

// SSHNodeClassSpec says which machines a NodePool may use, how they join, and which instance does the work.
type SSHNodeClassSpec struct {
	// instance names the controller instance that owns this class and all that follows from it. It cannot be changed: objects are never
	// handed over between instances. Create a class for the other instance, then drain this one. A DNS label of at most 40 characters.
	// Default: default.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="instance is immutable: create a class for the other instance, move the NodePools' workloads, then delete this class"
	Instance string `json:"instance,omitempty"`

	// hostSelector selects SSHHosts of the instance's pool namespace by label. Default: all of them.
	// +optional
	// +structType=atomic
	HostSelector *metav1.LabelSelector `json:"hostSelector,omitempty"`

	// joinProfileRef names the SSHJoinProfile whose scripts make machines join and leave. Required.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="joinProfileRef.name must name an SSHJoinProfile"
	JoinProfileRef ProfileReference `json:"joinProfileRef"`

	// vars are passed to the scripts as KPSSH_VAR_<key>. At most 64; keys are shell identifiers, values have at most 2048 characters.
	// Changing them makes nodes drift. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",message="keys of vars must be shell identifiers"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].size() <= 2048)",message="values of vars must not exceed 2048 characters"
	Vars map[string]string `json:"vars,omitempty"`

	// joinSecretRef names a Secret in the instance's pool namespace whose entries are passed to install and join as
	// KPSSH_SECRET_<KEY>, the key in upper case with `-` and `.` as `_`. Default: none.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="joinSecretRef.name must name a Secret in the pool namespace"
	JoinSecretRef *SecretReference `json:"joinSecretRef,omitempty"`

	// providerIDSource is Static (the controller chooses the Node's provider ID) or Adopt (an agent on the machine does).
	// Default: Static.
	// +optional
	// +kubebuilder:default=Static
	ProviderIDSource ProviderIDSource `json:"providerIDSource,omitempty"`

	// pricePerCPUHour is the price karpenter compares instance types by: cores times this, per hour, in any one currency; a decimal
	// number. Default: "0.02".
	// +optional
	// +kubebuilder:default="0.02"
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?$`
	PricePerCPUHour string `json:"pricePerCPUHour,omitempty"`

	// kubeReserved is what the kubelet and the system keep for themselves: cpu (cores), memory and ephemeral-storage (bytes). A value
	// given here replaces the default whole. Default: cpu 80m, memory 300Mi.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="kubeReserved may give cpu, memory and ephemeral-storage only"
	KubeReserved corev1.ResourceList `json:"kubeReserved,omitempty"`

	// maxPods is how many pods a node may run, 1 to 65535. Default: the host's capacity.pods, else 110.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	MaxPods *int32 `json:"maxPods,omitempty"`

	// zone of the class's hosts, for those without a topology.kubernetes.io/zone label of their own. A label value.
	// Default: pool.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Zone string `json:"zone,omitempty"`

	// cluster overrides what machines are told about the API server. Default: ConfigMap kube-public/cluster-info.
	// +optional
	Cluster *ClusterSpec `json:"cluster,omitempty"`

	// prewarm runs install on free hosts before they are claimed, so that joins need not. A new version of the profile goes through the free
	// hosts first, and nodes drift only then. Default: off, install runs at a host's first join.
	// +optional
	Prewarm *Prewarm `json:"prewarm,omitempty"`

	// startupTaintGates remove startup taints when something on the node is ready. At most 16. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=taintKey
	// +kubebuilder:validation:MaxItems=16
	StartupTaintGates []StartupTaintGate `json:"startupTaintGates,omitempty"`
}

// SSHNodeClassStatus is written by the instance that owns the class.
type SSHNodeClassStatus struct {
	// conditions; Ready says whether NodePools may launch nodes with this class.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []status.Condition `json:"conditions,omitempty"`
	// hosts is how many SSHHosts the class selects.
	// +optional
	Hosts int32 `json:"hosts,omitempty"`
	// free is how many of them could be claimed now.
	// +optional
	Free int32 `json:"free,omitempty"`
	// prewarmProfile is the `<profile>@<version>` that condition Prewarmed is about.
	// +optional
	PrewarmProfile string `json:"prewarmProfile,omitempty"`
}

// Spec defaults to {} so that clearing it re-defaults instance, which the immutability rule then refuses. A default has to satisfy
// the schema it is part of, so that joinProfileRef is required by a rule of the whole object instead of by the schema of spec. The rule
// lets a class that never had one be written: the existing provider's kind let spec be left out, and finalizer and status of such a class
// must be writable, or it could not even be deleted.

// SSHNodeClass is what a NodePool's nodeClassRef names: the machines it may use, how they join, and the instance that does it.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="has(self.spec) && has(self.spec.joinProfileRef) || oldSelf.hasValue() && !(has(oldSelf.value().spec) && has(oldSelf.value().spec.joinProfileRef))",optionalOldSelf=true,message="name the SSHJoinProfile",reason=FieldValueRequired,fieldPath=".spec.joinProfileRef"
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sshnodeclasses,scope=Cluster,shortName=snc,categories=karpenter
// +kubebuilder:selectablefield:JSONPath=.spec.instance
// +kubebuilder:printcolumn:name="Instance",type=string,JSONPath=".spec.instance"
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=".spec.joinProfileRef.name"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Hosts",type=integer,JSONPath=".status.hosts"
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=".status.free"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type SSHNodeClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which machines may be used, how they join, and which instance does the work.
	// +optional
	// +kubebuilder:default={}
	Spec SSHNodeClassSpec `json:"spec,omitzero"`
	// status is what the owning instance found.
	// +optional
	Status SSHNodeClassStatus `json:"status,omitzero"`
}

// SSHNodeClassList is a list of SSHNodeClasses.
// +kubebuilder:object:root=true
type SSHNodeClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHNodeClass `json:"items"`
}

// GetConditions implements status.Object.
func (c *SSHNodeClass) GetConditions() []status.Condition { return c.Status.Conditions }

// SetConditions implements status.Object.
func (c *SSHNodeClass) SetConditions(conditions []status.Condition) { c.Status.Conditions = conditions }

// StatusConditions implements status.Object. Ready has no dependent conditions: its reason is the one to act on.
func (c *SSHNodeClass) StatusConditions(opts ...status.ForOption) status.ConditionSet {
	return status.NewReadyConditions().For(c, opts...)
}

// TellCondition puts a condition beside Ready and reports whether that changed the class; another generation alone does not. It does not go through
// StatusConditions: that would set Ready as well.
func (c *SSHNodeClass) TellCondition(said status.Condition, now time.Time) bool {
	said.ObservedGeneration, said.LastTransitionTime = c.Generation, metav1.NewTime(now)
	conditions := slices.Clone(c.Status.Conditions)
	at := slices.IndexFunc(conditions, func(is status.Condition) bool { return is.Type == said.Type })
	if at < 0 {
		c.Status.Conditions = append([]status.Condition{said}, conditions...) // Ready stays last
		return true
	}
	if was := conditions[at]; was.Status == said.Status {
		said.LastTransitionTime = was.LastTransitionTime
		if was.Reason == said.Reason && was.Message == said.Message {
			return false
		}
	}
	conditions[at] = said
	c.Status.Conditions = conditions
	return true
}

// DropCondition takes a condition away and reports whether it was there.
func (c *SSHNodeClass) DropCondition(kind string) bool {
	at := slices.IndexFunc(c.Status.Conditions, func(is status.Condition) bool { return is.Type == kind })
	if at >= 0 {
		c.Status.Conditions = slices.Delete(slices.Clone(c.Status.Conditions), at, at+1)
	}
	return at >= 0
}
