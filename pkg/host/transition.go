package host

import (
	"cmp"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	// failureBackoff is the pause after a host's first failed join; it doubles with each further failure, because a host that
	// fails again at once would starve the others of claims.
	failureBackoff    = 30 * time.Second
	maxFailureBackoff = 30 * time.Minute
)

// MarkClaimed gives a claimable host to a NodeClaim and starts a new epoch.
func MarkClaimed(h *v1beta1.SSHHost, ref v1beta1.ClaimReference, now time.Time) {
	claimedAt := metav1.NewTime(now)
	ref.ClaimedAt = &claimedAt
	h.Status.State = v1beta1.HostClaimed
	h.Status.ClaimRef = &ref
	// The wall clock lifts the epoch over what a machine remembers when the status was lost; order within one status does not rest on it.
	h.Status.ClaimEpoch = max(h.Status.ClaimEpoch+1, now.Unix())
	h.Status.Operation = nil
	h.Status.BootstrapTokenID = ""
	h.Status.ProviderID = ""
	apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionJoined)
}

// MarkInstalling records that the install script is about to run.
func MarkInstalling(h *v1beta1.SSHHost, attempt int32, deadline, now time.Time) {
	h.Status.Operation = operation(v1beta1.OperationInstall, attempt, deadline, now)
}

// MarkPrewarming records that the install script is about to run on a host that nobody claims. The host stays claimable. It is a new epoch, so
// that the claim which takes the host next is told apart from this, here and on the machine.
func MarkPrewarming(h *v1beta1.SSHHost, attempt int32, deadline, now time.Time) {
	h.Status.ClaimEpoch = max(h.Status.ClaimEpoch+1, now.Unix())
	MarkInstalling(h, attempt, deadline, now)
}

// MarkPrewarmed records that the install script succeeded.
func MarkPrewarmed(h *v1beta1.SSHHost, marker, revision, fingerprint string) {
	h.Status.InstalledProfile, h.Status.InstalledRevision = marker, revision
	h.Status.Operation = nil
	markPin(h, fingerprint)
}

// MarkJoining records, before the machine is told to join, what a successor of this process needs to undo it: the token's ID,
// and the revision whose leave script fits.
func MarkJoining(h *v1beta1.SSHHost, marker, revision, tokenID, fingerprint string, attempt int32, deadline, now time.Time) {
	h.Status.InstalledProfile, h.Status.InstalledRevision = marker, revision
	h.Status.BootstrapTokenID = tokenID
	markPin(h, fingerprint)
	h.Status.Operation = operation(v1beta1.OperationJoin, attempt, deadline, now)
	SetCondition(h, now, v1beta1.ConditionJoined, metav1.ConditionFalse, string(v1beta1.OperationJoin), "the join script is running")
}

// MarkJoined records that the join script succeeded.
func MarkJoined(h *v1beta1.SSHHost, providerID string, now time.Time) {
	h.Status.State = v1beta1.HostInUse
	h.Status.ProviderID = providerID
	h.Status.Operation = nil
	h.Status.LastProbeError = ""
	SetCondition(h, now, v1beta1.ConditionJoined, metav1.ConditionFalse, v1beta1.ReasonAwaitingRegistration, "the join script succeeded; waiting for the Node to appear")
}

// MarkAdopted records which Node an agent on the machine made, for this claim and for those to come.
func MarkAdopted(h *v1beta1.SSHHost, identity v1beta1.AdoptedIdentity) {
	h.Status.ProviderID, h.Status.Adopted = identity.ProviderID, &identity
}

// MarkRegistered records that the Node appeared and the bootstrap token is gone.
func MarkRegistered(h *v1beta1.SSHHost, node string, now time.Time) {
	h.Status.BootstrapTokenID = ""
	h.Status.Failures = redeem(h.Status.Failures)
	SetCondition(h, now, v1beta1.ConditionJoined, metav1.ConditionTrue, v1beta1.ReasonNodeRegistered, "Node "+node)
}

// MarkLeaving ends a claim's use of the host but keeps the claim until the machine has left.
func MarkLeaving(h *v1beta1.SSHHost) {
	h.Status.State = v1beta1.HostLeaving
	h.Status.Operation = nil
}

// MarkLeaveRunning records that the leave script is about to run.
func MarkLeaveRunning(h *v1beta1.SSHHost, attempt int32, deadline, now time.Time) {
	h.Status.Operation = operation(v1beta1.OperationLeave, attempt, deadline, now)
}

// Release says what becomes of a host whose claim ends.
type Release struct {
	// State to go to: Available, Unhealthy or Pending.
	State v1beta1.HostState
	// Reason and Message, for Unhealthy: what happened and what to do about it.
	Reason, Message string
	// Failed counts a failed join, after which the host is offered last and not before a pause.
	Failed bool
	// Blamed says that the machine itself is to blame, for a failed join or leave: the failure counts towards a quarantine.
	Blamed bool
	// Operation is what failed, for a host that is Blamed. Empty: what its status says runs on it, which is of no use once the claim has ended.
	Operation v1beta1.OperationType
	// LeavePending keeps the host from being claimed until its leave script ran.
	LeavePending bool
	// Blocked keeps the host from being claimed until a probe gets through: what failed lies before the machine.
	Blocked bool
}

// MarkReleased clears the claim. The bootstrap token must be gone by now.
func MarkReleased(h *v1beta1.SSHHost, r Release, now time.Time) {
	remember(h, r, now)
	h.Status.State = r.State
	h.Status.ClaimRef = nil
	h.Status.Operation = nil
	h.Status.BootstrapTokenID = ""
	if id := h.Status.ProviderID; id != "" && h.Status.Adopted == nil && !strings.HasPrefix(id, v1beta1.ProviderIDScheme) {
		h.Status.Adopted = &v1beta1.AdoptedIdentity{ProviderID: id} // from a version that did not keep it apart
	}
	h.Status.ProviderID = ""
	if r.State == v1beta1.HostUnhealthy && !r.LeavePending && r.Reason != v1beta1.ReasonQuarantined && HealthOf(h.Status.Failures, now) == Quarantined {
		r.Reason, r.Message = v1beta1.ReasonQuarantined, Quarantine(h.Status.Failures, r.Message)
	}
	h.Status.LastProbeError = r.Message
	apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionJoined)
	apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionLeavePending)
	if r.LeavePending {
		SetCondition(h, now, v1beta1.ConditionLeavePending, metav1.ConditionTrue, r.Reason, r.Message)
	}
	if r.Blocked {
		MarkBlocked(h, r.Reason, r.Message, now)
	}
	if r.State == v1beta1.HostUnhealthy {
		SetCondition(h, now, v1beta1.ConditionReady, metav1.ConditionFalse, r.Reason, r.Message)
	}
}

// MarkLeaveOvertaken ends a leave that is pending for a machine which somebody else owns by now.
func MarkLeaveOvertaken(h *v1beta1.SSHHost) {
	apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionLeavePending)
}

// MarkUnhealthy parks an unclaimed host, with a reason and a message that says what to do.
func MarkUnhealthy(h *v1beta1.SSHHost, reason, message string, now time.Time) {
	h.Status.State = v1beta1.HostUnhealthy
	h.Status.LastProbeError = message
	SetCondition(h, now, v1beta1.ConditionReady, metav1.ConditionFalse, reason, message)
}

// MarkBlocked records what, before the machine, keeps the controller from it. The state stays: nothing new is known about the machine.
func MarkBlocked(h *v1beta1.SSHHost, reason, message string, now time.Time) {
	SetCondition(h, now, v1beta1.ConditionConnectable, metav1.ConditionFalse, reason, message)
}

// MarkReached records that the machine was asked, whatever it answered.
func MarkReached(h *v1beta1.SSHHost) {
	apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionConnectable)
}

// MarkMaintenance parks an unclaimed host, and says what for.
func MarkMaintenance(h *v1beta1.SSHHost, message string, now time.Time) {
	h.Status.State = v1beta1.HostMaintenance
	h.Status.Operation = nil
	SetCondition(h, now, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonMaintenance, message)
}

// remember adds a failure to the host's memory. A failed join is followed by a pause, whoever is to blame.
func remember(h *v1beta1.SSHHost, r Release, now time.Time) {
	if !r.Failed && !r.Blamed {
		return
	}
	failures := &v1beta1.HostFailures{}
	if h.Status.Failures != nil {
		failures = h.Status.Failures.DeepCopy()
	}
	failures.LastTime = new(metav1.NewTime(now))
	failures.LastReason = r.Reason
	failures.Successes = 0
	failures.ObservedGeneration = h.Generation
	if r.Failed {
		pause := maxFailureBackoff
		if failures.Count < 6 {
			pause = min(maxFailureBackoff, failureBackoff<<failures.Count)
		}
		// A machine that was wiped since its install fails to join although it counts as installed: install again next time.
		h.Status.InstalledProfile = ""
		failures.Count++
		failures.NotBefore = new(metav1.NewTime(now.Add(pause)))
	}
	if r.Blamed {
		blame(failures, v1beta1.HostFailure{Time: metav1.NewTime(now), Operation: cmp.Or(r.Operation, FailedOperation(h)), Reason: r.Reason}, now)
	}
	h.Status.Failures = failures
}

// FailedOperation is what ran on the machine when it failed: a join, if nothing says otherwise.
func FailedOperation(h *v1beta1.SSHHost) v1beta1.OperationType {
	switch {
	case h.Status.State == v1beta1.HostLeaving:
		return v1beta1.OperationLeave
	case h.Status.Operation != nil && h.Status.Operation.Type == v1beta1.OperationInstall:
		return v1beta1.OperationInstall
	}
	return v1beta1.OperationJoin
}

// markPin records the host key seen first; a recorded one is never replaced here.
func markPin(h *v1beta1.SSHHost, fingerprint string) {
	if h.Status.HostKeyFingerprint == "" {
		h.Status.HostKeyFingerprint = fingerprint
	}
}

func operation(kind v1beta1.OperationType, attempt int32, deadline, now time.Time) *v1beta1.HostOperation {
	return &v1beta1.HostOperation{Type: kind, Attempt: attempt, Started: metav1.NewTime(now), Deadline: new(metav1.NewTime(deadline))}
}

// MarkFailed remembers a failed join on a host that must leave before it rests.
func MarkFailed(h *v1beta1.SSHHost, r Release, now time.Time) {
	remember(h, r, now)
	h.Status.LastProbeError = r.Message
	if r.Blocked {
		MarkBlocked(h, r.Reason, r.Message, now)
	}
}
