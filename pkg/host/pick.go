package host

import (
	"cmp"
	"slices"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Order sorts hosts in the order in which claims take them: those that are being prewarmed last, and those on trial before them, then least recently failed first (never failed before all), then those that
// have the wanted profile installed, for they join faster, then the oldest, then by name. It is total, so two processes that
// see the same hosts pick the same one.
func Order(hosts []*v1beta1.SSHHost, marker string) {
	slices.SortFunc(hosts, func(a, b *v1beta1.SSHHost) int {
		return cmp.Or(
			compareBool(Prewarming(a), Prewarming(b)), // a claim would have to install anew
			compareBool(onTrial(a), onTrial(b)),
			lastFailure(a).Compare(lastFailure(b)),
			-compareBool(a.Status.InstalledProfile == marker, b.Status.InstalledProfile == marker),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// onTrial tells whether a free host has been in quarantine and has not redeemed itself since.
func onTrial(h *v1beta1.SSHHost) bool {
	return h.Status.Failures != nil && h.Status.Failures.Quarantines > 0
}

func lastFailure(h *v1beta1.SSHHost) time.Time {
	if h.Status.Failures == nil || h.Status.Failures.LastTime == nil {
		return time.Time{}
	}
	return h.Status.Failures.LastTime.Time
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
