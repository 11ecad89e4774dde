package ssh

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// Script is one phase's work on the machine. Body runs in bash under `set -euo pipefail` with stdin at /dev/null and LANG=C; it
// runs when all of it has arrived, or not at all.
type Script struct {
	// Phase names the script in messages and on the machine: install, join, leave, probe.
	Phase string
	// Body is bash.
	Body string
	// Env is exported to Body. Names begin with KPSSH_; KPSSH_RUN and KPSSH_STATE_DIR are the wrapper's own. Values may hold
	// anything but NUL, and appear on no command line.
	Env map[string]string
	// Timeout is enforced by the machine, which kills every process of the phase, and a little later by this side.
	Timeout time.Duration
	// Owner makes the phase a mutating one: under the machine's lock, for this owner, at this epoch. Nil for a phase that only reads.
	Owner *Owner
	// Verified sends the phase to the machine's shim, which runs Body only if it was signed, and as it was signed. Nil: Body goes to a shell.
	Verified *Verified
}

// Verified is what a shim needs beside the script. The phase probe is the shim's own: it needs no proof, and Body is not sent.
type Verified struct {
	// Command is the command line that starts the shim; empty means DefaultShim. A forced command on the machine takes its place.
	Command string
	// Proof shows that Body may run; see package verified.
	Proof verified.Proof
}

// DefaultShim is where the shim is on a machine.
const DefaultShim = "/opt/kpssh/kpssh-shim"

// phaseProbe is the phase that shims carry out by themselves.
const phaseProbe = "probe"

// Owner is on whose behalf a machine is changed.
type Owner struct {
	// Cluster is the UID of the cluster (of its kube-system namespace).
	Cluster string
	// Instance is the controller instance's name.
	Instance string
	// Host is the SSHHost's UID.
	Host string
	// Claim is the NodeClaim's UID.
	Claim string
	// Epoch counts the host's claims. The machine refuses an epoch lower than it has seen for this Host.
	Epoch int64
	// TakeOver quotes, in the form of Owner.String, a stale owner that a person has allowed to be replaced.
	TakeOver string
}

// NoClaim is the Claim of a phase that runs on a machine which nobody claims. The machine forgets its owner when the phase has ended.
const NoClaim = "none"

// String is the one-line form by which people and OwnedElsewhere name an owner.
func (o Owner) String() string {
	return fmt.Sprintf("cluster=%s instance=%s host=%s claim=%s", o.Cluster, o.Instance, o.Host, o.Claim)
}

var (
	envName    = regexp.MustCompile(`^KPSSH_[A-Za-z0-9_]+$`)
	phaseName  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	ownerField = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,253}$`)
	reserved   = []string{"KPSSH_RUN", "KPSSH_STATE_DIR"}
)

// Validate tells whether the script can be sent at all. Fault: Configuration/ScriptInvalid.
func (s Script) Validate() error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.Configuration, "ScriptInvalid", nil, "%s script: %s", s.Phase, fmt.Sprintf(format, args...))
	}
	if !phaseName.MatchString(s.Phase) {
		return invalid("phase name %q is not one lower-case word", s.Phase)
	}
	if s.Timeout <= 0 {
		return invalid("timeout %s is not positive", s.Timeout)
	}
	if strings.ContainsRune(s.Body, 0) {
		return invalid("it contains a NUL byte, which no shell can read")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if !envName.MatchString(name) || slices.Contains(reserved, name) {
			return invalid("variable name %q is not allowed: names begin with KPSSH_, continue with letters, digits and _, and are not %s",
				name, strings.Join(reserved, " or "))
		}
		if strings.ContainsRune(s.Env[name], 0) {
			return invalid("the value of %s contains a NUL byte", name)
		}
	}
	if v := s.Verified; v != nil && s.Phase != phaseProbe {
		if v.Proof.Signature == "" && (v.Proof.Manifest == "" || v.Proof.ManifestSignature == "") {
			return invalid("it is for a machine in Verified mode, and not signed")
		}
		if s.Owner == nil {
			return invalid("it is for a machine in Verified mode, and has no owner")
		}
	}
	if s.Owner == nil {
		return nil
	}
	for name, value := range map[string]string{"cluster": s.Owner.Cluster, "instance": s.Owner.Instance, "host": s.Owner.Host} {
		if !ownerField.MatchString(value) {
			return invalid("owner's %s %q is not a name or UID", name, value)
		}
	}
	if s.Owner.Claim != "" && !ownerField.MatchString(s.Owner.Claim) {
		return invalid("owner's claim %q is not a UID", s.Owner.Claim)
	}
	if s.Owner.Epoch < 0 {
		return invalid("epoch %d is negative", s.Owner.Epoch)
	}
	return nil
}
