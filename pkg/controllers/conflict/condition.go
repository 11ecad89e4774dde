package conflict

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// conditionOf is what a class's condition says: the worst finding's type, and every finding's message. Nil if nothing concerns the class.
func conditionOf(class string, findings []Finding) *status.Condition {
	const shown = 5
	var reason string
	var messages []string
	for _, f := range findings {
		if !slices.Contains(f.Classes, class) {
			continue
		}
		if reason == "" {
			reason = f.Type
		}
		messages = append(messages, fmt.Sprintf("%s %s: %s", f.Object.Kind, objectName(f), f.Message))
	}
	if reason == "" {
		return nil
	}
	if more := len(messages) - shown; more > 0 {
		messages = append(messages[:shown], fmt.Sprintf("and %d more", more))
	}
	return &status.Condition{Type: v1beta1.ConditionOwnershipConflict, Status: metav1.ConditionTrue, Reason: reason, Message: strings.Join(messages, "; ")}
}

func objectName(f Finding) string {
	if f.Object.Namespace == "" {
		return f.Object.Name
	}
	return f.Object.Namespace + "/" + f.Object.Name
}

// tell puts a condition into a class, or takes it out if want is nil, and reports whether that changed the class.
func tell(class *v1beta1.SSHNodeClass, want *status.Condition, clk clock.PassiveClock) bool {
	if want == nil {
		return class.DropCondition(v1beta1.ConditionOwnershipConflict)
	}
	return class.TellCondition(*want, clk.Now())
}

// write makes a class's condition what it should be. The patch names the version it is made from, so that a condition which somebody else
// wrote meanwhile is never lost: the API server refuses it, and it is made anew.
func (c *Controller) write(ctx context.Context, class *v1beta1.SSHNodeClass, want *status.Condition) error {
	for attempt := 0; ; attempt++ {
		changed := class.DeepCopy()
		if !tell(changed, want, c.Clock) {
			return nil
		}
		err := c.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(class, client.MergeFromWithOptimisticLock{}))
		if !apierrors.IsConflict(err) || attempt == 3 {
			return client.IgnoreNotFound(err)
		}
		newest := &v1beta1.SSHNodeClass{}
		if err := c.Live.Get(ctx, client.ObjectKeyFromObject(class), newest); err != nil {
			return client.IgnoreNotFound(err)
		}
		if newest.UID != class.UID {
			return nil // another class; the next survey sees it
		}
		class = newest
	}
}
