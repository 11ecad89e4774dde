package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloud "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
)

// ungated lets every disruption begin at once.
type ungated struct{}

func (ungated) Admit(context.Context) error { return nil }

// adapt replaces those of core's controllers that would act for, or report on, more than this instance. The others work on kinds
// that the views of pkg/ownership divide, and are left as they are. Core's controllers are told apart by their types: one of a name
// that we expect and do not find means that core has changed, and is an error.
//
//   - disruption: takes turns with the other instances.
//   - pending Pods: those that this instance is not shown do not wake the provisioner.
//   - Pod metrics: of own nodes' pods, and of pending ones that this instance is shown.
//   - Node conditions, as events and metrics: of own Nodes.
//
// Without turns, disruption is left as it is too. Core's Node metrics cannot be divided before they are computed; metrics.OwnNodes does it when they are read.
func adapt(core []controller.Controller, turns *turn.Turn, cluster *state.Cluster, hidden func(*corev1.Pod) bool, observed bool) ([]controller.Controller, error) {
	missing := map[string]bool{"disruption": true, "pending Pods": true}
	if observed {
		missing["metrics of Pods"], missing["status of Nodes"] = true, true
	}
	adapted := make([]controller.Controller, 0, len(core))
	for _, c := range core {
		switch c := c.(type) {
		case *disruption.Controller:
			delete(missing, "disruption")
			if turns == nil {
				adapted = append(adapted, c)
			} else {
				adapted = append(adapted, turn.NewController(turns, c, cluster))
			}
		case *provisioning.PodController:
			delete(missing, "pending Pods")
			adapted = append(adapted, newPodTrigger(c, hidden))
		case *metricspod.Controller:
			delete(missing, "metrics of Pods")
			adapted = append(adapted, ownership.NewReporter("metrics.pod", &corev1.Pod{}, c, 1))
		case *status.GenericObjectController[*corev1.Node]:
			delete(missing, "status of Nodes")
			adapted = append(adapted, ownership.NewReporter("operatorpkg.node.status", &corev1.Node{}, c, 10))
		default:
			adapted = append(adapted, c)
		}
	}
	if len(missing) == 0 {
		return adapted, nil
	}
	var names []string
	for name := range missing {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, fault.New(fault.Cluster, "CoreChanged", fmt.Errorf("core has no controller for %s", strings.Join(names, ", ")),
		"this build was made for another karpenter core, and would disturb other instances")
}

// ownOverlays keeps NodeOverlays to this instance's NodePools. Core asks for the types of each of its NodeClaims' pools, and one may have been
// pointed at another instance's class since: overlays, which core applies to what it lists, have never seen that pool, and core would report
// an error for each such NodeClaim again and again.
type ownOverlays struct {
	karpcloud.CloudProvider
	owns func(*karpv1.NodePool) bool
}

// GetInstanceTypes of a pool that is not this instance's are none.
func (o *ownOverlays) GetInstanceTypes(ctx context.Context, pool *karpv1.NodePool) ([]*karpcloud.InstanceType, error) {
	if !o.owns(pool) {
		return nil, nil
	}
	return o.CloudProvider.GetInstanceTypes(ctx, pool)
}
