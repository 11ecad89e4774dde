package join

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// Step is what has to happen to a host next.
type Step string

const (
	// StepNothing leaves the host alone; whatever runs on it goes on.
	StepNothing Step = "Nothing"
	// StepHeal clears a claimed state that has no claim.
	StepHeal Step = "Heal"
	// StepHold adds the finalizer, before the machine is touched.
	StepHold Step = "Hold"
	// StepUnhold removes the finalizer: nothing on the machine needs undoing.
	StepUnhold Step = "Unhold"
	// StepBringUp installs and joins.
	StepBringUp Step = "BringUp"
	// StepAwaitNode watches for the Node of a join that succeeded.
	StepAwaitNode Step = "AwaitNode"
	// StepAdopt takes over the identity that an agent on the machine gave its Node.
	StepAdopt Step = "Adopt"
	// StepGiveUp fails a join whose Node did not appear in time, or cannot.
	StepGiveUp Step = "GiveUp"
	// StepEndClaim moves a host whose claim has ended to Leaving, and stops what runs for the claim.
	StepEndClaim Step = "EndClaim"
	// StepDrain deletes the NodeClaim of a host that is being deleted, so that its node is drained and leaves.
	StepDrain Step = "Drain"
	// StepRelease frees a host whose machine never began to join.
	StepRelease Step = "Release"
	// StepLeave runs the leave script.
	StepLeave Step = "Leave"
	// StepStop stops what runs on a host for no claim, because it is not free any more.
	StepStop Step = "Stop"
	// StepClear takes off a host what a process before this one was doing on it for no claim.
	StepClear Step = "Clear"
)

// Life is what is known about a NodeClaim.
type Life int

const (
	// Alive exists and is not being deleted.
	Alive Life = iota
	// Deleting has a deletion timestamp.
	Deleting
	// Gone does not exist, or has another UID; confirmed by the API server, not by a cache.
	Gone
)

// Facts are what the decision rests on.
type Facts struct {
	Host *v1beta1.SSHHost
	// Claim is the life of the NodeClaim in the host's claimRef.
	Claim Life
	// Running is the operation in flight in this process, and the claim it runs for.
	Running    v1beta1.OperationType
	RunningFor types.UID
	// Registered is true once the claim's Node exists.
	Registered bool
	// Adoption is what the Nodes say about an identity that an agent on the machine chose; zero where none does.
	Adoption adoption
	// NameTaken is true if the Node of the claim's name is that of another host, perhaps of another instance.
	NameTaken bool
	// Waited is how long the Node has been awaited since the join script succeeded.
	Waited time.Duration
}

// registrationTimeout is how long a Node may take to appear after a join script succeeded. A kubelet that can reach the API server
// needs seconds; karpenter itself would wait for 15 minutes.
const registrationTimeout = 5 * time.Minute

// decide is the host state machine, as a pure function.
func decide(f Facts) Step {
	h := f.Host
	if h.Status.ClaimRef == nil {
		return decideUnclaimed(f)
	}
	switch host.State(h) {
	case v1beta1.HostLeaving:
		if !host.Touched(h) {
			return StepRelease
		}
		return StepLeave
	case v1beta1.HostClaimed, v1beta1.HostInUse:
	default:
		return StepHeal // a claim in a state that holds none
	}
	switch {
	case f.Claim == Gone:
		return StepEndClaim
	case f.Claim == Deleting && h.Status.State == v1beta1.HostClaimed:
		return StepEndClaim // nothing runs on the node yet: no drain to wait for
	case f.Claim == Deleting:
		return StepNothing // karpenter drains the node, then calls Delete
	case !h.DeletionTimestamp.IsZero():
		return StepDrain
	case !controllerutil.ContainsFinalizer(h, v1beta1.HostFinalizer):
		return StepHold
	case h.Status.State == v1beta1.HostClaimed:
		return StepBringUp
	case f.Adoption.pending:
		return StepAdopt
	case f.Registered && h.Status.BootstrapTokenID == "" && joined(h):
		return StepNothing
	case !f.Registered && !joined(h) && (f.NameTaken || f.Waited >= registrationTimeout):
		return StepGiveUp
	}
	return StepAwaitNode
}

func decideUnclaimed(f Facts) Step {
	h := f.Host
	switch host.State(h) {
	case v1beta1.HostClaimed, v1beta1.HostInUse:
		return StepHeal
	case v1beta1.HostLeaving:
		return StepLeave
	}
	free, _ := host.Claimable(h)
	switch prewarms := f.Running == v1beta1.OperationInstall; {
	case prewarms && !free:
		return StepStop
	case !prewarms && host.Prewarming(h):
		return StepClear
	}
	if controllerutil.ContainsFinalizer(h, v1beta1.HostFinalizer) && !host.LeavePending(h) {
		return StepUnhold
	}
	return StepNothing
}
