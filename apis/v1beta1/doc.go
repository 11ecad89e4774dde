// Package v1beta1 holds the three kinds of karpenter-provider-ssh: SSHHost (a machine), SSHNodeClass (what karpenter
// may do with machines, and which instance owns it) and SSHJoinProfile (the scripts that make a machine join and leave).
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.dklesev.github.io
package v1beta1
