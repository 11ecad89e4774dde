package integration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// A6, section 3 #1: while one host's install takes two minutes, a pod that fits another host gets its node as fast as ever, because
// no NodeClaim waits for its provider ID.
func TestASlowInstallDelaysNobodyElse(t *testing.T) {
	s := begin(t, "slow", 4*time.Second, sim.Spec{CPU: 8}, sim.Spec{CPU: 4}, sim.Spec{CPU: 4})
	s.fleet.Machine("slow-000").Slow("install", 120*time.Second)
	s.start("")
	s.allIn(v1beta1.HostAvailable, time.Minute)

	s.pod("slow-calm") // how long it takes when nothing else runs
	calm := s.running(1, time.Minute)

	s.pod("slow-big", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("7")
	})
	s.eventually(time.Minute, "the slow install runs", func() (bool, string) {
		for _, h := range s.hosts() {
			if h.Name == "slow-000" && h.Status.Operation != nil {
				return h.Status.Operation.Type == v1beta1.OperationInstall, string(h.Status.Operation.Type)
			}
		}
		return false, "no operation"
	})
	s.pod("slow-beside")
	beside := s.running(2, time.Minute)
	unsynced := s.metric("karpenter_cluster_state_unsynced_time_seconds")
	t.Logf("\npod to Running: %.1fs with nothing else going on, %.1fs beside a 120s install; core's cluster state unsynced for %.1fs",
		calm.Seconds(), beside.Seconds(), unsynced)
	if beside > 3*calm+5*time.Second {
		t.Errorf("a slow install delayed another pod: %.1fs instead of %.1fs", beside.Seconds(), calm.Seconds())
	}
	if unsynced > 5 {
		t.Errorf("core's cluster state was unsynced for %.1fs", unsynced)
	}

	// Section 3 #40: the 120 s are not waited for when the NodeClaim goes away.
	s.deleteClaims()
	s.allIn(v1beta1.HostAvailable, 90*time.Second)
	if s.fleet.Machine("slow-000").Counters().Runs["join"] != 0 {
		t.Error("the cancelled machine joined")
	}
}
