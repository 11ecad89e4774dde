package equivalence

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	// segmentLabel says in both worlds which segment a NodePool's hosts are in; the instance's name can do that in one of them only.
	segmentLabel = "example.com/segment"
	teamLabel    = "example.com/team"
	// one is the instance that owns everything.
	one = "all"
)

var (
	now   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	teams = []string{"red", "blue", "green"}
	zones = []string{"zone-0", "zone-1", "zone-2"}
	archs = []string{"amd64", "amd64", "arm64"}
)

// world is what a seed makes. Nothing in it names an instance but segments do, so that it can be told for any number of them.
type world struct {
	r        *rand.Rand
	segments []string
	classes  []class
	pools    []pool
	hosts    []*v1beta1.SSHHost // by segment label
	pods     []*corev1.Pod
	// pinned are pods that name a segment or a NodePool: their owner.
	pinned map[string]string
	// nobodys are pods that name a NodePool which does not exist.
	nobodys map[string]bool
}

type class struct {
	name, segment, zone string
}

type pool struct {
	*karpv1.NodePool
	segment string
}

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 0)), pinned: map[string]string{}, nobodys: map[string]bool{}}
	for i := range 2 + w.r.IntN(2) {
		w.segments = append(w.segments, fmt.Sprintf("seg-%d", i))
	}
	for _, segment := range w.segments {
		w.addSegment(segment)
	}
	w.softenAlike()
	for i := range 4 + w.r.IntN(12) {
		w.pods = append(w.pods, w.pod(fmt.Sprintf("pod-%02d", i)))
	}
	return w
}

func (w *world) addSegment(segment string) {
	for i := range 1 + w.r.IntN(4) {
		w.hosts = append(w.hosts, w.host(fmt.Sprintf("%s-host-%d", segment, i), segment))
	}
	for i := range 1 + w.r.IntN(2) {
		c := class{name: fmt.Sprintf("class-%d-of-%s", i, segment), segment: segment}
		if w.chance(2) {
			c.zone = w.any(zones)
		}
		w.classes = append(w.classes, c)
		for j := range 1 + w.r.IntN(2) {
			w.pools = append(w.pools, w.pool(fmt.Sprintf("pool-%d%d-%d", w.r.IntN(10), i, j)+segment, c))
		}
	}
}

// softenAlike gives every segment a pool with a PreferNoSchedule taint if any has one. Core tries each pod once more, tolerating such taints, if
// there is such a taint in any NodePool that it sees, another segment's too; where only some see one, pods are tried in other orders.
func (w *world) softenAlike() {
	soft := func(p pool) bool {
		return slices.ContainsFunc(p.Spec.Template.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule })
	}
	if !slices.ContainsFunc(w.pools, soft) {
		return
	}
	for _, segment := range w.segments {
		own := slices.DeleteFunc(slices.Clone(w.pools), func(p pool) bool { return p.segment != segment })
		if !slices.ContainsFunc(own, soft) {
			own[0].Spec.Template.Spec.Taints = []corev1.Taint{{Key: teams[0], Effect: corev1.TaintEffectPreferNoSchedule}}
		}
	}
}

func (w *world) chance(oneIn int) bool  { return w.r.IntN(oneIn) == 0 }
func (w *world) any(of []string) string { return of[w.r.IntN(len(of))] }
func (w *world) some(of []string) []string {
	return slices.Compact(slices.Sorted(slices.Values([]string{w.any(of), w.any(of)})))
}
func (w *world) cpu(most int) resource.Quantity {
	return *resource.NewQuantity(int64(1+w.r.IntN(most)), resource.DecimalSI)
}

func (w *world) host(name, segment string) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{segmentLabel: segment}, Generation: 1},
		Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1", Capacity: corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewQuantity(int64(2<<w.r.IntN(3)), resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("16Gi"),
		}},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: w.any(archs)},
	}
	if w.chance(3) {
		h.Labels[corev1.LabelTopologyZone] = w.any(zones)
	}
	if w.chance(3) {
		h.Labels[v1beta1.HostClassLabel] = w.any(teams)
	}
	if w.chance(5) {
		h.Status.State = v1beta1.HostUnhealthy
	}
	return h
}

func (w *world) pool(name string, c class) pool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}}
	np.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
	np.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
	template := &np.Spec.Template
	template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: c.name}
	template.Labels = map[string]string{segmentLabel: c.segment}
	if !w.chance(3) {
		np.Spec.Weight = new(int32(w.r.IntN(4)))
	}
	require := func(key string, operator corev1.NodeSelectorOperator, values ...string) {
		template.Spec.Requirements = append(template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: operator, Values: values})
	}
	switch w.r.IntN(4) {
	case 0:
		template.Labels[teamLabel] = w.any(teams)
	case 1:
		require(teamLabel, corev1.NodeSelectorOpIn, w.some(teams)...)
	case 2:
		require(teamLabel, corev1.NodeSelectorOpExists)
	}
	if w.chance(4) {
		require(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, w.some(zones)...)
	}
	if w.chance(5) {
		require(corev1.LabelArchStable, corev1.NodeSelectorOpIn, w.any(archs))
	}
	if w.chance(3) {
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule}
		template.Spec.Taints = []corev1.Taint{{Key: w.any(teams), Effect: effects[w.r.IntN(len(effects))]}}
	}
	if w.chance(5) {
		np.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: w.cpu(16)}
	}
	if w.chance(15) {
		np.Spec.Replicas = new(int64)
		np.Spec.Weight = nil
	}
	return pool{np, c.segment}
}

func (w *world) pod(name string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)), Labels: map[string]string{"app": w.any(teams)}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{}, Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: w.cpu(4)},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
	to := w.pools[w.r.IntN(len(w.pools))]
	switch w.r.IntN(8) {
	case 0, 1:
		p.Spec.NodeSelector[karpv1.NodePoolLabelKey] = to.Name
		w.pinned[name] = to.segment
	case 2:
		p.Spec.NodeSelector[v1beta1.InstanceLabel] = to.segment
		w.pinned[name] = to.segment
	case 3:
		p.Spec.NodeSelector[karpv1.NodePoolLabelKey] = "no-such-pool"
		w.nobodys[name] = true
	}
	w.choose(p, to)
	if !w.chance(3) {
		for _, t := range to.Spec.Template.Spec.Taints {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOpExists})
		}
	}
	w.spread(p)
	return p
}

// choose gives a pod wishes of its own.
func (w *world) choose(p *corev1.Pod, to pool) {
	if w.chance(4) {
		p.Spec.NodeSelector[corev1.LabelTopologyZone] = w.any(zones)
	}
	if w.chance(6) {
		p.Spec.NodeSelector[corev1.LabelArchStable] = w.any(archs)
	}
	affinity := &corev1.NodeAffinity{}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity}
	if w.chance(2) {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{}
		for range 1 + w.r.IntN(3) {
			affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = append(
				affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, w.term(to))
		}
	}
	required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
	for range w.r.IntN(3) {
		wish := w.term(to)
		if named(required, teamLabel) && wish.MatchExpressions[0].Key == teamLabel {
			continue // core takes "red, and preferably green" for "without the label", and makes a node that the pod cannot run on
		}
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: int32(1 + w.r.IntN(100)), Preference: wish})
	}
}

// named tells whether a term names a label.
func named(terms *corev1.NodeSelector, label string) bool {
	return terms != nil && slices.ContainsFunc(terms.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return t.MatchExpressions[0].Key == label })
}

func (w *world) term(to pool) corev1.NodeSelectorTerm {
	operators := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}
	one := func(key string, of []string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operators[w.r.IntN(3)], Values: w.some(of)}}}
	}
	switch w.r.IntN(5) {
	case 0:
		return one(karpv1.NodePoolLabelKey, []string{to.Name, "no-such-pool", w.pools[w.r.IntN(len(w.pools))].Name})
	case 1:
		return one(segmentLabel, w.segments)
	case 2:
		return one(corev1.LabelTopologyZone, zones)
	case 3:
		return one(v1beta1.HostClassLabel, append(teams, v1beta1.DefaultHostClass))
	}
	// A pod that shuns a value of a label which its pool does not define defines it, for the pods that core puts beside it: then what fits
	// depends on the other pods.
	operators = []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpIn}
	return one(teamLabel, teams)
}

// spread keeps some pods off each other's nodes.
func (w *world) spread(p *corev1.Pod) {
	same := &metav1.LabelSelector{MatchLabels: maps.Clone(p.Labels)}
	if affinity := p.Spec.Affinity.NodeAffinity; affinity.RequiredDuringSchedulingIgnoredDuringExecution != nil || len(affinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		return // core tries such a pod more than once, and what it finds depends on which other pods it has placed meanwhile
	}
	switch w.r.IntN(5) {
	case 0:
		p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{LabelSelector: same, TopologyKey: corev1.LabelHostname},
		}}
	case 1:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: same,
		}}
		if _, picks := p.Spec.NodeSelector[v1beta1.InstanceLabel]; picks {
			// Core 1.14.3 forgets the pods on planned nodes in a spread whose pod selects a label that instance types advertise, as they do the
			// instance, and counts them if the NodePool's template has the label (TopologyNodeFilter.Matches drops its options).
			p.Spec.TopologySpreadConstraints[0].NodeAffinityPolicy = new(corev1.NodeInclusionPolicyIgnore)
		}
	}
}
