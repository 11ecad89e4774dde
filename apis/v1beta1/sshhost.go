package v1beta1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ExecMode is how scripts reach the machine.
// +kubebuilder:validation:Enum=Raw;Verified
type ExecMode string

const (
	// ExecModeRaw sends the rendered script to a root shell on the machine.
	ExecModeRaw ExecMode = "Raw"
	// ExecModeVerified sends a signed script to a shim on the machine, which runs only what its signers signed.
	ExecModeVerified ExecMode = "Verified"
)

// HostState is the authoritative state of a host, and the value that claims compare and swap.
// +kubebuilder:validation:Enum=Pending;Available;Claimed;InUse;Unhealthy;Leaving;Maintenance
type HostState string

const (
	// HostPending has not been probed yet. An empty state means the same.
	HostPending HostState = "Pending"
	// HostAvailable may be claimed.
	HostAvailable HostState = "Available"
	// HostClaimed belongs to a NodeClaim and is being installed or joined.
	HostClaimed HostState = "Claimed"
	// HostInUse has run its join script for the claim.
	HostInUse HostState = "InUse"
	// HostUnhealthy is parked until a probe succeeds.
	HostUnhealthy HostState = "Unhealthy"
	// HostLeaving is running, or waiting to run, its leave script.
	HostLeaving HostState = "Leaving"
	// HostMaintenance is parked by MaintenanceAnnotation.
	HostMaintenance HostState = "Maintenance"
)

// Condition types of an SSHHost.
const (
	// ConditionReady is True when the host can be claimed or serves a claim.
	ConditionReady = "Ready"
	// ConditionJoined is True while the machine is a member of the cluster for its claim.
	ConditionJoined = "Joined"
	// ConditionHostKeyVerified is False when the machine presented a host key that is not the pinned one.
	ConditionHostKeyVerified = "HostKeyVerified"
	// ConditionClockSynced is False when the machine's clock differs so much that certificates would be refused.
	ConditionClockSynced = "ClockSynced"
	// ConditionOwnedElsewhere is True when the machine says that another cluster, instance or SSHHost owns it.
	ConditionOwnedElsewhere = "OwnedElsewhere"
	// ConditionLeavePending is True when a claim ended but the leave script could not run; the host is not claimed before it did.
	ConditionLeavePending = "LeavePending"
	// ConditionConnectable is False while something before the machine, such as a jump host or a certificate, keeps the controller from it.
	// The machine's state stays what it was, but the host is not claimed. Absent: nothing does.
	ConditionConnectable = "Connectable"
	// ConditionMaintenanceScheduled is False while one of spec.maintenanceWindows cannot be read, so that it never opens. Absent: all can.
	ConditionMaintenanceScheduled = "MaintenanceScheduled"
)

// Reasons of SSHHost conditions; part of the API.
const (
	ReasonProbeSucceeded       = "ProbeSucceeded"
	ReasonProbeFailed          = "ProbeFailed"
	ReasonAwaitingProbe        = "AwaitingProbe"
	ReasonMaintenance          = "Maintenance"
	ReasonLeaving              = "Leaving"
	ReasonJoinFailed           = "JoinFailed"
	ReasonLeaveFailed          = "LeaveFailed"
	ReasonHostKeyMismatch      = "HostKeyMismatch"
	ReasonHostKeyMatched       = "HostKeyMatched"
	ReasonForeignKubelet       = "ForeignKubelet"
	ReasonHostOwnedElsewhere   = "HostOwnedElsewhere"
	ReasonClockSkewed          = "ClockSkewed"
	ReasonClockInSync          = "ClockInSync"
	ReasonNodeRegistered       = "NodeRegistered"
	ReasonAdoptAmbiguous       = "AdoptAmbiguous"
	ReasonAdoptFailed          = "AdoptFailed"
	ReasonAwaitingRegistration = "AwaitingRegistration"
	ReasonLeft                 = "Left"
	ReasonBackoff              = "Backoff"
	ReasonQuarantined          = "Quarantined"

	ReasonMaintenanceWindowInvalid = "MaintenanceWindowInvalid"
)

// OperationType is a kind of work on the machine.
// +kubebuilder:validation:Enum=Install;Join;Leave;Probe
type OperationType string

// Operations that run on a machine.
const (
	OperationInstall OperationType = "Install"
	OperationJoin    OperationType = "Join"
	OperationLeave   OperationType = "Leave"
	OperationProbe   OperationType = "Probe"
)

// SecretReference names a Secret in the host's namespace.
// +structType=atomic
type SecretReference struct {
	// name of the Secret. It must not be empty.
	// +optional
	// +kubebuilder:default=""
	Name string `json:"name,omitempty"`
}

// SSHHostSpec describes a machine that exists and how to reach it.
// +kubebuilder:validation:XValidation:rule="!has(self.execMode) || self.execMode != 'Verified' || (has(self.trustedSigners) && self.trustedSigners.size() > 0)",message="execMode Verified needs at least one entry in trustedSigners"
// +kubebuilder:validation:XValidation:rule="!has(self.jumpHosts) || !self.jumpHosts.exists(j, j.address == self.address && (has(j.port) ? j.port : 22) == (has(self.port) ? self.port : 22))",message="a machine cannot be its own jump host"
type SSHHostSpec struct {
	// address is the IP address or DNS name that the controller dials. It cannot be changed: a machine with another address is
	// another SSHHost.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="address is immutable: delete this SSHHost and create one for the new address"
	Address string `json:"address"`

	// port is the TCP port of the machine's SSH server, 1 to 65535. Default: 22.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// user to log in as, up to 32 characters. Every user but root needs sudo without a password. Default: root.
	// +optional
	// +kubebuilder:default=root
	// +kubebuilder:validation:MaxLength=32
	User string `json:"user,omitempty"`

	// sshKeySecretRef names the Secret, in this host's namespace, with the login key: `privateKey` (PEM, required), `passphrase`
	// (if the key is encrypted), `certificate` (OpenSSH user certificate of the key), `knownHost` (the pinned host keys: SHA256
	// fingerprints, public keys or known_hosts lines, one a line) and `hostCA` (keys of the authorities whose host certificates are
	// accepted, one a line). Without `knownHost` and `hostCA` the key seen first is recorded in status.hostKeyFingerprint and required
	// from then on.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="sshKeySecretRef.name must name a Secret in the host's namespace"
	SSHKeySecretRef SecretReference `json:"sshKeySecretRef"`

	// nodeAddress is the IPv4 or IPv6 address that the Node will report as its InternalIP, when it differs from address.
	// Default: address.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="nodeAddress must be an IPv4 or IPv6 address"
	NodeAddress string `json:"nodeAddress,omitempty"`

	// capacity of the machine as karpenter shall count it: Kubernetes quantities by resource name. `cpu` (cores) and `memory` (bytes)
	// are required. `pods` (default: 110), `ephemeral-storage` (bytes, default: 20Gi) and any extended resource may be given.
	// +required
	// +kubebuilder:validation:XValidation:rule="'cpu' in self && 'memory' in self",message="capacity must give both cpu and memory"
	Capacity corev1.ResourceList `json:"capacity"`

	// execMode is how scripts reach the machine: Raw (the controller sends the script to a root shell) or Verified (a shim on the
	// machine runs only scripts signed by trustedSigners). Default: Raw.
	// +optional
	// +kubebuilder:default=Raw
	ExecMode ExecMode `json:"execMode,omitempty"`

	// trustedSigners are the SSH public keys, each as in a line of authorized_keys, whose signatures on scripts are accepted. At most
	// 16; Verified mode needs at least one. Default: none.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	TrustedSigners []string `json:"trustedSigners,omitempty"`

	// shimCommand is the command line that starts the shim in Verified mode. Default: /opt/kpssh/kpssh-shim.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	ShimCommand string `json:"shimCommand,omitempty"`

	// jumpHosts are the SSH servers on the way to the machine, the first one first, 4 at most, none twice. address is then dialled from the
	// last of them. Default: none, the machine is dialled directly.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.address == b.address && (has(a.port) ? a.port : 22) == (has(b.port) ? b.port : 22)))",message="jumpHosts must name each SSH server once"
	JumpHosts []JumpHost `json:"jumpHosts,omitempty"`

	// maintenanceWindows are times at which the host, while nobody uses it, is parked in state Maintenance, as by the maintenance
	// annotation. A host in use is left alone and parked when it becomes free. At most 8. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	MaintenanceWindows []MaintenanceWindow `json:"maintenanceWindows,omitempty"`
}

// MaintenanceWindow is a time that comes again and again.
type MaintenanceWindow struct {
	// schedule says when the window opens, in the five fields of cron: minute, hour, day of month, month, day of week (`0 2 * * SAT`).
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4}$`
	Schedule string `json:"schedule"`

	// duration is how long the window stays open, 1m to 168h (`90m`, `2h30m`).
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+(s|m|h))+$') || (duration(self) >= duration('1m') && duration(self) <= duration('168h'))",message="duration must be 1m to 168h"
	Duration metav1.Duration `json:"duration"`

	// timeZone of schedule, by its name in the IANA time zone database (`Europe/Berlin`). Default: UTC.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`
	TimeZone string `json:"timeZone,omitempty"`
}

// JumpHost is an SSH server on the way to a machine. It forwards connections, and runs nothing.
type JumpHost struct {
	// address is the IP address or DNS name of the SSH server, as dialled from the jump host before it, or from the controller.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address"`

	// port is the TCP port of the SSH server, 1 to 65535. Default: 22.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// user to log in as, up to 32 characters. It needs no shell, only leave to forward. Default: root.
	// +optional
	// +kubebuilder:default=root
	// +kubebuilder:validation:MaxLength=32
	User string `json:"user,omitempty"`

	// sshKeySecretRef names the Secret, in the SSHHost's namespace, with the login key of this jump host, which is offered to no other
	// server: the same entries as spec.sshKeySecretRef. `knownHost` or `hostCA` is required: a jump host is never trusted on first use.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.name) && self.name != ''",message="sshKeySecretRef.name of a jump host must name a Secret in the SSHHost's namespace"
	SSHKeySecretRef SecretReference `json:"sshKeySecretRef"`
}

// ClaimReference is the lock on a host: one NodeClaim, by name and UID.
type ClaimReference struct {
	// name of the NodeClaim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the NodeClaim, which tells it from a later one of the same name.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// nodeClass of the NodeClaim, so that a leave needs no object but this host.
	// +optional
	NodeClass string `json:"nodeClass,omitempty"`
	// instanceType is the karpenter instance type that the claim was launched as.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// claimedAt is when the host was claimed (RFC 3339 time).
	// +optional
	ClaimedAt *metav1.Time `json:"claimedAt,omitempty"`
}

// HostOperation is what runs on the machine now.
type HostOperation struct {
	// type of the operation: Install, Join, Leave or Probe.
	// +required
	Type OperationType `json:"type"`
	// started is when this attempt began (RFC 3339 time).
	// +required
	Started metav1.Time `json:"started"`
	// attempt counts the tries of this operation from 1.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// deadline is when the machine itself ends this attempt (RFC 3339 time).
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// message says in words what is going on, and what went wrong in the attempt before.
	// +optional
	Message string `json:"message,omitempty"`
}

// HostFailures is a host's memory of failures, by which it is offered last, after a pause, or not at all for a time.
type HostFailures struct {
	// count of failed joins since the last one that succeeded.
	// +optional
	Count int32 `json:"count,omitempty"`
	// lastTime is when the last join failed (RFC 3339 time).
	// +optional
	LastTime *metav1.Time `json:"lastTime,omitempty"`
	// lastReason is why it failed, one CamelCase word.
	// +optional
	LastReason string `json:"lastReason,omitempty"`
	// notBefore is the time before which the host is not offered again (RFC 3339 time). Unset: it may be offered now.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// recent are the failures of the last hours that the machine itself was to blame for, oldest first. Three in six hours put the host in
	// quarantine. At most 5.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Recent []HostFailure `json:"recent,omitempty"`
	// quarantines counts those since the host was last trusted. Above 0 and out of quarantine, the host is on trial: it is offered last, and
	// one failure puts it back for longer.
	// +optional
	Quarantines int32 `json:"quarantines,omitempty"`
	// quarantinedUntil is when the last quarantine ends (RFC 3339 time).
	// +optional
	QuarantinedUntil *metav1.Time `json:"quarantinedUntil,omitempty"`
	// successes counts the joins that went well since the last failure. The first forgives the newest half of recent, the second everything.
	// +optional
	Successes int32 `json:"successes,omitempty"`
	// observedGeneration is the host's metadata.generation at the last failure: a later change of the spec forgives.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// HostFailure is one failure that a machine is to blame for.
type HostFailure struct {
	// time of the failure (RFC 3339 time).
	// +required
	Time metav1.Time `json:"time"`
	// operation that failed: Install, Join or Leave.
	// +required
	Operation OperationType `json:"operation"`
	// reason is why it failed, one CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// SSHHostStatus is written by the instance that owns the namespace, and by nobody else.
type SSHHostStatus struct {
	// state of the host: Pending, Available, Claimed, InUse, Unhealthy, Leaving or Maintenance. Empty means Pending.
	// +optional
	State HostState `json:"state,omitempty"`

	// conditions say why the host is in its state. Types: Ready, Joined, HostKeyVerified, ClockSynced, OwnedElsewhere, LeavePending,
	// Connectable and MaintenanceScheduled.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// claimRef names the NodeClaim that holds this host. Unset: nobody does.
	// +optional
	ClaimRef *ClaimReference `json:"claimRef,omitempty"`

	// claimEpoch counts the claims on this host. The machine refuses work of an older epoch, so that a controller which was cut off
	// cannot act for a claim that has ended.
	// +optional
	ClaimEpoch int64 `json:"claimEpoch,omitempty"`

	// operation is what runs on the machine now; empty when nothing does.
	// +optional
	Operation *HostOperation `json:"operation,omitempty"`

	// installedProfile is `<profile>@<version>` of the install script that last succeeded on the machine.
	// +optional
	InstalledProfile string `json:"installedProfile,omitempty"`

	// installedRevision names the ControllerRevision, in this namespace, that keeps the scripts of installedProfile: the leave
	// script that fits what is on the machine.
	// +optional
	InstalledRevision string `json:"installedRevision,omitempty"`

	// bootstrapTokenID is the public half (6 characters) of the bootstrap token of the join in flight. Empty: no join is.
	// +optional
	// +kubebuilder:validation:MaxLength=6
	BootstrapTokenID string `json:"bootstrapTokenID,omitempty"`

	// providerID of the Node: kpssh://<namespace>/<name>, or the one that an agent on the machine chose.
	// +optional
	ProviderID string `json:"providerID,omitempty"`

	// adopted is the identity that an agent on the machine gave its Node last. It is kept when a claim ends: an agent such as nodeadm
	// gives a machine the same identity again. Set only where providerIDSource is Adopt.
	// +optional
	Adopted *AdoptedIdentity `json:"adopted,omitempty"`

	// hostKeyFingerprint is the host key seen first, `SHA256:<43 characters>`, required from then on where nothing is pinned.
	// +optional
	HostKeyFingerprint string `json:"hostKeyFingerprint,omitempty"`

	// observedCapacity is cpu (cores) and memory (bytes) as the last probe counted them.
	// +optional
	ObservedCapacity corev1.ResourceList `json:"observedCapacity,omitempty"`

	// observedArch is the machine's architecture as Kubernetes spells it: amd64, arm64.
	// +optional
	ObservedArch string `json:"observedArch,omitempty"`

	// observedGeneration is the metadata.generation that was last probed.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// lastProbeTime is when the last probe ended (RFC 3339 time).
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`

	// lastProbeError is why the last probe, join or leave failed. Empty: it did not.
	// +optional
	LastProbeError string `json:"lastProbeError,omitempty"`

	// failures remembers what failed on the machine, so that the host is offered last and after a pause, and not at all for a time when it
	// keeps failing.
	// +optional
	Failures *HostFailures `json:"failures,omitempty"`

	// failuresCleared is the value of the annotation clear-failures by which a person last had the failures forgotten.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	FailuresCleared string `json:"failuresCleared,omitempty"`
}

// SSHHost is a machine that exists, can be reached by SSH, and can be made to join the cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec) || has(self.spec)",message="spec cannot be removed: delete this SSHHost and create one for the new machine"
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=sshhosts,scope=Namespaced,shortName=sshh,categories=karpenter
// +kubebuilder:selectablefield:JSONPath=.status.state
// +kubebuilder:selectablefield:JSONPath=.status.claimRef.uid
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=".spec.address"
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=".metadata.labels.karpenter\\.dklesev\\.github\\.io/host-class"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=".status.state"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type==\"Ready\")].status"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=".status.operation.type"
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=".status.operation.started"
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=".status.claimRef.name"
// +kubebuilder:printcolumn:name="Installed",type=string,JSONPath=".status.installedProfile"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type SSHHost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec describes the machine and how to reach it.
	// +optional
	Spec SSHHostSpec `json:"spec,omitzero"`
	// status is what the controller knows about the machine.
	// +optional
	Status SSHHostStatus `json:"status,omitzero"`
}

// AdoptedIdentity is what an agent on the machine named its Node.
type AdoptedIdentity struct {
	// providerID of the Node, such as eks-hybrid:///region/cluster/mi-0123. Never one of the scheme kpssh://.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ProviderID string `json:"providerID"`

	// nodeName is the Node's name; empty if it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
}

// SSHHostList is a list of SSHHosts.
// +kubebuilder:object:root=true
type SSHHostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHHost `json:"items"`
}

// HostClass is the host's class label, or DefaultHostClass.
func (h *SSHHost) HostClass() string {
	if class := h.Labels[HostClassLabel]; class != "" {
		return class
	}
	return DefaultHostClass
}

// StaticProviderID is kpssh://<namespace>/<name>: known before the machine is touched, and never changing.
func (h *SSHHost) StaticProviderID() string {
	return ProviderIDScheme + h.Namespace + "/" + h.Name
}

// EffectiveProviderID is the adopted provider ID if there is one, else the static one.
func (h *SSHHost) EffectiveProviderID() string {
	if h.Status.ProviderID != "" {
		return h.Status.ProviderID
	}
	return h.StaticProviderID()
}

// ProviderIDs are all by which Nodes of the host's machine may be known: the static one, the present one and the remembered one, each once.
func (h *SSHHost) ProviderIDs() []string {
	ids := []string{h.StaticProviderID()}
	if id := h.Status.ProviderID; id != "" && id != ids[0] {
		ids = append(ids, id)
	}
	if h.Status.Adopted != nil && !slices.Contains(ids, h.Status.Adopted.ProviderID) {
		ids = append(ids, h.Status.Adopted.ProviderID)
	}
	return ids
}

// NodeIP is the address that the Node is expected to report: nodeAddress, else address.
func (h *SSHHost) NodeIP() string {
	if h.Spec.NodeAddress != "" {
		return h.Spec.NodeAddress
	}
	return h.Spec.Address
}

// InMaintenance tells whether MaintenanceAnnotation is present.
func (h *SSHHost) InMaintenance() bool {
	_, found := h.Annotations[MaintenanceAnnotation]
	return found
}

// ClaimedBy tells whether the host is held for this NodeClaim. A claim recorded without a UID matches by name alone.
func (h *SSHHost) ClaimedBy(name string, uid types.UID) bool {
	ref := h.Status.ClaimRef
	return ref != nil && ref.Name == name && (ref.UID == "" || uid == "" || ref.UID == uid)
}
