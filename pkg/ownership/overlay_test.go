package ownership

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// S6: every instance evaluates every NodeOverlay for its own NodePools; one of them writes its status, and the others' writes are left
// out without an error, which core would answer by trying again.
func TestTheStatusOfAnOverlayHasOneWriter(t *testing.T) {
	for _, row := range []struct {
		name   string
		labels map[string]string
		writes int
	}{
		{name: "of this instance", labels: map[string]string{HomeInstanceLabel: me.Instance}, writes: 2},
		{name: "of another instance", labels: map[string]string{HomeInstanceLabel: "b"}},
		{name: "without a label it is the default instance's", labels: nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newGuardBench(t)
			overlay := &v1alpha1.NodeOverlay{ObjectMeta: metav1.ObjectMeta{Name: "o", Labels: row.labels}}
			before := overlay.DeepCopy()
			overlay.StatusConditions().SetFalse(v1alpha1.ConditionTypeValidationSucceeded, "Conflict", "conflict with another overlay")
			if err := b.client.Status().Patch(t.Context(), overlay, client.MergeFrom(before)); err != nil {
				t.Error(err)
			}
			if err := b.client.Status().Update(t.Context(), overlay); err != nil {
				t.Error(err)
			}
			if b.writes != row.writes {
				t.Errorf("%d writes, want %d", b.writes, row.writes)
			}
		})
	}
}
