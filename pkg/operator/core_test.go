package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	metricspod "sigs.k8s.io/karpenter/pkg/controllers/metrics/pod"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
)

// Of core's controllers, those that see the whole cluster are replaced, each under its own name; the others stay as they are.
func TestControllersThatSeeTheWholeClusterAreAdapted(t *testing.T) {
	core := []controller.Controller{
		&lifecycle.Controller{}, &disruption.Controller{}, &metricspod.Controller{}, &status.GenericObjectController[*corev1.Node]{},
		provisioning.NewPodController(nil, nil, nil), provisioning.NewNodeController(nil, nil),
	}
	turns := turn.New(turn.Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0))})
	adapted, err := adapt(core, turns, nil, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(adapted) != len(core) || adapted[0] != core[0] || adapted[5] != core[5] {
		t.Errorf("adapted: %T", adapted)
	}
	if c, ok := adapted[1].(*turn.Controller); !ok || c.Name() != "disruption" {
		t.Errorf("disruption became %T", adapted[1])
	}
	if c, ok := adapted[4].(*podTrigger); !ok || c.name != "provisioner.trigger.pod" {
		t.Errorf("the trigger of pending Pods became %T", adapted[4])
	}
	for i, name := range map[int]string{2: "metrics.pod", 3: "operatorpkg.node.status"} {
		if c, ok := adapted[i].(*ownership.Reporter); !ok || c.Name() != name {
			t.Errorf("%s became %T", name, adapted[i])
		}
	}
}

// A core that has renamed or dropped one of them is not started: the instance would disturb others.
func TestACoreWithoutThemIsRefused(t *testing.T) {
	_, err := adapt([]controller.Controller{&metricspod.Controller{}}, nil, nil, nil, true)
	if !fault.Is(err, fault.Cluster) || !strings.Contains(err.Error(), "disruption, pending Pods, status of Nodes") {
		t.Errorf("%v", err)
	}
	if _, err := adapt([]controller.Controller{&disruption.Controller{}, provisioning.NewPodController(nil, nil, nil)}, turn.New(turn.Options{}), nil, nil, false); err != nil {
		t.Errorf("with observability off: %v", err)
	}
}
