package arbitration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

func shownNames(f *Filter, pods ...*corev1.Pod) []string {
	all := lo.Map(pods, func(p *corev1.Pod, _ int) corev1.Pod { return *p })
	return lo.Map(f.Shown(all), func(p corev1.Pod, _ int) string { return p.Name })
}

func expectShown(t *testing.T, f *Filter, want []string, pods ...*corev1.Pod) {
	t.Helper()
	if got := shownNames(f, pods...); !slices.Equal(got, want) {
		t.Errorf("shown %v, want %v", got, want)
	}
	for _, p := range pods {
		if f.Hidden(p) == slices.Contains(want, p.Name) {
			t.Errorf("%s: Hidden and Shown disagree", p.Name)
		}
	}
}

func mine() *corev1.Pod   { return pending("mine", selecting(karpv1.NodePoolLabelKey, "pool-a")) }
func theirs() *corev1.Pod { return pending("theirs", selecting(karpv1.NodePoolLabelKey, "pool-b")) }

// A12.
func TestCoreIsShownItsOwnPendingPods(t *testing.T) {
	o := overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b"))
	clk := clocktesting.NewFakePassiveClock(now)
	expectShown(t, NewFilter("seg-a", o, hosts{}, clk), []string{"mine"}, mine(), theirs())
	expectShown(t, NewFilter("seg-b", o, hosts{}, clk), []string{"theirs"}, mine(), theirs())
}

// An instance that has not seen all NodePools cannot know that a pod is another's.
func TestNothingIsHiddenBeforeEverythingIsSeen(t *testing.T) {
	o := overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b"))
	pools, classes := true, false
	o.synced = []func() bool{func() bool { return pools }, func() bool { return classes }}
	f := NewFilter("seg-a", o, hosts{}, clocktesting.NewFakePassiveClock(now))
	expectShown(t, f, []string{"mine", "theirs"}, mine(), theirs())
	classes = true
	expectShown(t, f, []string{"mine"}, mine(), theirs())
}

// With one instance and no other provider nothing is ever hidden: karpenter's own explanations stay.
func TestNothingIsHiddenFromAnInstanceThatIsAlone(t *testing.T) {
	f := NewFilter("seg-a", overviewOf(nodePool("pool-a", "a"), nodePool("other", "a2")), hosts{}, clocktesting.NewFakePassiveClock(now))
	expectShown(t, f, []string{"mine", "theirs"}, mine(), theirs())
}

// Verdicts are remembered, and must not outlive what they were made of.
func TestVerdictsFollowPodsPoolsClassesAndHosts(t *testing.T) {
	offered := hosts{"pool-a": inZones("zone-a")}
	o := overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b"))
	clk := clocktesting.NewFakePassiveClock(now)
	f := NewFilter("seg-a", o, offered, clk)
	pod := theirs()
	expectShown(t, f, nil, pod)

	changed := pending("theirs") // its selector is gone
	changed.ResourceVersion = "2"
	expectShown(t, f, []string{"theirs"}, changed)
	expectShown(t, f, nil, pod)

	o.Observe(sshClass("b", "seg-a")) // as if deleted and made again
	expectShown(t, f, []string{"theirs"}, pod)
	o.Observe(sshClass("b", "seg-b"))
	expectShown(t, f, nil, pod)

	p := nodePool("pool-b", "a")
	p.Generation = 2
	o.Observe(p)
	expectShown(t, f, []string{"theirs"}, pod)
	p = nodePool("pool-b", "b")
	p.Generation = 3
	o.Observe(p)
	expectShown(t, f, nil, pod)

	zoned := pending("zoned", selecting(zone, "zone-c"), or(karpv1.NodePoolLabelKey, in, "pool-a", "pool-b"))
	expectShown(t, f, nil, zoned)
	offered["pool-a"] = inZones("zone-a", "zone-c") // a host was probed
	clk.SetTime(now.Add(offersAge))
	expectShown(t, f, []string{"zoned"}, zoned)

	o.Forget(p)
	o.Observe(nodePool("pool-c", "c"))
	expectShown(t, f, nil, pod) // fits nobody, and pool-c's instance says so
	o.Forget(nodePool("pool-c", "c"))
	expectShown(t, f, []string{"theirs"}, pod)
}

// Nobody knows others' hosts. A pod that everybody takes for another's affair is explained after all.
func TestALatePodIsShownWhenItStaysPending(t *testing.T) {
	o := overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b", weighing(1)))
	clk := clocktesting.NewFakePassiveClock(now)
	f := NewFilter("seg-b", o, hosts{"pool-b": inZones("zone-b")}, clk)
	lost := pending("lost", selecting(zone, "nowhere"))
	lost.CreationTimestamp.Time = now.Add(-time.Hour) // it had a scheduling gate
	lost.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, LastTransitionTime: lost.CreationTimestamp}}
	lost.Status.Conditions[0].LastTransitionTime.Time = now
	expectShown(t, f, nil, lost)
	clk.SetTime(now.Add(lateAfter - time.Second))
	expectShown(t, f, nil, lost)
	clk.SetTime(now.Add(lateAfter))
	expectShown(t, f, []string{"lost"}, lost)
}

// The pods may be a cache's own.
func TestPodsAreNotChanged(t *testing.T) {
	f := NewFilter("seg-a", overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b")), hosts{}, clocktesting.NewFakePassiveClock(now))
	pods := []corev1.Pod{*pending("p", selecting("beta.kubernetes.io/arch", "amd64"), or(karpv1.NodePoolLabelKey, in, "pool-b"), or(team, in, "red"), preferring(team, "a"), preferring(zone, "b")), *theirs(), *mine()}
	before := []corev1.Pod{*pods[0].DeepCopy(), *pods[1].DeepCopy(), *pods[2].DeepCopy()}
	shown := f.Shown(pods)
	if len(shown) != 1 || &shown[0] == &pods[2] {
		t.Errorf("%d shown", len(shown))
	}
	shown[0] = corev1.Pod{}
	if !equality.Semantic.DeepEqual(before, pods) {
		t.Error("pods were changed")
	}
}

func TestVerdictsOnPodsThatAreGoneAreForgotten(t *testing.T) {
	f := NewFilter("seg-a", overviewOf(nodePool("pool-a", "a"), nodePool("pool-b", "b")), hosts{}, clocktesting.NewFakePassiveClock(now))
	for i := range 1000 {
		shownNames(f, pending(fmt.Sprint(i)), mine())
	}
	if n := len(f.verdicts); n > 100 {
		t.Errorf("%d verdicts are kept for 2 pods", n)
	}
}

// What a pool offers is a union: a pod that one of its types fits must not be kept from it.
func TestOffersAreWhatAnyTypeIs(t *testing.T) {
	typ := func(requirements ...*scheduling.Requirement) *cloudprovider.InstanceType {
		return &cloudprovider.InstanceType{Requirements: scheduling.NewRequirements(requirements...)}
	}
	is := func(key string, values ...string) *scheduling.Requirement {
		return scheduling.NewRequirement(key, in, values...)
	}
	types := []*cloudprovider.InstanceType{
		typ(is(zone, "a"), is(team, "red"), is("gpu", "1"), scheduling.NewRequirement("windows", none), scheduling.NewRequirement("any", in, "x")),
		typ(is(zone, "b", "c"), is(team, "blue"), scheduling.NewRequirement("gpu", none), scheduling.NewRequirement("windows", none), scheduling.NewRequirement("any", exists)),
		typ(is(zone), is(team, "of a host that is gone")),
	}
	offered := TypesOf(func(context.Context, *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) { return types, nil }).Offered(nil)
	for _, tc := range []struct {
		demand *scheduling.Requirement
		ok     bool
	}{
		{is(zone, "a"), true},
		{is(zone, "c"), true},
		{is(zone, "d"), false},
		{is(team, "blue"), true},
		{is(team, "of a host that is gone"), false},
		{is("gpu", "2"), true}, // some types have one, some have none: not narrowed
		{scheduling.NewRequirement("gpu", none), true},
		{is("windows", "yes"), false},
		{scheduling.NewRequirement("windows", none), true},
		{is("any", "y"), true},
	} {
		if ok := offered.Intersects(scheduling.NewRequirements(tc.demand)) == nil; ok != tc.ok {
			t.Errorf("%s: %v, want %v", tc.demand, ok, tc.ok)
		}
	}
	types = nil
	none := TypesOf(func(context.Context, *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) { return types, nil })
	failing := TypesOf(func(context.Context, *karpv1.NodePool) ([]*cloudprovider.InstanceType, error) {
		return nil, errors.New("not synced")
	})
	if none.Offered(nil) != nil || failing.Offered(nil) != nil {
		t.Error("hosts that are not known narrow nothing")
	}
}

// BenchmarkShown: 5,000 pending pods, 20 instances of 5 NodePools. cold is the first List after a NodePool changed, warm is any other.
func BenchmarkShown(b *testing.B) {
	o := NewOverview()
	for i := range 20 {
		instance := fmt.Sprintf("seg-%d", i)
		o.Observe(sshClass(instance, instance))
		for j := range 5 {
			o.Observe(nodePool(fmt.Sprintf("%s-%d", instance, j), instance, tainted(fmt.Sprintf("t%d", j), corev1.TaintEffectNoSchedule)))
		}
	}
	var pods []corev1.Pod
	for i := range 5000 {
		pods = append(pods, *pending(fmt.Sprint(i), tolerating(fmt.Sprintf("t%d", i%5)),
			or(karpv1.NodePoolLabelKey, in, fmt.Sprintf("seg-%d-%d", i%20, i%5)), or(karpv1.NodePoolLabelKey, in, "no-such-pool")))
	}
	f := NewFilter("seg-0", o, hosts{}, clocktesting.NewFakePassiveClock(now))
	b.Run("warm", func(b *testing.B) {
		b.ReportAllocs()
		f.Shown(pods)
		for b.Loop() {
			f.Shown(pods)
		}
	})
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.current = false
			f.Shown(pods)
		}
	})
}
