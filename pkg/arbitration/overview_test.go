package arbitration

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// owners is `pool owner` of every pool that somebody owns, in order of name.
func owners(o *Overview) []string {
	all, _ := o.snapshot()
	lines := []string{}
	for _, p := range all {
		lines = append(lines, fmt.Sprintf("%s %s", p.Name, p.owner))
	}
	slices.Sort(lines)
	return lines
}

func TestOwnersOfNodePoolsFollowClasses(t *testing.T) {
	o := NewOverview()
	expect := func(want ...string) {
		t.Helper()
		if got := owners(o); !slices.Equal(got, want) {
			t.Errorf("owners %v, want %v", got, want)
		}
	}
	o.Observe(nodePool("pool-a", "a"))
	o.Observe(nodePool("pool-aws", "", ofAWS))
	otherKind := nodePool("odd", "a")
	otherKind.Spec.Template.Spec.NodeClassRef.Kind = "SSHHost"
	o.Observe(otherKind)
	o.Observe(&corev1.Pod{})
	expect("odd *", "pool-aws *") // the class may come later
	o.Observe(sshClass("a", "seg-a"))
	expect("odd *", "pool-a seg-a", "pool-aws *")
	o.Forget(toolscache.DeletedFinalStateUnknown{Obj: sshClass("a", "seg-a")})
	o.Observe(sshClass("a", "seg-b"))
	expect("odd *", "pool-a seg-b", "pool-aws *")
	o.Forget(nodePool("pool-aws", ""))
	o.Forget(otherKind)
	expect("pool-a seg-b")
}

// NodePools change their status all the time, which must not make every verdict void.
func TestOnlyWhatDecidesCountsAsAChange(t *testing.T) {
	o := overviewOf(nodePool("pool-a", "a"))
	before := o.Generation()
	again := nodePool("pool-a", "a")
	again.ResourceVersion = "2"
	o.Observe(again)
	o.Observe(sshClass("a", "seg-a"))
	o.Observe(&corev1.Pod{})
	o.Forget(&corev1.Pod{})
	if o.Generation() != before {
		t.Error("an object that says the same counts as a change")
	}
	remade := nodePool("pool-a", "b")
	remade.UID = "other"
	o.Observe(remade)
	if o.Generation() == before {
		t.Error("a NodePool that was made anew does not count as a change")
	}
}

func TestTheOverviewKeepsTheEssentials(t *testing.T) {
	p := nodePool("pool-a", "a", weighing(7))
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	p.Annotations = map[string]string{"a": "b"}
	p.Status.Resources = corev1.ResourceList{}
	kept, err := essentials(p)
	if err != nil {
		t.Fatal(err)
	}
	got := kept.(*karpv1.NodePool)
	if got.ManagedFields != nil || got.Annotations != nil || got.Status.Resources != nil {
		t.Errorf("kept %+v", got)
	}
	if got.Name != "pool-a" || got.UID != p.UID || got.Generation != 1 || *got.Spec.Weight != 7 {
		t.Errorf("lost something: %+v", got)
	}
}
