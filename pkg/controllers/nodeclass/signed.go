package nodeclass

import (
	"fmt"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// unproven is what keeps the profile's scripts from running on the class's hosts in Verified mode; nothing where none is selected. A class none of
// whose hosts would run them is not Ready; of one that has others too, it is only said. verifies tells that it depends on the time.
func unproven(joinProfile *v1beta1.SSHJoinProfile, hosts []*v1beta1.SSHHost, now time.Time) (reason, message string, verifies bool) {
	revision := profile.RevisionOf(joinProfile)
	known := map[string]*fault.Error{} // most hosts trust the same signers
	refusing := 0
	var first *fault.Error
	for _, h := range hosts {
		if h.Spec.ExecMode != v1beta1.ExecModeVerified {
			continue
		}
		verifies = true
		signers := strings.Join(h.Spec.TrustedSigners, "\n")
		found, seen := known[signers]
		if !seen {
			found = fault.Of(checkScripts(revision, h.Spec.TrustedSigners, now))
			known[signers] = found
		}
		if found == nil {
			continue
		}
		if refusing++; first == nil {
			first = fault.New(found.Blame, found.Reason, found, "SSHHost %s", h.Name)
		}
	}
	switch {
	case first == nil:
		return "", "", verifies
	case refusing == len(hosts):
		return first.Reason, first.Error(), verifies
	}
	return "", fmt.Sprintf("%d of %d hosts in Verified mode would not run the profile's scripts: %s", refusing, len(hosts), first.Error()), verifies
}

// checkScripts checks all phases: a machine that joined must be able to leave.
func checkScripts(revision profile.Revision, trusted []string, now time.Time) error {
	signers, err := verified.ParseSigners(trusted)
	if err != nil {
		return err
	}
	for _, phase := range profile.Phases {
		if _, err := verified.CheckScript(revision.Profile, &revision.Spec, string(phase), signers, now); err != nil {
			return err
		}
	}
	return nil
}
