package nodeclass

import (
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Section 3 #39: a full pool cannot roll, and says so; one that can says how far it is.
func TestNodesBehindTheirProfileAreTold(t *testing.T) {
	inUse := func(name, installed, claim string) *v1beta1.SSHHost {
		h := aHost(name, false, nil)
		h.Status.State, h.Status.InstalledProfile = v1beta1.HostInUse, installed
		h.Status.ClaimRef = &v1beta1.ClaimReference{Name: claim, UID: "u"}
		return h
	}
	nodeClaim := func(name, class string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: class}}}
	}
	replaced, ending := nodeClaim("replaced", "c1"), nodeClaim("ending", "c1")
	replaced.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeDisruptionReason, Status: metav1.ConditionTrue, Reason: "Drifted"}}
	ending.DeletionTimestamp, ending.Finalizers = new(metav1.NewTime(noon)), []string{"f"}
	current, old := aProfile().Marker(), aHost("h1", true, nil)
	old.Status.InstalledProfile = "p@0"
	for name, row := range map[string]struct {
		hosts        []*v1beta1.SSHHost
		reason, says string
	}{
		"no nodes":                                            {[]*v1beta1.SSHHost{aHost("h1", true, nil)}, "", ""},
		"all are current":                                     {[]*v1beta1.SSHHost{inUse("h1", current, "n1")}, "", ""},
		"a free host may be behind":                           {[]*v1beta1.SSHHost{old}, "", ""},
		"it is not known what was installed":                  {[]*v1beta1.SSHHost{inUse("h1", "", "n1")}, "", ""},
		"another class's node":                                {[]*v1beta1.SSHHost{inUse("h1", "p@0", "other")}, "", ""},
		"behind, and one is free":                             {[]*v1beta1.SSHHost{inUse("h1", "p@0", "n1"), inUse("h2", current, "n2"), aHost("h3", true, nil)}, v1beta1.ReasonRolling, "1 of 2 nodes"},
		"behind, and none is free":                            {[]*v1beta1.SSHHost{inUse("h2", "p@0", "n2"), inUse("h1", "p@0", "n1")}, v1beta1.ReasonNoSpareHost, "h1, h2"},
		"the last spare host is the replacement, which joins": {[]*v1beta1.SSHHost{inUse("h1", "p@0", "replaced"), aHost("h2", false, nil)}, v1beta1.ReasonRolling, "1 of 1 nodes"},
		"the replacement has joined":                          {[]*v1beta1.SSHHost{inUse("h1", "p@0", "ending"), inUse("h2", current, "n2")}, v1beta1.ReasonRolling, "1 of 2 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, aClass(), aProfile(), nodeClaim("n1", "c1"), nodeClaim("n2", "c1"), nodeClaim("other", "c2"), replaced.DeepCopy(), ending.DeepCopy())
			for _, h := range row.hosts {
				if err := w.Client.Create(t.Context(), h); err != nil {
					t.Fatal(err)
				}
				w.Inventory.Observe(h)
			}
			w.must("c1")
			told := w.class("c1").StatusConditions().Get(v1beta1.ConditionNodesCurrent)
			switch {
			case row.reason == "" && !told.IsTrue():
				t.Errorf("got %+v", told)
			case row.reason != "" && (!told.IsFalse() || told.Reason != row.reason || !strings.Contains(told.Message, row.says)):
				t.Errorf("got %+v, want %s saying %q", told, row.reason, row.says)
			}
			writes := len(w.writes)
			if w.must("c1"); len(w.writes) != writes {
				t.Errorf("nothing changed, and it wrote %v", w.writes[writes:])
			}
		})
	}
}
