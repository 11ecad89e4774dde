package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// C1: one machine is in the inventories of both instances, and its class goes from one to the other by the only way there is: deleted
// and made again, when nothing goes on, during a join and during a leave. Scripts of two instances never overlap on it (S3), and no
// instance joins it before the other has left (S4).
func (p *pair) handOverOfAMachine() {
	began := time.Now()
	s := prepare(p.T, p.a.instance, "both", 4*time.Second, sim.Spec{})
	s.guest = true
	machine := s.fleet.Machine("both-000")
	for _, owner := range []*instance{p.a.instance, p.b.instance} {
		s.registerWith(owner, func(h *v1beta1.SSHHost) { h.Spec.User = owner.name }) // tells the sessions apart
	}
	s.instanceIsFixed()

	// Nothing goes on.
	s.available(p.a.instance, p.b.instance)
	s.remove(s.class("both"))
	s = s.rebornUnder(p.b.instance)
	s.serve(1, "both-idle")

	// Join.
	s.deleteClaims()
	s.available(s.instance)
	joins := machine.Counters().Runs["join"]
	machine.Slow("join", 5*time.Second)
	s.pod("both-join")
	s.eventually(time.Minute, "the join runs", func() (bool, string) { return machine.Counters().Runs["join"] > joins, fmt.Sprint(s.states()) })
	s.remove(s.class("both"))
	s.deleteClaims()
	s = s.rebornUnder(p.a.instance)
	machine.Inject("join", "")
	s.serve(1, "both-joined")

	// Leave.
	leaves := machine.Counters().Runs["leave"]
	machine.Slow("leave", 5*time.Second)
	s.remove(s.class("both"))
	s.deleteClaims()
	s.eventually(time.Minute, "the leave runs", func() (bool, string) { return machine.Counters().Runs["leave"] > leaves, fmt.Sprint(s.states()) })
	s = s.rebornUnder(p.b.instance)
	machine.Inject("leave", "")
	s.serve(1, "both-left")
	s.deleteClaims()
	s.available(s.instance)

	s.contest(p.a, p.b)

	scripts, probes, problems := scriptsOf(machine.Journal())
	order, users := []string{}, map[string]bool{}
	for _, each := range scripts {
		order = append(order, each.user+" "+each.phase)
		users[each.user] = true
	}
	p.Logf("on the machine: %s; %d probes of the other instance meanwhile", strings.Join(order, ", "), probes)
	for _, problem := range problems {
		p.Error(problem)
	}
	if len(users) != 2 || len(scripts) < 8 {
		p.Errorf("the journal shows too little: %v", order)
	}
	p.noForeignWrites(began)
}

// contest has both instances want the machine at the same time, each with a class and a pod of its own. The machine decides: one joins
// it, the other says whose it is.
func (s *scenario) contest(others ...*scenario) {
	s.t.Helper()
	rivals := []*scenario{}
	for _, other := range others {
		rival := *s
		rival.instance = other.instance
		name := "both-" + other.instance.name
		rival.create(rival.class(name))
		rival.create(rival.pool(name))
		s.t.Cleanup(func() { rival.purgePool(rival.ctx(), name) })
		rivals = append(rivals, &rival)
	}
	for _, r := range rivals {
		r.pod("contest-"+r.instance.name, podIn("both-"+r.instance.name))
	}
	s.running(1, 2*time.Minute)
	var winner, loser *scenario
	s.eventually(time.Minute, "one host is in use, and the other says whose the machine is", func() (bool, string) {
		first, second := rivals[0].hosts()[0], rivals[1].hosts()[0]
		winner, loser = rivals[0], rivals[1]
		if second.Status.State == v1beta1.HostInUse {
			first, second, winner, loser = second, first, loser, winner
		}
		ready := apimeta.FindStatusCondition(second.Status.Conditions, v1beta1.ConditionReady)
		return first.Status.State == v1beta1.HostInUse && ready != nil && ready.Reason == v1beta1.ReasonHostOwnedElsewhere &&
			strings.Contains(ready.Message, "instance="+winner.instance.name), fmt.Sprint(first.Status.State, second.Status.State, ready)
	})
	s.t.Logf("%s has the machine, %s says so", winner.instance.name, loser.instance.name)
	s.deletePods()
	for _, r := range rivals {
		for _, c := range r.claimsOf("both-" + r.instance.name) {
			r.remove(&c)
		}
	}
	for _, r := range rivals {
		r.available(r.instance)
	}
}

// instanceIsFixed: the API server refuses an edit of spec.instance, by whatever way, and says what to do instead.
func (s *scenario) instanceIsFixed() {
	s.t.Helper()
	for _, patch := range []string{`{"spec":{"instance":"seg-b"}}`, `{"spec":{"instance":null}}`, `{"spec":null}`} {
		err := s.api.Patch(s.t.Context(), s.class("both"), client.RawPatch(types.MergePatchType, []byte(patch)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "instance is immutable: create a class for the other instance") {
			s.t.Errorf("%s: %v", patch, err)
		}
	}
}

// rebornUnder makes the scenario's class again under an instance, as soon as the old one is gone, and awaits that its pool can be used.
func (s *scenario) rebornUnder(owner *instance) *scenario {
	s.t.Helper()
	next := *s
	next.instance = owner
	s.eventually(time.Minute, "the class is gone and made again under "+owner.name, func() (bool, string) {
		err := next.api.Create(s.t.Context(), next.class(s.name))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			s.t.Fatal(err)
		}
		return err == nil, fmt.Sprint(readyOf(s, s.name), s.states())
	})
	return &next
}

// available awaits that the scenario's hosts are free, in the eyes of some instances, and that no claim is left.
func (s *scenario) available(owners ...*instance) {
	s.t.Helper()
	for _, owner := range owners {
		look := *s
		look.instance = owner
		look.eventually(time.Minute, "the hosts are free in the eyes of "+owner.name, func() (bool, string) { return look.settledIn("") })
	}
}

// script is a phase's run on a machine.
type script struct {
	phase, user  string
	began, ended time.Time
}

// scriptsOf are the phases of a machine's journal, and how many sessions of another user began meanwhile: probes, which change nothing.
// problems are scripts of two users at once (S3), and any script of one while the other has joined (S4).
func scriptsOf(journal []sim.Entry) (scripts []script, probes int, problems []string) {
	joined := ""
	for _, e := range journal {
		running := slices.IndexFunc(scripts, func(s script) bool { return s.ended.IsZero() })
		switch e.Kind {
		case sim.EntryPhase:
			if running >= 0 && scripts[running].user != e.User {
				problems = append(problems, fmt.Sprintf("S3: %s of %s began while %s of %s ran", e.Detail, e.User, scripts[running].phase, scripts[running].user))
			}
			if joined != "" && joined != e.User {
				problems = append(problems, fmt.Sprintf("S4: %s of %s before %s left", e.Detail, e.User, joined))
			}
			if joined = e.User; e.Detail == "leave" {
				joined = ""
			}
			scripts = append(scripts, script{phase: e.Detail, user: e.User, began: e.Time})
		case sim.EntrySessionBegin:
			if running >= 0 && scripts[running].user != e.Detail {
				probes++
			}
		case sim.EntrySessionEnd:
			for i := range scripts {
				if scripts[i].ended.IsZero() && scripts[i].user == e.Detail {
					scripts[i].ended = e.Time
				}
			}
		}
	}
	return scripts, probes, problems
}

// The test of the test.
func TestOverlapsAreFound(t *testing.T) {
	begin, end := sim.EntrySessionBegin, sim.EntrySessionEnd
	journal := func(steps ...string) (entries []sim.Entry) {
		for i, step := range steps {
			kind, rest, _ := strings.Cut(step, " ")
			e := sim.Entry{Kind: kind, Detail: rest, Time: time.Unix(int64(i), 0)}
			if kind == sim.EntryPhase {
				e.Detail, e.User, _ = strings.Cut(rest, " ")
			}
			entries = append(entries, e)
		}
		return entries
	}
	for name, test := range map[string]struct {
		steps []string
		probe int
		want  []string
	}{
		"in turn":                  {[]string{begin + " a", "phase join a", end + " a", begin + " a", "phase leave a", end + " a", begin + " b", "phase join b", end + " b"}, 0, nil},
		"a probe meanwhile":        {[]string{begin + " a", "phase join a", begin + " b", end + " b", end + " a"}, 1, nil},
		"a script meanwhile":       {[]string{begin + " a", "phase leave a", begin + " b", "phase join b", end + " b", end + " a"}, 1, []string{"S3: join of b began while leave of a ran"}},
		"a join before the leave":  {[]string{begin + " a", "phase join a", end + " a", begin + " b", "phase install b", end + " b"}, 0, []string{"S4: install of b before a left"}},
		"a leave after a new join": {[]string{begin + " a", "phase join a", end + " a", begin + " b", "phase leave b", end + " b"}, 0, []string{"S4: leave of b before a left"}},
	} {
		_, probes, problems := scriptsOf(journal(test.steps...))
		if probes != test.probe || !slices.Equal(problems, test.want) {
			t.Errorf("%s: %d probes, %q; want %d, %q", name, probes, problems, test.probe, test.want)
		}
	}
}
