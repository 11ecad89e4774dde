package integration

import (
	"fmt"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// Issue, prewarm: install runs on free hosts, so that a pod's join runs none; a new version goes through the free hosts first, and then the node
// is replaced. Section 3 #15: the profile is held meanwhile, and by its instance's finalizer alone.
func TestPrewarm(t *testing.T) {
	s := begin(t, "warm", 4*time.Second, sim.Spec{}, sim.Spec{}, sim.Spec{})
	class := &v1beta1.SSHNodeClass{}
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
		t.Fatal(err)
	}
	class.Spec.Prewarm = &v1beta1.Prewarm{MaxConcurrent: 2}
	if err := s.api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	s.start("")
	s.prewarmed(3, "Prewarmed")
	s.pod("warm", podIn(s.name))
	s.running(1, time.Minute)
	if n := s.installs(); n != 3 {
		t.Errorf("install ran %d times on 3 machines, one of which joined; want 3", n)
	}
	p := &v1beta1.SSHJoinProfile{}
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: s.name}, p); err != nil {
		t.Fatal(err)
	}
	if want := v1beta1.InstalledFinalizer(v1beta1.DefaultInstance); len(p.Finalizers) != 1 || p.Finalizers[0] != want {
		t.Errorf("finalizers %v, want %s", p.Finalizers, want)
	}
	s.newVersion("2")
	s.eventually(2*time.Minute, "no machine has the old version", func() (bool, string) {
		left := ""
		for _, h := range s.hosts() {
			if h.Status.InstalledProfile != s.name+"@2" {
				left += fmt.Sprintf("%s %s %s; ", h.Name, h.Status.State, h.Status.InstalledProfile)
			}
		}
		return left == "", left
	})
	if n := s.installs(); n != 6 {
		t.Errorf("install ran %d times for two versions on 3 machines, want 6", n)
	}
}

// prewarmed waits until the condition has a reason and so many hosts have the class's profile.
func (s *scenario) prewarmed(n int, reason string) {
	s.t.Helper()
	s.eventually(time.Minute, fmt.Sprintf("%d hosts are installed", n), func() (bool, string) {
		class := &v1beta1.SSHNodeClass{}
		if err := s.api.Get(s.ctx(), client.ObjectKey{Name: s.name}, class); err != nil {
			return false, err.Error()
		}
		installed := 0
		for _, h := range s.hosts() {
			if h.Status.InstalledProfile == class.Status.PrewarmProfile && h.Status.InstalledProfile != "" && apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionReady) {
				installed++
			}
		}
		for _, c := range class.Status.Conditions {
			if c.Type == v1beta1.ConditionPrewarmed && c.Reason == reason && c.Status == metav1.ConditionTrue {
				return installed == n, c.Message
			}
		}
		return false, fmt.Sprintf("%d installed, %+v", installed, class.Status)
	})
}

// installs is how often install ran on the scenario's machines.
func (s *scenario) installs() int {
	n := 0
	for _, m := range s.fleet.Machines() {
		n += int(m.Counters().Runs["install"])
	}
	return n
}
