package equivalence

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// worlds is how many seeds a run takes, and budget how long it may go on for the sake of them.
const (
	worlds = 300
	budget = 45 * time.Second
)

// tally is what the worlds were worth: without it a generator that makes nothing comparable would pass.
type tally struct {
	worlds, shared, pods, nobodys, claims, pinned int
}

// N instances create the NodeClaims that one would which owns everything, for pods that fit one instance only. A pod that names
// another's NodePool or instance is no other's affair (A12), and one that names nobody's is explained by exactly one instance.
//
// By default every run tries the same worlds. EQUIVALENCE_SEED=n replays one; EQUIVALENCE_FIRST=n begins elsewhere, and EQUIVALENCE_WORLDS=n takes as
// many as that, however long it lasts.
func TestManyInstancesDoWhatOneWould(t *testing.T) {
	ctx := coreContext(t)
	if given := os.Getenv("EQUIVALENCE_SEED"); given != "" {
		seed, err := strconv.ParseUint(given, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		compare(ctx, t, seed, &tally{})
		return
	}
	first, begun, worlds, budget := uint64(5000), time.Now(), uint64(worlds), budget
	if given, err := strconv.ParseUint(os.Getenv("EQUIVALENCE_WORLDS"), 10, 64); err == nil {
		worlds, budget = given, time.Hour
	}
	if given, err := strconv.ParseUint(os.Getenv("EQUIVALENCE_FIRST"), 10, 64); err == nil {
		first = given
	}
	t.Logf("seeds from %d", first)
	sum := &tally{}
	for seed := first; seed < first+worlds && time.Since(begun) < budget && !t.Failed(); seed++ {
		compare(ctx, t, seed, sum)
	}
	t.Logf("%+v in %s", *sum, time.Since(begun).Round(time.Millisecond))
	if sum.worlds < 20 || sum.shared*5 < sum.worlds || sum.claims < sum.worlds || sum.nobodys == 0 || sum.pinned == 0 {
		t.Errorf("the worlds are worth too little: %+v", *sum)
	}
}

func compare(ctx context.Context, t *testing.T, seed uint64, sum *tally) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("EQUIVALENCE_SEED=%d go test ./test/equivalence: "+format, append([]any{seed}, args...)...)
	}
	w := newWorld(seed)
	pods, hopeless, err := w.ofOneInstance(ctx)
	if err != nil {
		fail("%v", err)
		return
	}
	alone := w.in(true, append(slices.Clone(pods), hopeless...))
	only := alone.start(one, true)
	want, err := only.provision(ctx)
	if err != nil {
		fail("one instance: %v", err)
		return
	}
	var got []string
	creators := 0
	explained := map[string][]string{}
	together := w.in(false, append(slices.Clone(pods), hopeless...))
	for _, name := range together.instances() {
		i := together.start(name, true)
		made, err := i.provision(ctx)
		if err != nil {
			fail("%s: %v", name, err)
			return
		}
		if len(made) > 0 {
			creators++
		}
		got = append(got, made...)
		for pod := range i.events.failed {
			explained[pod] = append(explained[pod], name)
			if owner, pinned := w.pinned[pod]; pinned && owner != name && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Name == pod }) {
				fail("%s reports %s, which is %s's", name, pod, owner)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		fail("one instance creates\n  %s\n%d instances create\n  %s", strings.Join(want, "\n  "), len(w.segments), strings.Join(got, "\n  "))
	}
	for _, p := range hopeless {
		by := explained[p.Name]
		switch {
		case !only.events.failed[p.Name]: // core says nothing about some, such as those that want no node of its making
			continue
		case len(by) == 0:
			fail("nobody says why %s stays pending", p.Name)
		case len(by) > 1 && w.nobodys[p.Name]:
			fail("%v all say why %s stays pending", by, p.Name)
		}
		sum.nobodys++
	}
	for _, p := range pods {
		if w.pinned[p.Name] != "" {
			sum.pinned++
		}
	}
	sum.worlds++
	sum.pods += len(pods)
	sum.claims += len(got)
	if creators > 1 {
		sum.shared++
	}
}

// ofOneInstance is the pods that exactly one instance's core finds a node for, and those that none does.
func (w *world) ofOneInstance(ctx context.Context) (pods, hopeless []*corev1.Pod, err error) {
	c := w.in(false, nil)
	takers := map[string]int{}
	for _, name := range c.instances() {
		i := c.start(name, false)
		for _, p := range w.pods {
			fits, err := i.fits(ctx, c.told(p))
			if err != nil {
				return nil, nil, err
			}
			if fits {
				takers[p.Name]++
			}
		}
	}
	for _, p := range w.pods {
		switch takers[p.Name] {
		case 0:
			hopeless = append(hopeless, p)
		case 1:
			pods = append(pods, p)
		}
	}
	return pods, hopeless, nil
}
