package nodeclass

import (
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// counting is a queue that counts what is put into it; what is not put there after a pause, in which bursts are merged, panics.
type counting struct {
	queue
	added map[string]int
}

func (c *counting) AddAfter(r reconcile.Request, d time.Duration) {
	if d == gather {
		c.added[r.Name]++
	}
}

// Section 2 #37: probes' heartbeats do not wake classes; what changes a count does, and only the classes it concerns.
func TestHostEventsWakeTheClassesTheyConcern(t *testing.T) {
	rackA := func(c *v1beta1.SSHNodeClass) {
		c.Name, c.Spec.HostSelector = "rack-a", &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "a"}}
	}
	w := newWorld(t, aClass(), aClass(rackA), aProfile(), aHost("h", true, nil))
	w.must("c1")
	w.must("rack-a")

	inA, inB := map[string]string{"rack": "a"}, map[string]string{"rack": "b"}
	edited := func(h *v1beta1.SSHHost, edit func(*v1beta1.SSHHost)) *v1beta1.SSHHost {
		h = h.DeepCopy()
		edit(h)
		return h
	}
	free := aHost("h1", true, inA)
	for _, tc := range []struct {
		name    string
		was, is *v1beta1.SSHHost
		want    map[string]int
	}{
		{name: "heartbeat", was: free, is: edited(free, func(h *v1beta1.SSHHost) { h.Status.LastProbeTime = new(metav1.NewTime(noon)) })},
		{name: "annotation that changes nothing", was: free, is: edited(free, func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{"note": "x"} })},
		{name: "from one unclaimable state to another", was: aHost("h1", false, inA), is: edited(free, func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostLeaving })},
		{name: "created", is: free, want: map[string]int{"c1": 1, "rack-a": 1}},
		{name: "deleted", was: free, want: map[string]int{"c1": 1, "rack-a": 1}},
		{name: "created elsewhere", is: aHost("h1", true, inB), want: map[string]int{"c1": 1}},
		{name: "claimed", was: free, is: edited(free, func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostClaimed }), want: map[string]int{"c1": 1, "rack-a": 1}},
		{name: "put into maintenance", was: free, is: edited(free, func(h *v1beta1.SSHHost) { h.Annotations = map[string]string{v1beta1.MaintenanceAnnotation: ""} }),
			want: map[string]int{"c1": 1, "rack-a": 1}},
		{name: "relabelled away", was: free, is: aHost("h1", true, inB), want: map[string]int{"c1": 1, "rack-a": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &counting{added: map[string]int{}}
			w.hostChanged(q, tc.was, tc.is)
			if !maps.Equal(q.added, tc.want) {
				t.Errorf("want %v, woke %v", tc.want, q.added)
			}
		})
	}
}

func TestReferencesWakeTheirClasses(t *testing.T) {
	other := aClass(func(c *v1beta1.SSHNodeClass) { c.Name = "other"; c.Spec.JoinProfileRef.Name = "p2" })
	w := newWorld(t, aClass(withSecret), other, aProfile(), aSecret(pool, nil), aHost("h", true, nil))
	w.must("c1")
	w.must("other")
	if got := w.ofProfile(t.Context(), aProfile()); len(got) != 1 || got[0].Name != "c1" {
		t.Errorf("a profile woke %v", got)
	}
	if got := w.ofSecret(t.Context(), aSecret(pool, nil)); len(got) != 1 || got[0].Name != "c1" {
		t.Errorf("a join Secret woke %v", got)
	}
	if got := w.ofSecret(t.Context(), aSecret("elsewhere", nil)); len(got) != 0 {
		t.Errorf("a Secret of another namespace woke %v", got)
	}
	if got := w.ofClaim(t.Context(), aClaim("c", v1beta1.Group, "SSHNodeClass", "c1")); len(got) != 0 {
		t.Errorf("the end of a claim woke a class that is not being deleted: %v", got)
	}
}
