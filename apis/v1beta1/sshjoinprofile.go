package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ReasonProfileInUse is the reason of the Event on an SSHJoinProfile that is being deleted while hosts have it installed; part of the API.
const ReasonProfileInUse = "ProfileInUse"

// Scripts of a profile: bash, or Go templates that render to bash.
type Scripts struct {
	// install prepares the machine: packages, images, files. It must be idempotent; it runs once per profile version, before the first
	// join. At most 262144 characters.
	// +required
	// +kubebuilder:validation:MaxLength=262144
	Install string `json:"install"`
	// join makes the machine a node. It must be idempotent; it runs for every claim. At most 262144 characters.
	// +required
	// +kubebuilder:validation:MaxLength=262144
	Join string `json:"join"`
	// leave undoes join and stops and disables what would make the machine join again by itself. It gets KPSSH_HOST_ADDRESS and
	// KPSSH_NODE_ADDRESS only, for it must work when class and Secrets are gone. At most 262144 characters.
	// +required
	// +kubebuilder:validation:MaxLength=262144
	Leave string `json:"leave"`
	// uninstall undoes install. The controller never runs it; it is for people. At most 262144 characters. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	Uninstall string `json:"uninstall,omitempty"`
}

// Signatures of the scripts, armored SSHSIG in namespace `kpssh`; needed for hosts in Verified mode.
type Signatures struct {
	// install script's signature, at most 16384 characters. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Install string `json:"install,omitempty"`
	// join script's signature, at most 16384 characters. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Join string `json:"join,omitempty"`
	// leave script's signature, at most 16384 characters. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Leave string `json:"leave,omitempty"`
	// uninstall script's signature, at most 16384 characters. Default: none.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Uninstall string `json:"uninstall,omitempty"`
}

// SignedManifest says what a script is for, and is signed itself.
type SignedManifest struct {
	// manifest is the text that `kubectl kpssh sign --manifest` writes: profile, version, phase, digest of the script and expiry. At most 4096
	// characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Manifest string `json:"manifest"`
	// signature of the manifest, armored SSHSIG in namespace `kpssh-manifest`, at most 16384 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Signature string `json:"signature"`
}

// Manifests of the scripts, for hosts in Verified mode. A manifest takes the place of the phase's entry in signatures.
type Manifests struct {
	// install script's manifest. Default: none.
	// +optional
	Install *SignedManifest `json:"install,omitempty"`
	// join script's manifest. Default: none.
	// +optional
	Join *SignedManifest `json:"join,omitempty"`
	// leave script's manifest. Its expiry is not looked at: what joined must be able to leave. Default: none.
	// +optional
	Leave *SignedManifest `json:"leave,omitempty"`
	// uninstall script's manifest. Default: none.
	// +optional
	Uninstall *SignedManifest `json:"uninstall,omitempty"`
}

// Timeouts of the phases, such as 90s, 10m or 1h30m. Their length is bounded: a duration that overflows could not be decoded, and
// one such profile would keep every controller from listing profiles at all.
type Timeouts struct {
	// install may take this long: whole hours, minutes and seconds. 0s means the default. Default: 10m.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(s|m|h))+$')",message="a timeout's numbers have 6 digits at most"
	Install *metav1.Duration `json:"install,omitempty"`
	// join may take this long: whole hours, minutes and seconds. 0s means the default. Default: 5m.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(s|m|h))+$')",message="a timeout's numbers have 6 digits at most"
	Join *metav1.Duration `json:"join,omitempty"`
	// leave may take this long: whole hours, minutes and seconds. 0s means the default. Default: 3m.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]+(s|m|h))+$`
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}(s|m|h))+$')",message="a timeout's numbers have 6 digits at most"
	Leave *metav1.Duration `json:"leave,omitempty"`
}

// SSHJoinProfileSpec holds the scripts of one way to join.
type SSHJoinProfileSpec struct {
	// version of the scripts. A new version is installed at a host's next join, and nodes with an older one drift. Editing scripts
	// without a new version changes nothing on machines that have it installed. 1 to 63 letters, digits, dots, underscores and dashes.
	// Default: "1".
	// +optional
	// +kubebuilder:default="1"
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9._-]{1,63}$`
	Version string `json:"version,omitempty"`
	// scripts of the phases: bash, or Go templates that render to bash.
	// +required
	Scripts Scripts `json:"scripts"`
	// signatures of the scripts, for hosts in Verified mode. Default: none.
	// +optional
	Signatures Signatures `json:"signatures,omitzero"`
	// manifests of the scripts, for hosts in Verified mode: they keep an old signed script from being run again, or as another phase. Default:
	// none.
	// +optional
	Manifests Manifests `json:"manifests,omitzero"`
	// timeouts of the phases. Default: install 10m, join 5m, leave 3m.
	// +optional
	Timeouts Timeouts `json:"timeouts,omitzero"`
	// kubeletUnits are the systemd units that run this profile's kubelet, such as k3s-agent.service. The probe looks at them on every
	// machine that has the profile installed or may get it, and finds by them a kubelet that should not be there. 1 to 8 names.
	// Default: [kubelet.service].
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9:_.@-]+\.service$`
	KubeletUnits []string `json:"kubeletUnits,omitempty"`
}

// SSHJoinProfile is a set of scripts that make machines join the cluster and leave it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=sshjoinprofiles,scope=Cluster,shortName=sjp,categories=karpenter
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=".spec.version"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
type SSHJoinProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the scripts.
	// +optional
	Spec SSHJoinProfileSpec `json:"spec,omitzero"`
}

// SSHJoinProfileList is a list of SSHJoinProfiles.
// +kubebuilder:object:root=true
type SSHJoinProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SSHJoinProfile `json:"items"`
}

// Marker is `<profile>@<version>`, as SSHHost.status.installedProfile records it.
func (p *SSHJoinProfile) Marker() string { return p.Name + "@" + p.Spec.Version }
