package probe

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/maintenance"
)

// happening is an event about a host.
type happening struct {
	warning         bool
	reason, message string
}

// record writes a probe's outcome into a host's status and says what is news. Events are for changes, not for states: a host that stays
// as it is causes none, however often it is probed (section 3 #41).
func record(h *v1beta1.SSHHost, o observation, v verdict, now time.Time) []happening {
	was, wasReason := host.State(h), readyReason(h)
	probed := metav1.NewTime(now)

	news := append(recordHostKey(h, o, now), recordWindows(h, now)...)
	if o.err == nil {
		news = append(news, recordFacts(h, o, v, now)...)
	}
	h.Status.LastProbeTime = &probed
	h.Status.ObservedGeneration = h.Generation
	h.Status.Operation = nil

	blocked := host.Blocked(h)
	if v.state == "" {
		host.MarkBlocked(h, v.reason, v.message, now)
		if blocked == nil || blocked.Reason != v.reason {
			news = append(news, happening{true, v.reason, v.message})
		}
		return news
	}
	host.MarkReached(h)
	switch v.state {
	case v1beta1.HostUnhealthy:
		if v.reason == "" {
			break
		}
		host.MarkUnhealthy(h, v.reason, v.message, now)
		if (was != v1beta1.HostUnhealthy || wasReason != v.reason) && v.reason != v1beta1.ReasonBackoff {
			news = append(news, happening{true, v.reason, v.message})
		}
	case v1beta1.HostLeaving:
		host.MarkLeaving(h)
		news = append(news, happening{v.reason == eventZombieKubelet, v.reason, v.message})
	case v1beta1.HostAvailable:
		h.Status.State = v1beta1.HostAvailable
		h.Status.LastProbeError = ""
		switch {
		case was == v1beta1.HostUnhealthy, blocked != nil:
			news = append(news, happening{false, eventProbeRecovered, "the machine answers and is available again"})
		case was == v1beta1.HostPending:
			news = append(news, happening{false, v1beta1.ReasonProbeSucceeded, "the machine answers and is available"})
		}
	}
	return news
}

// recordHostKey records which key the machine showed. The transport has verified it: against what a person pinned or quoted, or against
// the recorded key; only a host without any is trusted at first sight.
func recordHostKey(h *v1beta1.SSHHost, o observation, now time.Time) []happening {
	if o.err != nil {
		if !o.err.Before && wrongHostKey(o.err) {
			host.SetCondition(h, now, v1beta1.ConditionHostKeyVerified, metav1.ConditionFalse, v1beta1.ReasonHostKeyMismatch, o.err.Error())
		}
		return nil
	}
	host.SetCondition(h, now, v1beta1.ConditionHostKeyVerified, metav1.ConditionTrue, v1beta1.ReasonHostKeyMatched, o.fingerprint)
	known := h.Status.HostKeyFingerprint
	h.Status.HostKeyFingerprint = o.fingerprint
	switch known {
	case o.fingerprint:
		return nil
	case "":
		return []happening{{false, eventHostKeyRecorded, "host key " + o.fingerprint + " was recorded at first contact and is required from now on"}}
	}
	return []happening{{false, eventHostKeyReplaced, "host key " + o.fingerprint + " replaces the recorded " + known}}
}

// recordWindows tells of a maintenance window that cannot be read, which the API server accepts: it knows neither calendars nor time zones.
func recordWindows(h *v1beta1.SSHHost, now time.Time) []happening {
	_, err := maintenance.At(h.Spec.MaintenanceWindows, now)
	if err == nil {
		apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionMaintenanceScheduled)
		return nil
	}
	known := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionMaintenanceScheduled)
	if known != nil && known.Message == err.Error() {
		return nil
	}
	host.SetCondition(h, now, v1beta1.ConditionMaintenanceScheduled, metav1.ConditionFalse, v1beta1.ReasonMaintenanceWindowInvalid, err.Error())
	return []happening{{true, v1beta1.ReasonMaintenanceWindowInvalid, err.Error()}}
}

func recordFacts(h *v1beta1.SSHHost, o observation, v verdict, now time.Time) []happening {
	var news []happening

	// Drift of an older spec says nothing about this one.
	drifted := h.Status.ObservedGeneration == h.Generation && len(smaller(h.Status.ObservedCapacity, h.Spec.Capacity)) > 0
	h.Status.ObservedCapacity = corev1.ResourceList{corev1.ResourceCPU: o.facts.cpu, corev1.ResourceMemory: o.facts.memory}
	if found := smaller(h.Status.ObservedCapacity, h.Spec.Capacity); len(found) > 0 && !drifted {
		news = append(news, happening{true, eventCapacityDrift, fmt.Sprintf("the machine has less than spec.capacity says: %s", strings.Join(found, ", "))})
	}
	h.Status.ObservedArch = o.facts.arch

	synced := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionClockSynced)
	if o.skew.Abs() > skewNoticed {
		host.SetCondition(h, now, v1beta1.ConditionClockSynced, metav1.ConditionFalse, v1beta1.ReasonClockSkewed, skewMessage(o.skew))
		if (synced == nil || synced.Status != metav1.ConditionFalse) && v.reason != v1beta1.ReasonClockSkewed {
			news = append(news, happening{true, v1beta1.ReasonClockSkewed, skewMessage(o.skew)})
		}
	} else {
		host.SetCondition(h, now, v1beta1.ConditionClockSynced, metav1.ConditionTrue, v1beta1.ReasonClockInSync, "")
	}

	if v.reason == v1beta1.ReasonHostOwnedElsewhere {
		host.SetCondition(h, now, v1beta1.ConditionOwnedElsewhere, metav1.ConditionTrue, v1beta1.ReasonHostOwnedElsewhere, v.message)
		if owner := readOwner(o.facts.owner); host.LeavePending(h) && owner.Cluster != "" && owner.Host != "" {
			// A machine gets another owner when it has left the one before, though the one before never heard of it, or when a person said so.
			host.MarkLeaveOvertaken(h)
			news = append(news, happening{false, eventLeaveOvertaken, "the machine has another owner since, so there is nothing left here to undo: " + owner.String()})
		}
	} else {
		apimeta.RemoveStatusCondition(&h.Status.Conditions, v1beta1.ConditionOwnedElsewhere)
	}
	return news
}

// smaller lists, of cpu and memory, what was observed to be less than specified.
func smaller(observed, specified corev1.ResourceList) []string {
	var found []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		has, known := observed[name]
		says, asked := specified[name]
		if known && asked && has.Cmp(says) < 0 {
			found = append(found, fmt.Sprintf("%s %s of %s", name, has.String(), says.String()))
		}
	}
	return found
}
