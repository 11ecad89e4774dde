package credentials

import (
	"bytes"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

var fingerprint = regexp.MustCompile(`^SHA256:[A-Za-z0-9+/]{43}$`)

// expectation is what the machine's host key must match: pins, in the format of the Secret's knownHost entry, or one remembered
// fingerprint. Both empty: the key seen first is accepted.
type expectation struct {
	pins    []byte
	trusted string
}

// expectedHostKey decides which host keys are good, from what a person pinned (outranks all), what was seen first, and what a person
// quoted after the machine was re-imaged. A quoted fingerprint is accepted besides the recorded one, so that the annotation may be set
// before the machine changes; once the new key was seen, the probe records it and the old one is refused from then on.
func expectedHostKey(secret *corev1.Secret, host *v1beta1.SSHHost) expectation {
	if knownHost := secret.Data[KnownHostEntry]; len(bytes.TrimSpace(knownHost)) > 0 {
		return expectation{pins: knownHost}
	}
	if len(bytes.TrimSpace(secret.Data[HostCAEntry])) > 0 {
		return expectation{} // an authority is what a person pinned
	}
	recorded, quoted := host.Status.HostKeyFingerprint, QuotedFingerprint(host)
	switch {
	case quoted == "" || quoted == recorded:
		return expectation{trusted: recorded}
	case recorded == "":
		return expectation{trusted: quoted}
	default:
		return expectation{pins: []byte(recorded + "\n" + quoted + "\n")}
	}
}

// QuotedFingerprint is the fingerprint in the host's TrustHostKeyAnnotation, or empty when there is none or it is not one.
func QuotedFingerprint(host *v1beta1.SSHHost) string {
	quoted := strings.TrimSpace(host.Annotations[v1beta1.TrustHostKeyAnnotation])
	if !fingerprint.MatchString(quoted) {
		return ""
	}
	return quoted
}
