package arbitration

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	in     = corev1.NodeSelectorOpIn
	notIn  = corev1.NodeSelectorOpNotIn
	exists = corev1.NodeSelectorOpExists
	none   = corev1.NodeSelectorOpDoesNotExist
	zone   = corev1.LabelTopologyZone
	team   = "example.com/team"
)

// verdicts is what each instance decides, each knowing the hosts of its own pools only: `a b`, with S for shown, H for hidden and L for
// late.
func verdicts(pools []*karpv1.NodePool, offered hosts, pod *corev1.Pod, instances ...string) string {
	var all []string
	for _, me := range instances {
		overview := overviewOf(pools...)
		known, _ := overview.snapshot()
		var compiled []Pool
		for _, np := range known {
			if p, ok := NewPool(np.NodePool, np.owner); ok {
				if np.owner == me {
					p = p.offering(offered.Offered(np.NodePool))
				}
				compiled = append(compiled, p)
			}
		}
		inOrder(compiled)
		all = append(all, string("SHL"[Decide(me, compiled, pod)]))
	}
	return strings.Join(all, " ")
}

// A12: a pod is shown to the instances whose pools it fits. If it fits nobody's, exactly one instance explains that.
func TestAPodIsShownToWhomItFits(t *testing.T) {
	poolA, poolB := nodePool("pool-a", "a"), nodePool("pool-b", "b")
	both := []*karpv1.NodePool{poolA, poolB}
	hosted := hosts{"pool-a": inZones("zone-a"), "pool-b": inZones("zone-b")}
	for _, tc := range []struct {
		name    string
		pools   []*karpv1.NodePool
		offered hosts
		pod     *corev1.Pod
		want    string // of seg-a, seg-b
	}{
		{"A12: pinned to pool-b", both, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-b")), "H S"},
		{"pinned to pool-a", both, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-a")), "S H"},
		{"pinned to an instance", both, nil, pending("p", selecting(v1beta1.InstanceLabel, "seg-b")), "H S"},
		{"pinned to a class", both, nil, pending("p", selecting(v1beta1.Group+"/sshnodeclass", "b")), "H S"},
		{"fits both", both, nil, pending("p"), "S S"},
		{"must not be in pool-a", both, nil, pending("p", or(karpv1.NodePoolLabelKey, notIn, "pool-a")), "H S"},

		{"A12: fits nobody", both, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-x")), "H S"},
		{"A12: fits nobody: the heaviest pool's instance explains", []*karpv1.NodePool{nodePool("pool-a", "a", weighing(2)), poolB}, nil,
			pending("p", selecting(team, "red")), "S H"},
		{"fits nobody, and another provider's pool is first", []*karpv1.NodePool{poolA, nodePool("pool-z", "", ofAWS, weighing(9))}, nil,
			pending("p", selecting(team, "red")), "S H"},
		{"fits nobody: pools whose size follows no pods explain nothing", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", static)}, nil,
			pending("p", selecting(team, "red")), "S H"},
		{"there are no pools", nil, nil, pending("p"), "S S"},

		{"zone, declared by the pools", []*karpv1.NodePool{nodePool("pool-a", "a", requiring(zone, in, "zone-a")), nodePool("pool-b", "b", requiring(zone, in, "zone-b"))},
			nil, pending("p", selecting(zone, "zone-b")), "H S"},
		{"zone of the hosts", both, hosted, pending("p", selecting(zone, "zone-b")), "H S"},
		{"zone of the hosts, the second alternative", both, hosted, pending("p", or(zone, in, "zone-a"), or(zone, in, "zone-b")), "S S"},
		{"a zone that no hosts are in: later, by one", both, hosted, pending("p", selecting(zone, "nowhere")), "H L"},
		{"a zone that no hosts are in, of pool-a alone", both, hosted, pending("p", selecting(zone, "nowhere"), selecting(karpv1.NodePoolLabelKey, "pool-a")), "S H"},
		{"hosts are not known yet", both, hosts{"pool-b": inZones("zone-b")}, pending("p", selecting(zone, "zone-b")), "S S"},
		{"host class", both, hosts{"pool-a": inZones("zone-a")}, pending("p", selecting(v1beta1.HostClassLabel, "small")), "H S"},
		{"architecture, in its old name", both, hosts{"pool-a": inZones("zone-a")}, pending("p", selecting("beta.kubernetes.io/arch", "arm64")), "H S"},
		{"a region that no pool gives its nodes", both, nil, pending("p", selecting(corev1.LabelTopologyRegion, "eu")), "H S"},
		{"a region of one pool's nodes", []*karpv1.NodePool{nodePool("pool-a", "a", labelled(corev1.LabelTopologyRegion, "eu")), poolB}, nil,
			pending("p", selecting(corev1.LabelTopologyRegion, "eu")), "S H"},
		{"spot", both, nil, pending("p", selecting(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot)), "H S"},

		{"a label of the template", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", labelled(team, "red"))}, nil, pending("p", selecting(team, "red")), "H S"},
		{"a label that one template has and the pod shuns", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", labelled(team, "red"))}, nil, pending("p", or(team, none)), "S H"},
		{"a label that the requirements leave open", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", requiring(team, exists))}, nil, pending("p", selecting(team, "red")), "H S"},
		{"any of the alternatives", []*karpv1.NodePool{nodePool("pool-a", "a", labelled(team, "blue")), nodePool("pool-b", "b", labelled(team, "red"))}, nil,
			pending("p", or(team, in, "green"), or(team, in, "blue"), or(team, in, "red")), "S S"},
		{"the selector holds for every alternative", []*karpv1.NodePool{nodePool("pool-a", "a", labelled(team, "blue")), nodePool("pool-b", "b", labelled(team, "red"))}, nil,
			pending("p", selecting(karpv1.NodePoolLabelKey, "pool-b"), or(team, in, "blue"), or(team, in, "red")), "H S"},
		{"a preference excludes nobody", both, nil, pending("p", preferring(karpv1.NodePoolLabelKey, "pool-b")), "S S"},

		{"a taint", []*karpv1.NodePool{nodePool("pool-a", "a", tainted("gpu", corev1.TaintEffectNoSchedule)), poolB}, nil, pending("p"), "H S"},
		{"a taint that is tolerated", []*karpv1.NodePool{nodePool("pool-a", "a", tainted("gpu", corev1.TaintEffectNoExecute)), poolB}, nil, pending("p", tolerating("gpu")), "S S"},
		{"a taint that only deters", []*karpv1.NodePool{nodePool("pool-a", "a", tainted("gpu", corev1.TaintEffectPreferNoSchedule)), poolB}, nil, pending("p"), "S S"},
		{"a taint that goes away", []*karpv1.NodePool{nodePool("pool-a", "a", startupTainted("cni")), poolB}, nil, pending("p"), "S S"},
		{"all taints are in the way", []*karpv1.NodePool{nodePool("pool-a", "a", tainted("x", corev1.TaintEffectNoSchedule)), nodePool("pool-b", "b", tainted("x", corev1.TaintEffectNoSchedule))},
			nil, pending("p"), "H S"},

		{"a static pool takes no pod", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", static)}, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-b")), "S H"},
		{"a pool that is being deleted takes no pod", []*karpv1.NodePool{poolA, nodePool("pool-b", "b", deleting)}, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-b")), "S H"},
		{"a pool whose class does not exist takes no pod", []*karpv1.NodePool{poolA, nodePool("pool-x", "nobodys")}, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "pool-x")), "S H"},
		{"one of several own pools is enough", []*karpv1.NodePool{nodePool("other", "a2", tainted("x", corev1.TaintEffectNoSchedule)), poolA, poolB}, nil, pending("p"), "S S"},

		{"another provider's pool", []*karpv1.NodePool{poolA, poolB, nodePool("aws", "", ofAWS)}, nil, pending("p", selecting(karpv1.NodePoolLabelKey, "aws")), "H H"},
		{"another provider's label", []*karpv1.NodePool{poolA, poolB, nodePool("aws", "", ofAWS)}, nil, pending("p", selecting("karpenter.k8s.aws/instance-category", "c")), "H H"},
		{"another provider's label, and it has no pool", both, nil, pending("p", selecting("karpenter.k8s.aws/instance-category", "c")), "H S"},
		{"another provider's nodes are of no instance", []*karpv1.NodePool{poolA, poolB, nodePool("aws", "", ofAWS)}, nil, pending("p", selecting(v1beta1.InstanceLabel, "seg-x")), "H S"},
		{"a zone of another provider perhaps", []*karpv1.NodePool{poolA, poolB, nodePool("aws", "", ofAWS)}, hosted, pending("p", selecting(zone, "eu-1")), "H H"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := verdicts(tc.pools, tc.offered, tc.pod, "seg-a", "seg-b"); got != tc.want {
				t.Errorf("seg-a and seg-b decide %s, want %s", got, tc.want)
			}
		})
	}
}

// A4: a NodePool without a class is nobody's, and no reason to fail.
func TestAPoolWithoutAClassTakesNoPod(t *testing.T) {
	orphan := nodePool("orphan", "")
	orphan.Spec.Template.Spec.NodeClassRef = nil
	if got := verdicts([]*karpv1.NodePool{orphan, nodePool("pool-b", "b")}, nil, pending("p"), "seg-a", "seg-b"); got != "H S" {
		t.Errorf("decided %s, want H S", got)
	}
}

// Each instance decides alone; together they must neither all hide a pod nor all explain it.
func TestExactlyOneInstanceExplains(t *testing.T) {
	pools := []*karpv1.NodePool{nodePool("p1", "a"), nodePool("p2", "b", weighing(5)), nodePool("p3", "c", weighing(5)), nodePool("p4", "a2")}
	for name, pod := range map[string]*corev1.Pod{
		"fits nobody":           pending("p", selecting(team, "red")),
		"fits nobody's hosts":   pending("p", selecting(zone, "nowhere")),
		"tolerates and selects": pending("p", tolerating("x"), or(team, in, "red"), or(team, exists)),
	} {
		got := verdicts(pools, hosts{"p1": inZones("a"), "p2": inZones("b"), "p3": inZones("c"), "p4": inZones("a")}, pod, "seg-a", "seg-b", "seg-c")
		if strings.Count(got, "S")+strings.Count(got, "L") != 1 || got[4] == 'H' {
			t.Errorf("%s: decided %s, want seg-c alone: its pool is the first in core's order", name, got)
		}
	}
}

// What this package works out by itself must be what core would.
func TestLabelsAreMetAsInCore(t *testing.T) {
	p := Pool{unknown: karpv1.WellKnownLabels.Has}
	met := 0
	for seed := range uint64(20000) {
		has, demands := randomRequirements(seed, 1), randomRequirements(seed, 2)
		got, core := p.meets(has, demands), has.IsCompatible(demands, scheduling.AllowUndefinedWellKnownLabels)
		if got != core {
			t.Fatalf("seed %d: %s meets %s: %v, core says %v", seed, has, demands, got, core)
		}
		if got {
			met++
		}
	}
	if met < 2000 || met > 18000 {
		t.Errorf("%d of 20000 are met: the cases are too much alike", met)
	}
}

func randomRequirements(seed, stream uint64) scheduling.Requirements {
	r := rand.New(rand.NewPCG(seed, stream))
	operators := []corev1.NodeSelectorOperator{in, in, notIn, exists, none, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt}
	made := scheduling.NewRequirements()
	for _, label := range []string{team, zone, "example.com/size"} {
		for range r.IntN(3) {
			values := []string{strconv.Itoa(r.IntN(3)), strconv.Itoa(r.IntN(3))}
			made.Add(scheduling.NewRequirement(label, operators[r.IntN(len(operators))], values...))
		}
	}
	return made
}

// A taint is tolerated as core's Taints say.
func TestTaintsAreToleratedAsInCore(t *testing.T) {
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		taint := corev1.Taint{Key: "k", Value: "v", Effect: effect}
		for _, toleration := range []corev1.Toleration{
			{}, {Operator: corev1.TolerationOpExists}, {Key: "k"}, {Key: "k", Value: "v"}, {Key: "k", Value: "w"}, {Key: "l", Value: "v"},
			{Key: "k", Operator: corev1.TolerationOpExists}, {Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		} {
			tolerations := []corev1.Toleration{{Key: "other"}, toleration}
			if got, core := tolerated(&taint, tolerations), (scheduling.Taints{taint}).Tolerates(tolerations) == nil; got != core {
				t.Errorf("%+v tolerates %+v: %v, core says %v", toleration, taint, got, core)
			}
		}
	}
}
