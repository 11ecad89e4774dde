package integration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	p.oneAtATime(machine)
	p.noForeignWrites(began)
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
	phase, user string
	began       time.Time
	ended       time.Time
}

// oneAtATime judges a machine's journal.
func (p *pair) oneAtATime(m *sim.Machine) {
	p.Helper()
	var scripts []script
	looks := 0 // sessions of the other instance while a script runs: probes, which change nothing
	for _, e := range m.Journal() {
		running := slices.IndexFunc(scripts, func(s script) bool { return s.ended.IsZero() })
		switch e.Kind {
		case sim.EntryPhase:
			if running >= 0 && scripts[running].user != e.User {
				p.Errorf("S3: %s of %s began while %s of %s ran", e.Detail, e.User, scripts[running].phase, scripts[running].user)
			}
			scripts = append(scripts, script{phase: e.Detail, user: e.User, began: e.Time})
		case sim.EntrySessionBegin:
			if running >= 0 && scripts[running].user != e.Detail {
				looks++
			}
		case sim.EntrySessionEnd:
			for i := range scripts {
				if scripts[i].ended.IsZero() && scripts[i].user == e.Detail {
					scripts[i].ended = e.Time
				}
			}
		}
	}
	joined, order, users := "", []string{}, map[string]bool{}
	for _, s := range scripts {
		order = append(order, s.user+" "+s.phase)
		users[s.user] = true
		switch {
		case joined != "" && joined != s.user:
			p.Errorf("S4: %s of %s before %s left", s.phase, s.user, joined)
		case s.phase == "leave":
			joined = ""
		default:
			joined = s.user
		}
	}
	p.Logf("on the machine: %s; %d probes of the other instance meanwhile", strings.Join(order, ", "), looks)
	if len(users) != 2 || len(scripts) < 8 {
		p.Errorf("the journal shows too little: %v", order)
	}
}
