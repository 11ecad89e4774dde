package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/lease"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// A10, C6: an instance name is one release's in the whole cluster. A second release, in whatever namespace, says so and ends; a second
// process of the same release stands by and takes over.
func TestAnInstanceNameIsOneReleases(t *testing.T) {
	env := []string{"DISABLE_LEADER_ELECTION=false", "PROBE_INTERVAL=3s"}
	began := time.Now()
	s := prepare(t, shared.newInstance(t, "name", "kp-name", env...), "name", 4*time.Second, sim.Spec{})
	s.register()
	s.start("", "RELEASE=first")
	s.allIn(v1beta1.HostAvailable, time.Minute)
	held := s.lease()
	if held.Labels[v1beta1.ReleaseLabel] != "first" || held.Labels[v1beta1.PoolNamespaceLabel] != "kp-name" {
		t.Errorf("the lease says %v", held.Labels)
	}

	for what, second := range map[string]*instance{
		"another namespace":       shared.newInstance(t, "name", "kp-name-too", append(slices.Clone(env), "RELEASE=second")...),
		"the same pool namespace": shared.newInstance(t, "name", "kp-name", append(slices.Clone(env), "RELEASE=second")...),
	} {
		t.Run("another release in "+what+" says so and ends", func(t *testing.T) {
			s := s.in(t)
			// To the audit it is an instance of its own, that owns nothing.
			kubeconfig, err := s.cp.Kubeconfig(userPrefix+"name-duplicate", "system:masters")
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			second.start(t, kubeconfig)
			select {
			case <-second.done():
			case <-time.After(time.Minute):
				t.Fatal("it runs")
			}
			var exit *exec.ExitError
			words := second.last.LogTail(1)
			if !errors.As(second.last.Err(), &exit) || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v, want exit code 1: %s", second.last.Err(), words)
			}
			t.Logf("it ended %.1fs after its start: %s", time.Since(start).Seconds(), words)
			for _, part := range []string{`instance name "name"`, `"first"`, `"second"`, second.namespace, "another instance.name"} {
				if !strings.Contains(words, part) {
					t.Errorf("its last line does not say %q: %s", part, words)
				}
			}
			events := &eventsv1.EventList{}
			if err := s.api.List(t.Context(), events, client.InNamespace("kube-system")); err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
				return e.Reason == v1beta1.ReasonDuplicateInstance && e.Regarding.Name == held.Name && strings.Contains(e.Note, second.namespace)
			}) {
				t.Error("there is no Event about it")
			}
			if now := s.lease(); ptr.Deref(now.Spec.HolderIdentity, "") != ptr.Deref(held.Spec.HolderIdentity, "") || !strings.Contains(now.Annotations[lease.ContenderAnnotation], "second") {
				t.Errorf("the lease is %s's, contender %q", ptr.Deref(now.Spec.HolderIdentity, ""), now.Annotations[lease.ContenderAnnotation])
			}
		})
	}

	t.Run("the same release stands by and takes over", func(t *testing.T) {
		s := s.in(t)
		standBy := shared.newInstance(t, "name", "kp-name", env...)
		user := standBy.user() + ":stand-by"
		kubeconfig, err := s.cp.Kubeconfig(user, "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		standBy.start(t, kubeconfig, "RELEASE=first")
		leads := func() (float64, string) {
			status, err := standBy.scrape("leader_election_master_status")
			return status, fmt.Sprint(status, err)
		}
		s.eventually(time.Minute, "the second process stands for election", func() (bool, string) {
			looks := 0
			for _, e := range s.auditSince(standBy.started) {
				if e.User.Username == user && e.Object.Name == held.Name && e.Verb == "get" {
					looks++
				}
			}
			status, seen := leads()
			return looks > 3 && status == 0, seen
		})
		s.serve(1, "name-first")
		if status, _ := leads(); status != 0 {
			t.Error("both lead")
		}
		for _, e := range s.auditSince(standBy.started) {
			if e.User.Username == user && e.Write() && e.Object.Resource != "leases" {
				t.Errorf("the stand-by wrote: %s %s", e.Verb, e.URI)
			}
		}
		s.deleteClaims()
		s.kill()
		killed := time.Now()
		s.instance = standBy // whose end would be a failure from now on
		s.eventually(time.Minute, "the second process leads", func() (bool, string) { status, seen := leads(); return status == 1, seen })
		t.Logf("the stand-by leads %.1fs after the leader was killed", time.Since(killed).Seconds())
		s.eventually(time.Minute, "it finishes what was begun", func() (bool, string) { return s.settledIn("") })
		t.Log(s.serve(1, "name-second"))
		if now := s.lease(); ptr.Deref(now.Spec.HolderIdentity, "") == ptr.Deref(held.Spec.HolderIdentity, "") {
			t.Errorf("the lease is still %s's", ptr.Deref(now.Spec.HolderIdentity, ""))
		}
	})
	t.Run("a rolling update in the middle of an install loses nothing and does nothing twice at once", func(t *testing.T) {
		s := s.in(t)
		old, next := shared.newInstance(t, "name", "kp-name", env...), shared.newInstance(t, "name", "kp-name", env...)
		old.label, next.label = "name-old", "name-next"
		old.start(t, "", "RELEASE=first")
		s.instance = old
		s.deleteClaims()
		s.eventually(time.Minute, "the machine is free", func() (bool, string) { return s.settledIn("") })
		s.newVersion("rolled") // a cold join
		machine, twice := s.fleet.Machines()[0], filepath.Join(t.TempDir(), "twice")
		before := machine.Counters().Runs
		// What ends with its holder tells two at once from one after the other.
		machine.Inject("install", fmt.Sprintf("exec 9>%[1]s.lock; flock -n 9 || { touch %[1]s; exit 1; }; sleep 6", twice))
		defer machine.Inject("install", "")
		s.pod("name-rolled")
		s.eventually(time.Minute, "the install runs", func() (bool, string) { return machine.Counters().Runs["install"] > before["install"], "" })

		next.start(t, "", "RELEASE=first")
		next.ready(t)
		asked := time.Now()
		old.controller.Stop(30 * time.Second)
		gone := time.Since(asked)
		old.controller, s.instance = nil, next
		s.running(1, 2*time.Minute)
		after := machine.Counters().Runs
		t.Logf("the old process was gone %.1fs after it was asked to end, the pod ran %.1fs after; installs begun %d, joins %d", gone.Seconds(), time.Since(asked).Seconds(),
			after["install"]-before["install"], after["join"]-before["join"])
		if gone > 20*time.Second {
			t.Error("it was slow to end")
		}
		if n := after["join"] - before["join"]; n != 1 {
			t.Errorf("%d joins", n)
		}
		if _, err := os.Stat(twice); err == nil {
			t.Error("two installs ran at once")
		}
		if h := s.hosts()[0]; h.Status.State != v1beta1.HostInUse || len(s.claims()) != 1 {
			t.Errorf("host %s is %s, and there are %d claims", h.Name, h.Status.State, len(s.claims()))
		}
		s.deleteClaims()
		s.eventually(time.Minute, "the machine is free", func() (bool, string) { return s.settledIn("") })
		next.kill() // before its scenario, whose objects would go without it
	})
	t.Run("a process that lost its lease says so and ends", func(t *testing.T) {
		s := s.in(t)
		loser := shared.newInstance(t, "name", "kp-name", env...)
		loser.label = "name-loser"
		loser.start(t, "", "RELEASE=first")
		s.instance = loser
		s.eventually(time.Minute, "it leads", func() (bool, string) {
			status, err := loser.scrape("leader_election_master_status")
			return status == 1, fmt.Sprint(status, err)
		})
		// Somebody else's, time after time: what it renews in between would be its own again.
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			l := s.lease()
			l.Spec.HolderIdentity, l.Spec.RenewTime = ptr.To("thief"), ptr.To(metav1.NowMicro())
			_ = s.api.Update(t.Context(), l)
			select {
			case <-loser.done():
				deadline = time.Time{}
			case <-time.After(time.Second):
			}
		}
		var exit *exec.ExitError
		words := loser.last.LogTail(3)
		if !errors.As(loser.last.Err(), &exit) || exit.ExitCode() != 1 || !strings.Contains(words, "may not lead any more") || strings.Contains(words, "goroutine") {
			t.Errorf("it ended with %v: %s", loser.last.Err(), words)
		}
		loser.controller = nil
		s.remove(s.lease())
	})
	if found := s.foreignSince(began); len(found) > 0 {
		t.Errorf("S6: %v", found)
	}
}

// lease is that of the scenario's instance.
func (s *scenario) lease() *coordinationv1.Lease {
	s.t.Helper()
	l := &coordinationv1.Lease{}
	if err := s.api.Get(s.ctx(), keyIn("kube-system", lease.NamePrefix+s.instance.name), l); err != nil {
		s.t.Fatal(err)
	}
	return l
}
