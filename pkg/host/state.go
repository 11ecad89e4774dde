package host

import (
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Claimable tells whether a host may be claimed, and if not, why, in words for people.
// It depends on the object alone, so an instance type's availability changes only when a host does.
func Claimable(h *v1beta1.SSHHost) (ok bool, why string) {
	switch {
	case !h.DeletionTimestamp.IsZero():
		return false, "it is being deleted"
	case h.Status.ClaimRef != nil:
		return false, "it is claimed by " + h.Status.ClaimRef.Name
	case h.InMaintenance():
		return false, "it is in maintenance"
	case LeavePending(h):
		return false, "its machine has yet to leave the cluster"
	case Blocked(h) != nil:
		return false, "the controller cannot get at it: " + Blocked(h).Reason
	case h.Status.State != v1beta1.HostAvailable:
		return false, "its state is " + string(State(h))
	}
	return true, ""
}

// Prewarming tells whether the install script runs on a host that nobody claims.
func Prewarming(h *v1beta1.SSHHost) bool {
	return h.Status.ClaimRef == nil && h.Status.Operation != nil && h.Status.Operation.Type == v1beta1.OperationInstall
}

// State is the host's state; a host that has none is Pending.
func State(h *v1beta1.SSHHost) v1beta1.HostState {
	if h.Status.State == "" {
		return v1beta1.HostPending
	}
	return h.Status.State
}

// LeavePending tells whether the machine must run its leave script before it can be claimed again.
func LeavePending(h *v1beta1.SSHHost) bool {
	return apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionLeavePending)
}

// Blocked is the condition that says what keeps the controller from the machine; nil: nothing does.
func Blocked(h *v1beta1.SSHHost) *metav1.Condition {
	if found := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionConnectable); found != nil && found.Status == metav1.ConditionFalse {
		return found
	}
	return nil
}

// Holds tells whether the host is held for this claim and may still join for it: the fence of every write of a join.
func Holds(h *v1beta1.SSHHost, uid types.UID) bool {
	return h.Status.ClaimRef != nil && h.Status.ClaimRef.UID == uid &&
		(h.Status.State == v1beta1.HostClaimed || h.Status.State == v1beta1.HostInUse)
}

// Leaves tells whether the host is held for this claim, or for none if uid is empty, in order to leave.
func Leaves(h *v1beta1.SSHHost, uid types.UID) bool {
	if h.Status.State != v1beta1.HostLeaving {
		return false
	}
	if h.Status.ClaimRef == nil {
		return uid == ""
	}
	return h.Status.ClaimRef.UID == uid
}

// Touched tells whether the machine may be, or become, a member of the cluster for its present claim, so that it must leave
// before the claim ends. An install alone changes no membership. The join records its token before it runs.
func Touched(h *v1beta1.SSHHost) bool {
	return h.Status.State == v1beta1.HostInUse || h.Status.BootstrapTokenID != "" ||
		(h.Status.Operation != nil && (h.Status.Operation.Type == v1beta1.OperationJoin || h.Status.Operation.Type == v1beta1.OperationLeave)) ||
		apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionJoined) != nil
}

// SetCondition sets a condition with the host's generation. The message is cut to what the API accepts.
func SetCondition(h *v1beta1.SSHHost, now time.Time, kind string, status metav1.ConditionStatus, reason, message string) {
	const limit = 32768 // metav1.Condition
	if runes := []rune(message); len(message) > limit {
		message = string(runes[:min(len(runes), limit/4)])
	}
	condition := metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: h.Generation,
		LastTransitionTime: metav1.NewTime(now),
	}
	apimeta.SetStatusCondition(&h.Status.Conditions, condition)
}

// setReady derives the Ready condition from the rest of the status; every write passes here, so that it never contradicts the state.
func setReady(h *v1beta1.SSHHost, now time.Time) {
	status, reason, message := metav1.ConditionTrue, v1beta1.ReasonProbeSucceeded, string(State(h))
	switch State(h) {
	case v1beta1.HostUnhealthy:
		status, reason, message = metav1.ConditionFalse, v1beta1.ReasonProbeFailed, h.Status.LastProbeError
		if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); ready != nil && ready.Status == metav1.ConditionFalse &&
			ready.Message == message && ready.Reason != v1beta1.ReasonMaintenance && ready.Reason != v1beta1.ReasonLeaving {
			reason = ready.Reason // the writer that parked the host gave a closer reason
		}
	case v1beta1.HostMaintenance:
		status, reason, message = metav1.ConditionFalse, v1beta1.ReasonMaintenance, "remove the annotation "+v1beta1.MaintenanceAnnotation+" to use this host again"
		if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); !h.InMaintenance() && ready != nil && ready.Reason == reason {
			message = ready.Message // a window's
		}
	case v1beta1.HostPending:
		status, reason, message = metav1.ConditionUnknown, v1beta1.ReasonAwaitingProbe, "the host has not been probed yet"
	case v1beta1.HostLeaving:
		status, reason, message = metav1.ConditionFalse, v1beta1.ReasonLeaving, "the machine is leaving the cluster"
	}
	if blocked := Blocked(h); blocked != nil {
		switch State(h) {
		case v1beta1.HostAvailable:
			status, reason, message = metav1.ConditionFalse, blocked.Reason, blocked.Message
		case v1beta1.HostPending:
			reason, message = blocked.Reason, blocked.Message
		}
	}
	SetCondition(h, now, v1beta1.ConditionReady, status, reason, message)
}
