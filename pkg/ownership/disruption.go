package ownership

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
)

// disruptionController is the name under which core's disruption controller calls the client. Core's termination controller writes
// the same taint, on Nodes that are being deleted already.
const disruptionController = "disruption"

// Gate allows the writes that begin a voluntary disruption.
type Gate interface {
	// Admit returns nil when a disruption may begin.
	Admit(context.Context) error
}

// TakeTurns says whom to ask before a voluntary disruption begins. Until it is called none may: an instance that was put together
// without turns must not consolidate onto the others' nodes. Call it before the manager starts.
func (s *Seam) TakeTurns(gate Gate) { s.turn = gate }

// closed is the gate of an instance that takes no turns.
type closed struct{}

func (closed) Admit(context.Context) error {
	return fault.New(fault.Cluster, "TurnMissing", turn.ErrNotMyTurn, "this instance was put together without turns of disruption")
}

// beginsDisruption tells core's two writes that begin a disruption: the taint on a Node, and then the condition on its NodeClaim.
// Both are asked about, and the second answer is what counts (package turn says why).
func beginsDisruption(ctx context.Context, o client.Object) bool {
	if injection.GetControllerName(ctx) != disruptionController {
		return false
	}
	switch o := o.(type) {
	case *corev1.Node:
		return turn.Tainted(o)
	case *karpv1.NodeClaim:
		return o.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason).IsTrue()
	}
	return false
}
