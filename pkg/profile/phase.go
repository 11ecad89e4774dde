package profile

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Phase is one of the scripts that the controller runs. The uninstall script is none: it is for people.
type Phase string

// Phases, in the order of a machine's life.
const (
	Install Phase = "install"
	Join    Phase = "join"
	Leave   Phase = "leave"
)

// uninstall is not run by the controller, and so no phase; the linter reads it.
const uninstall Phase = "uninstall"

// Phases are all phases.
var Phases = [...]Phase{Install, Join, Leave}

// Timeouts of phases whose profile gives none.
const (
	DefaultInstallTimeout = 10 * time.Minute
	DefaultJoinTimeout    = 5 * time.Minute
	DefaultLeaveTimeout   = 3 * time.Minute
)

// script is the text of a phase, or of uninstall; empty for an unknown phase.
func script(spec *v1beta1.SSHJoinProfileSpec, phase Phase) string {
	switch phase {
	case Install:
		return spec.Scripts.Install
	case Join:
		return spec.Scripts.Join
	case Leave:
		return spec.Scripts.Leave
	case uninstall:
		return spec.Scripts.Uninstall
	}
	return ""
}

// signature over the text of a phase; empty without one.
func signature(spec *v1beta1.SSHJoinProfileSpec, phase Phase) string {
	switch phase {
	case Install:
		return spec.Signatures.Install
	case Join:
		return spec.Signatures.Join
	case Leave:
		return spec.Signatures.Leave
	case uninstall:
		return spec.Signatures.Uninstall
	}
	return ""
}

// Timeout is how long a phase may run: the profile's value, or the phase's default when that is absent or not positive.
func Timeout(spec *v1beta1.SSHJoinProfileSpec, phase Phase) time.Duration {
	given, fallback := spec.Timeouts.Install, DefaultInstallTimeout
	switch phase {
	case Join:
		given, fallback = spec.Timeouts.Join, DefaultJoinTimeout
	case Leave:
		given, fallback = spec.Timeouts.Leave, DefaultLeaveTimeout
	}
	return positive(given, fallback)
}

func positive(given *metav1.Duration, fallback time.Duration) time.Duration {
	if given == nil || given.Duration <= 0 {
		return fallback
	}
	return given.Duration
}
