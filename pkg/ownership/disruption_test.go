package ownership

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
)

// countingGate admits and counts.
type countingGate struct{ asked int }

func (g *countingGate) Admit(context.Context) error { g.asked++; return nil }

// Of all that core writes, the taint and the condition by which its disruption controller begins a disruption need the turn: not
// their removal, and not what termination or other controllers write.
func TestWhatBeginsADisruptionNeedsTheTurn(t *testing.T) {
	node := func(taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{ClassLabel: "mine"}},
			Spec:       corev1.NodeSpec{Taints: taints},
		}
	}
	claim := func(marked bool) *karpv1.NodeClaim {
		c := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "u"}, Spec: karpv1.NodeClaimSpec{NodeClassRef: ref("mine")}}
		if marked {
			c.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDisruptionReason, "Empty", "Empty")
		}
		return c
	}
	for _, row := range []struct {
		name       string
		controller string
		object     client.Object
		asks       bool
	}{
		{name: "taint", controller: "disruption", object: node(karpv1.DisruptedNoScheduleTaint), asks: true},
		{name: "taint taken away", controller: "disruption", object: node(corev1.Taint{Key: "other"})},
		{name: "condition", controller: "disruption", object: claim(true), asks: true},
		{name: "condition taken away", controller: "disruption", object: claim(false)},
		{name: "taint of a Node that is deleted", controller: "node.termination", object: node(karpv1.DisruptedNoScheduleTaint)},
		{name: "roll-back of a command", controller: "disruption.queue", object: node()},
		{name: "status in mid-disruption", controller: "nodeclaim.lifecycle", object: claim(true)},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx := injection.WithControllerName(t.Context(), row.controller)
			c := newGuardBench(t).client
			if err := c.admit(ctx, verbPatch, row.object); errors.Is(err, turn.ErrNotMyTurn) != row.asks {
				t.Errorf("without turns: %v", err)
			}
			gate := &countingGate{}
			c.seam.TakeTurns(gate)
			if err := c.admit(ctx, verbPatch, row.object); err != nil || (gate.asked == 1) != row.asks {
				t.Errorf("asked %d times: %v", gate.asked, err)
			}
		})
	}
}

// A foreign object is refused before anybody's turn is asked for.
func TestAForeignNodeNeedsNoTurn(t *testing.T) {
	c := newGuardBench(t).client
	gate := &countingGate{}
	c.seam.TakeTurns(gate)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Labels: map[string]string{ClassLabel: "other"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{karpv1.DisruptedNoScheduleTaint}}}
	err := c.admit(injection.WithControllerName(t.Context(), "disruption"), verbPatch, node)
	if !errors.Is(err, ErrForeign) || gate.asked != 0 {
		t.Errorf("asked %d times: %v", gate.asked, err)
	}
}
