package host

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	// rememberedFailures is how many failures of a machine are kept.
	rememberedFailures = 5
	// failureWindow is how long one counts. A machine that fails once a day is used; one that fails three times in this time is not.
	failureWindow = 6 * time.Hour
	// quarantineAfter is how many failures in the window put a machine in quarantine.
	quarantineAfter = 3
	// redemption is how many joins in a row clear a machine's memory. The first alone may be luck.
	redemption = 2
	// maxAnswer is how much of an annotation's value is compared and kept.
	maxAnswer = 253
)

// quarantines are the lengths of the first quarantine, the second, and so on; the last is that of all that follow.
var quarantines = []time.Duration{10 * time.Minute, 30 * time.Minute, 2 * time.Hour, 8 * time.Hour, 24 * time.Hour}

// Health is how far a host is trusted to join, from what it did before.
type Health int

const (
	// Sound means that nothing is held against it.
	Sound Health = iota
	// Doubtful means that it failed lately; it is offered after those that did not.
	Doubtful
	// OnTrial means that it was in quarantine; it is offered last, and one more failure puts it back for longer.
	OnTrial
	// Quarantined means that it is not offered.
	Quarantined
)

// HealthOf scores a host's memory of failures.
func HealthOf(f *v1beta1.HostFailures, now time.Time) Health {
	switch {
	case f == nil:
		return Sound
	case f.QuarantinedUntil != nil && now.Before(f.QuarantinedUntil.Time):
		return Quarantined
	case f.Quarantines > 0:
		return OnTrial
	case f.Count > 0 || len(f.Recent) > 0:
		return Doubtful
	}
	return Sound
}

// blame adds a failure that the machine is to blame for, and puts it in quarantine if there were too many.
func blame(f *v1beta1.HostFailures, failure v1beta1.HostFailure, now time.Time) {
	recent := []v1beta1.HostFailure{}
	for _, earlier := range f.Recent {
		if now.Sub(earlier.Time.Time) < failureWindow {
			recent = append(recent, earlier)
		}
	}
	recent = append(recent, failure)
	f.Recent = recent[max(0, len(recent)-rememberedFailures):]
	if f.Quarantines == 0 && len(f.Recent) < quarantineAfter {
		return
	}
	f.Quarantines++
	until := metav1.NewTime(now.Add(quarantines[min(int(f.Quarantines), len(quarantines))-1]))
	f.QuarantinedUntil = &until
	if f.NotBefore.Before(&until) { // nil is before everything
		f.NotBefore = until.DeepCopy()
	}
}

// redeem is what is left of a host's memory after a join that went well: the newest half of the failures is forgiven, and everything after two
// in a row.
func redeem(f *v1beta1.HostFailures) *v1beta1.HostFailures {
	if f == nil {
		return nil
	}
	kept := f.Recent[:len(f.Recent)/2]
	if f.Successes+1 >= redemption || len(kept) == 0 && f.Quarantines == 0 {
		return nil
	}
	left := &v1beta1.HostFailures{
		Recent: kept, Quarantines: f.Quarantines, Successes: f.Successes + 1, ObservedGeneration: f.ObservedGeneration,
	}
	if len(kept) > 0 {
		newest := kept[len(kept)-1]
		left.LastTime, left.LastReason = newest.Time.DeepCopy(), newest.Reason
	}
	return left
}

// Forgivable tells whether a person wants a host's failures forgotten: by an annotation with a value that was not used before, or by a change
// of the spec since the last of them.
func Forgivable(h *v1beta1.SSHHost) bool {
	f, answer := h.Status.Failures, clearing(h)
	return f != nil && (answer != "" && answer != h.Status.FailuresCleared || f.ObservedGeneration != 0 && f.ObservedGeneration != h.Generation)
}

// Forgive forgets a host's failures if they are forgivable, and tells whether they were. The annotation's value is used up, whether or not there
// was anything to forget.
func Forgive(h *v1beta1.SSHHost) bool {
	forgivable := Forgivable(h)
	if forgivable {
		h.Status.Failures = nil
	}
	if answer := clearing(h); answer != "" {
		h.Status.FailuresCleared = answer
	}
	return forgivable
}

func clearing(h *v1beta1.SSHHost) string {
	value := h.Annotations[v1beta1.ClearFailuresAnnotation]
	return strings.ToValidUTF8(value[:min(len(value), maxAnswer)], "")
}

// Quarantine says, for people, why a host is in quarantine, until when, and how to end it. last is the last failure in full; empty: it is not
// at hand.
func Quarantine(f *v1beta1.HostFailures, last string) string {
	var each []string
	for _, failure := range f.Recent {
		each = append(each, fmt.Sprintf("%s %s at %s", failure.Operation, failure.Reason, failure.Time.UTC().Format(time.RFC3339)))
	}
	text := fmt.Sprintf("in quarantine until %s after %d failures of the machine (%s); after that it is offered last, on trial. Once it is mended, set the annotation %s to a value it has not had, such as today's date",
		f.QuarantinedUntil.UTC().Format(time.RFC3339), len(f.Recent), strings.Join(each, ", "), v1beta1.ClearFailuresAnnotation)
	if last != "" {
		text += ". Last failure: " + last
	}
	return text
}
