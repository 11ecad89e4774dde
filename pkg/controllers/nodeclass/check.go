package nodeclass

import (
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// profileCheck is what the linter says about the profile of a class. It never decides Ready: the linter reads text and can be wrong, and
// classes whose profiles work today must not stop doing so because a release of the controller knows a rule more.
type profileCheck struct {
	// profile is the marker of the version that was read; empty if there is no such profile.
	profile  string
	findings []profile.Finding
}

// maxMessage bounds the condition's message; a condition holds 32768 characters, and etcd's objects have better use for them.
const maxMessage = 4096

// condition is ProfileChecked, without times. Its message has all findings, one a line, as far as there is room.
func (p *profileCheck) condition() status.Condition {
	if len(p.findings) == 0 {
		return status.Condition{
			Type: v1beta1.ConditionProfileChecked, Status: metav1.ConditionTrue, Reason: v1beta1.ConditionProfileChecked,
			Message: p.profile + ": no findings",
		}
	}
	lines := []string{fmt.Sprintf("%s: %d findings; nodes come all the same", p.profile, len(p.findings))}
	length := len(lines[0])
	for i, found := range p.findings {
		line := found.String()
		if length += len(line) + 1; length > maxMessage-20 {
			lines = append(lines, fmt.Sprintf("and %d more", len(p.findings)-i))
			break
		}
		lines = append(lines, line)
	}
	return status.Condition{
		Type: v1beta1.ConditionProfileChecked, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonProfileFindings,
		Message: strings.Join(lines, "\n"),
	}
}

// tell puts the condition into a class's status, and reports whether that changed anything. Nil changes nothing: the profile was not looked at.
func (p *profileCheck) tell(class *v1beta1.SSHNodeClass, clk clock.Clock) bool {
	switch {
	case p == nil:
		return false
	case p.profile == "":
		return class.DropCondition(v1beta1.ConditionProfileChecked)
	}
	return class.TellCondition(p.condition(), clk.Now())
}

// announce makes an event of each rule that has findings, when what is said has changed between two states of a class.
func (p *profileCheck) announce(recorder events.EventRecorder, was, is *v1beta1.SSHNodeClass) {
	if p == nil || message(was) == message(is) {
		return
	}
	var told []string
	for _, found := range p.findings {
		if slices.Contains(told, found.Rule) {
			continue
		}
		told = append(told, found.Rule)
		recorder.Eventf(is, nil, corev1.EventTypeWarning, found.Rule, "CheckProfile", "SSHJoinProfile %s, %s: %s", p.profile, found.Phase, found.Message)
	}
}

// message of a class's condition ProfileChecked; empty without one.
func message(class *v1beta1.SSHNodeClass) string {
	for _, c := range class.Status.Conditions {
		if c.Type == v1beta1.ConditionProfileChecked {
			return c.Message
		}
	}
	return ""
}
