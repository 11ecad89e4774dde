package ownership

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// refCases are references as they occur, with the answer to "does this name one of our classes?", our only class being "mine".
var refCases = []struct {
	name string
	ref  *karpv1.NodeClassReference
	own  bool
}{
	{"own class", ref("mine"), true},
	{"A4: nil reference", nil, false},
	{"A4: empty reference", &karpv1.NodeClassReference{}, false},
	{"A4: own group and kind without a name", ref(""), false},
	{"A4: own name under another provider's group", &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "mine"}, false},
	{"A4: own group with another kind", &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHHost", Name: "mine"}, false},
	{"A4: own kind without a group", &karpv1.NodeClassReference{Kind: ClassKind, Name: "mine"}, false},
	{"A4: group in another case", &karpv1.NodeClassReference{Group: "Karpenter.dklesev.github.io", Kind: ClassKind, Name: "mine"}, false},
	{"class of another instance, or of nobody", ref("theirs"), false},
	{"class whose name starts like ours", ref("mine2"), false},
}

func TestPoolIsSeenByTheOwnerOfItsClassOnly(t *testing.T) {
	for _, tc := range refCases {
		t.Run(tc.name, func(t *testing.T) {
			expectSight(t, me.pool(own("mine"), pool("p", tc.ref)), seenIf(tc.own))
		})
	}
}

func TestClaimIsSeenByTheOwnerOfItsClassOnly(t *testing.T) {
	for _, tc := range refCases {
		t.Run(tc.name, func(t *testing.T) {
			for _, id := range []string{"", ownHost, adoptedID} {
				expectSight(t, me.claim(own("mine"), claim("c", tc.ref, id)), seenIf(tc.own))
			}
		})
	}
}

func TestClaimOfOwnClassOnForeignHostIsNobodys(t *testing.T) {
	expectSight(t, me.claim(own("mine"), claim("c", ref("mine"), foreignHost)), split)
	other := Identity{Instance: "b", PoolNamespace: "segment-b"}
	expectSight(t, other.claim(own("theirs"), claim("c", ref("mine"), foreignHost)), hidden)
}

func TestProviderIDPrefixEndsAtTheNamespace(t *testing.T) {
	for id, foreign := range map[string]bool{
		"":                         false,
		ownHost:                    false,
		adoptedID:                  false,
		foreignHost:                true,
		"kpssh://segment-a2/h":     true,
		"kpssh://segment-a":        true, // no host: nothing we ever wrote
		"kpssh://":                 true,
		"kpssh:///h":               true,
		"kpssh:/segment-a/h":       false, // not our scheme
		"x-kpssh://segment-b/host": false,
	} {
		if got := me.foreignProviderID(id); got != foreign {
			t.Errorf("foreignProviderID(%q) = %v, want %v", id, got, foreign)
		}
	}
}

func TestNoClassMeansNothingIsOurs(t *testing.T) {
	none := own()
	expectSight(t, me.pool(none, pool("p", ref("mine"))), hidden)
	expectSight(t, me.claim(none, claim("c", ref("mine"), "")), hidden)
	expectSight(t, me.node(none, node("n", "mine", "")), masked)
}

func TestForeignNodeLooksLikeAnotherProviders(t *testing.T) {
	now := metav1.NewTime(time.Unix(1700000000, 0))
	deleting := func(n *corev1.Node) {
		n.DeletionTimestamp, n.DeletionGracePeriodSeconds = &now, ptr.To(int64(30))
		n.Finalizers = []string{karpv1.TerminationFinalizer}
	}
	inPool := label(karpv1.NodePoolLabelKey, "p")
	typed := label(corev1.LabelInstanceTypeStable, "default-amd64-4c-8g")
	initialized := label(karpv1.NodeInitializedLabelKey, "true")
	for _, tc := range []struct {
		name string
		in   *corev1.Node
		want sight
		// labels that must be gone from a masked Node; all others must be there
		gone []string
	}{
		{name: "no provider's", in: node("n", "", ""), want: plain},
		{name: "another provider's", in: node("n", "", adoptedID, inPool, deleting), want: plain},
		{name: "own", in: node("n", "mine", ownHost, inPool, deleting), want: plain},
		{name: "own, adopted ID", in: node("n", "mine", adoptedID), want: plain},
		{name: "own host, not yet labelled by core", in: node("n", "", ownHost, inPool), want: plain},
		{name: "own class, no ID yet", in: node("n", "mine", ""), want: plain},
		{name: "foreign class", in: node("n", "theirs", foreignHost, inPool, typed), want: masked, gone: []string{ClassLabel}},
		{name: "foreign host, not yet labelled", in: node("n", "", foreignHost, inPool, typed), want: masked, gone: []string{ClassLabel}},
		{name: "foreign class, adopted ID", in: node("n", "theirs", adoptedID, inPool, initialized), want: masked, gone: []string{ClassLabel}},
		{name: "own class on a foreign host: foreign to everybody", in: node("n", "mine", foreignHost, inPool, typed), want: masked, gone: []string{ClassLabel}},
		{name: "foreign class on an own host: foreign to everybody", in: node("n", "theirs", ownHost, inPool, typed), want: masked, gone: []string{ClassLabel}},
		{name: "foreign and draining", in: node("n", "theirs", foreignHost, inPool, typed, deleting), want: masked, gone: []string{ClassLabel}},
		{name: "foreign without ID would hold up core's first sync", in: node("n", "theirs", "", inPool, typed), want: masked, gone: []string{ClassLabel, karpv1.NodePoolLabelKey}},
		{name: "foreign without instance type would hold up core's first sync", in: node("n", "theirs", foreignHost, inPool), want: masked, gone: []string{ClassLabel, karpv1.NodePoolLabelKey}},
		{name: "foreign, initialized without instance type", in: node("n", "theirs", foreignHost, inPool, initialized), want: masked, gone: []string{ClassLabel}},
		{name: "foreign with an empty class label", in: node("n", "", ownHost, label(ClassLabel, "")), want: masked, gone: []string{ClassLabel}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.in.ResourceVersion = "7"
			tc.in.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			want := tc.in.DeepCopy()
			if tc.want == masked {
				want.DeletionTimestamp, want.DeletionGracePeriodSeconds = nil, nil
				want.Annotations = map[string]string{maskAnnotation: "true"}
				for _, l := range tc.gone {
					delete(want.Labels, l)
				}
			}
			expectSight(t, me.node(own("mine"), tc.in), tc.want)
			if !reflect.DeepEqual(tc.in, want) {
				t.Errorf("got  %+v\nwant %+v", tc.in, want)
			}
			me.node(own("mine"), tc.in)
			if !reflect.DeepEqual(tc.in, want) {
				t.Errorf("a second view changed it again: %+v", tc.in)
			}
		})
	}
}

func TestNodeWithoutAnyMetadataIsSeen(t *testing.T) {
	expectSight(t, me.node(own("mine"), &corev1.Node{}), plain)
	expectSight(t, me.node(own("mine"), &corev1.Node{Spec: corev1.NodeSpec{ProviderID: foreignHost}}), masked)
}

func TestBufferHasExactlyOneHome(t *testing.T) {
	byDefault := Identity{Instance: v1beta1.DefaultInstance, PoolNamespace: "kpssh-system"}
	for _, tc := range []struct {
		name              string
		labels            map[string]string
		mine, defaultsOne bool
	}{
		{"no label", nil, false, true},
		{"empty label", map[string]string{HomeInstanceLabel: ""}, false, true},
		{"this instance", map[string]string{HomeInstanceLabel: "a"}, true, false},
		{"an instance that does not exist", map[string]string{HomeInstanceLabel: "nobody"}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}
			expectSight(t, me.buffer(b), seenIf(tc.mine))
			expectSight(t, byDefault.buffer(b), seenIf(tc.defaultsOne))
		})
	}
}

// FuzzViews: for any labels, IDs and references, two instances never see the same pool or claim, never both take a Node for their
// own, and a view of a view changes nothing.
func FuzzViews(f *testing.F) {
	f.Add("mine", v1beta1.Group, ClassKind, ownHost, "mine", true, "p", "t")
	f.Add("theirs", v1beta1.Group, ClassKind, foreignHost, "theirs", true, "p", "")
	f.Add("mine", v1beta1.Group, ClassKind, foreignHost, "theirs", true, "", "")
	f.Add("", "", "", "kpssh://", "", false, "", "")
	f.Add("mine", "karpenter.k8s.aws", "EC2NodeClass", adoptedID, "", false, "p", "t")
	other := Identity{Instance: "b", PoolNamespace: "segment-b"}
	mine, theirs := own("mine"), own("theirs")
	f.Fuzz(func(t *testing.T, class, group, kind, providerID, nodeClass string, labelled bool, nodePool, instanceType string) {
		r := &karpv1.NodeClassReference{Group: group, Kind: kind, Name: class}
		if me.pool(mine, pool("p", r)).visible() && other.pool(theirs, pool("p", r)).visible() {
			t.Error("two instances see one pool")
		}
		c := claim("c", r, providerID)
		if me.claim(mine, c).visible() && other.claim(theirs, c).visible() {
			t.Error("two instances see one claim")
		}
		if me.claim(mine, c).visible() && me.foreignProviderID(providerID) {
			t.Error("a claim on a foreign host is seen")
		}
		n := node("n", "", providerID, label(karpv1.NodePoolLabelKey, nodePool), label(corev1.LabelInstanceTypeStable, instanceType))
		if labelled {
			n.Labels[ClassLabel] = nodeClass
		}
		before := n.DeepCopy()
		sawMine, sawTheirs := me.node(mine, n.DeepCopy()), other.node(theirs, n.DeepCopy())
		if !sawMine.visible() || !sawTheirs.visible() {
			t.Error("a Node is hidden: its capacity would be missing")
		}
		if labelled && sawMine == plain && sawTheirs == plain {
			t.Error("two instances own one Node")
		}
		if got := me.judge(mine, n, false); (got == foreign) != (sawMine == masked) || !reflect.DeepEqual(n, before) {
			t.Errorf("the guard says %v where the view says %v, or changed the Node", got, sawMine)
		}
		me.node(mine, n)
		once := n.DeepCopy()
		if me.node(mine, n); !reflect.DeepEqual(n, once) {
			t.Errorf("a view of a view differs: %+v, was %+v", n, once)
		}
		if sawMine == masked {
			if _, ok := n.Labels[ClassLabel]; ok {
				t.Error("a masked Node keeps its class label")
			}
			if n.Labels[karpv1.NodePoolLabelKey] != "" && (providerID == "" || instanceType == "") {
				t.Error("a masked Node would hold up core's first sync")
			}
		}
	})
}

// BenchmarkViews: views run for each event and list item of all instances and must not allocate.
func BenchmarkViews(b *testing.B) {
	set := own("mine", "mine-too")
	foreignPool, ownClaim, foreignNode := pool("p", ref("theirs")), claim("c", ref("mine"), ownHost), node("n", "theirs", foreignHost, label(karpv1.NodePoolLabelKey, "p"))
	b.ReportAllocs()
	for b.Loop() {
		me.pool(set, foreignPool)
		me.claim(set, ownClaim)
		me.node(set, foreignNode)
	}
}

func TestViewsDoNotAllocate(t *testing.T) {
	set := own("mine", "mine-too")
	p, c, n := pool("p", ref("theirs")), claim("c", ref("mine"), ownHost), node("n", "theirs", foreignHost, label(karpv1.NodePoolLabelKey, "p"))
	if allocs := testing.AllocsPerRun(100, func() {
		me.pool(set, p)
		me.claim(set, c)
		me.node(set, n)
	}); allocs != 0 {
		t.Errorf("%v allocations per object of each kind", allocs)
	}
}

func seenIf(yes bool) sight {
	if yes {
		return plain
	}
	return hidden
}

func expectSight(t *testing.T, got, want sight) {
	t.Helper()
	if got != want {
		t.Errorf("sight %v, want %v", got, want)
	}
}
