package nodeclass

import (
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

func conditionOf(class *v1beta1.SSHNodeClass, kind string) *status.Condition {
	for i := range class.Status.Conditions {
		if class.Status.Conditions[i].Type == kind {
			return &class.Status.Conditions[i]
		}
	}
	return nil
}

// without findings.
func sound(s *v1beta1.Scripts) {
	s.Install = "set -euo pipefail"
	s.Join = "set -euo pipefail\nkubelet --register-with-taints=\"$KPSSH_TAINTS\""
	s.Leave = "set -euo pipefail\nsystemctl disable --now kubelet"
}

// E7, and section 2 #1 #45 #58: what a profile gets wrong is told, in a condition and by events, and strands nobody whose nodes come today.
func TestFindingsAreToldAndDoNotStrand(t *testing.T) {
	w := newWorld(t, aClass(), aProfile(script(func(s *v1beta1.Scripts) {
		sound(s)
		s.Join = "set -euxo pipefail\necho \"$KPSSH_BOOTSTRAP_TOKEN\""
		s.Leave = "set -euo pipefail"
	})), aHost("h1", true, nil))
	w.must("c1")
	class := w.class("c1")
	if !class.StatusConditions().IsTrue(status.ConditionReady) {
		t.Errorf("findings make the class not Ready: %+v", class.Status.Conditions)
	}
	checked := conditionOf(class, v1beta1.ConditionProfileChecked)
	if checked == nil || checked.Status != metav1.ConditionFalse || checked.Reason != v1beta1.ReasonProfileFindings {
		t.Fatalf("condition is %+v", checked)
	}
	for _, rule := range []string{profile.RuleTraced, profile.RuleUnregisteredTaint, profile.RuleUnitStaysEnabled} {
		if !strings.Contains(checked.Message, rule) {
			t.Errorf("the condition does not tell of %s: %s", rule, checked.Message)
		}
		if event := <-w.recorder.Events; !strings.Contains(strings.Join([]string{profile.RuleTraced, profile.RuleUnregisteredTaint, profile.RuleUnitStaysEnabled}, " "), strings.Fields(event)[1]) {
			t.Errorf("event %q", event)
		}
	}

	// Nothing new, nothing said and nothing written.
	w.writes = nil
	w.must("c1")
	if len(w.recorder.Events) > 0 || len(w.writes) > 0 {
		t.Errorf("said again: %d events, writes %v", len(w.recorder.Events), w.writes)
	}

	mended := aProfile()
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(mended), mended); err != nil {
		t.Fatal(err)
	}
	sound(&mended.Spec.Scripts)
	mended.Generation++
	if err := w.Client.Update(t.Context(), mended); err != nil {
		t.Fatal(err)
	}
	ready := conditionOf(class, status.ConditionReady).LastTransitionTime
	w.must("c1")
	class = w.class("c1")
	if checked := conditionOf(class, v1beta1.ConditionProfileChecked); checked == nil || checked.Status != metav1.ConditionTrue {
		t.Errorf("condition of a mended profile is %+v", checked)
	}
	if now := conditionOf(class, status.ConditionReady).LastTransitionTime; !now.Equal(&ready) {
		t.Error("Ready changed with it")
	}
	if err := w.Client.Delete(t.Context(), mended); err != nil {
		t.Fatal(err)
	}
	w.must("c1")
	if class = w.class("c1"); conditionOf(class, v1beta1.ConditionProfileChecked) != nil {
		t.Error("something is said of a profile that is gone")
	}
}

func TestManyFindingsFitACondition(t *testing.T) {
	check := &profileCheck{profile: "p@1"}
	for range 500 {
		check.findings = append(check.findings, profile.Finding{Phase: profile.Join, Rule: profile.RuleTraced, Message: strings.Repeat("x", 100)})
	}
	message := check.condition().Message
	if len(message) > maxMessage || !strings.Contains(message, "more") {
		t.Errorf("%d characters, ending in %q", len(message), message[len(message)-20:])
	}
}
