package instancetype

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func TestShapesBecomeTypes(t *testing.T) {
	big8 := Shape{HostClass: "big", Arch: "amd64", CPU: 8000, Memory: 32 << 30, EphemeralStorage: 20 << 30, Pods: 110}
	arm4 := Shape{HostClass: "big", Arch: "arm64", CPU: 4000, Memory: 16 << 30, EphemeralStorage: 20 << 30, Pods: 110}
	for _, test := range []struct {
		name  string
		hosts []*v1beta1.SSHHost
		want  []string
	}{
		{"no hosts, no types", nil, []string{}},
		{"hosts without a class label are class default (section 2 #24)", []*v1beta1.SSHHost{available("a", "", "4", "16Gi")}, []string{"default amd64 4 pool:1"}},
		{"equal hosts are one type", []*v1beta1.SSHHost{available("a", "big", "4", "16Gi"), available("b", "big", "4000m", "16777216Ki")}, []string{"big amd64 4 pool:2"}},
		{"the smallest shape carries the class name (section 2 #25: no member is advertised larger than it is)",
			[]*v1beta1.SSHHost{available("a", "big", "8", "32Gi"), available("b", "big", "4", "16Gi")}, []string{"big amd64 4 pool:1", big8.Name() + " amd64 8 pool:1"}},
		{"architectures are split, amd64 first (section 2 #26, section 3 #21)",
			[]*v1beta1.SSHHost{available("a", "big", "4", "16Gi", arch("arm64")), available("b", "big", "4", "16Gi")}, []string{"big amd64 4 pool:1", arm4.Name() + " arm64 4 pool:1"}},
		{"a smaller arm64 host carries the class name", []*v1beta1.SSHHost{available("a", "big", "4", "16Gi", arch("arm64")), available("b", "big", "8", "32Gi")},
			[]string{"big arm64 4 pool:1", big8.Name() + " amd64 8 pool:1"}},
		{"classes are apart", []*v1beta1.SSHHost{available("a", "big", "8", "32Gi"), available("b", "small", "2", "4Gi")}, []string{"big amd64 8 pool:1", "small amd64 2 pool:1"}},
		{"one offering per zone", []*v1beta1.SSHHost{available("a", "big", "8", "32Gi", zone("east")), available("b", "big", "8", "32Gi", zone("west"), state(v1beta1.HostUnhealthy)), available("c", "big", "8", "32Gi")},
			[]string{"big amd64 8 east:1 pool:1 west:0"}},
		{"unprobed hosts are not offered", []*v1beta1.SSHHost{available("a", "big", "8", "32Gi", arch("")), available("b", "small", "2", "4Gi")}, []string{"small amd64 2 pool:1"}},
		{"unprobed hosts do not lend their size to the class name", []*v1beta1.SSHHost{available("a", "big", "1", "2Gi", arch("")), available("b", "big", "8", "32Gi")}, []string{"big amd64 8 pool:1"}},
		{"capacity of zero is not offered", []*v1beta1.SSHHost{available("a", "big", "0", "32Gi"), available("b", "big", "2", "0"), available("c", "big", "-1", "1Gi"), available("d", "big", "8", "32Gi")}, []string{"big amd64 8 pool:1"}},
		{"less than is reserved is not offered", []*v1beta1.SSHHost{available("a", "big", "1", "400Mi"), available("b", "big", "80m", "8Gi"), available("c", "big", "8", "32Gi")}, []string{"big amd64 8 pool:1"}},
		{"A7: hosts in use, in maintenance, unhealthy, leaving or yet to leave change availability only",
			[]*v1beta1.SSHHost{
				available("a", "big", "8", "32Gi", maintenance), available("b", "big", "8", "32Gi", state(v1beta1.HostUnhealthy)), available("c", "big", "8", "32Gi", leavePending),
				available("d", "big", "8", "32Gi", state(v1beta1.HostLeaving)), available("e", "big", "8", "32Gi", state(v1beta1.HostMaintenance)), available("f", "big", "8", "32Gi", state("")),
			}, []string{"big amd64 8 pool:0"}},
		{"section 3 #37: an unhealthy host does not shrink what is promised of the others",
			[]*v1beta1.SSHHost{available("a", "big", "2", "4Gi", state(v1beta1.HostUnhealthy)), available("b", "big", "8", "32Gi")}, []string{"big amd64 2 pool:0", big8.Name() + " amd64 8 pool:1"}},
		{"a type with nodes matches any zone", []*v1beta1.SSHHost{available("a", "big", "8", "32Gi", claimedAs("big"))}, []string{"big amd64 8 pool:0 *"}},
		{"claims of the time before shapes were types name their class", []*v1beta1.SSHHost{available("a", "big", "8", "32Gi", claimedAs(""))}, []string{"big amd64 8 pool:0 *"}},
		{"a claim's type stays when a smaller host takes the class name",
			[]*v1beta1.SSHHost{available("a", "big", "8", "32Gi", claimedAs("big")), available("b", "big", "4", "16Gi")}, []string{"big amd64 4 pool:1 *", big8.Name() + " amd64 8 pool:0"}},
		{"a claim's type stays when its shape takes over the class name",
			[]*v1beta1.SSHHost{available("a", "big", "8", "32Gi", claimedAs(big8.Name()))}, []string{"big amd64 8 pool:0", big8.Name() + " amd64 8 *"}},
		{"a claim's type stays when the host is given another class", []*v1beta1.SSHHost{available("a", "huge", "8", "32Gi", claimedAs("big"))}, []string{"huge amd64 8 pool:0", "big amd64 8 *"}},
		{"a claim's type stays when the host's capacity turns invalid", []*v1beta1.SSHHost{available("a", "big", "0", "32Gi", claimedAs("big"))}, []string{"big amd64 0 *"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(summary(listing(test.hosts...))).To(Equal(test.want))
			rand.Shuffle(len(test.hosts), func(i, j int) { test.hosts[i], test.hosts[j] = test.hosts[j], test.hosts[i] })
			g.Expect(summary(listing(test.hosts...))).To(Equal(test.want), "whatever the order of hosts")
		})
	}
}

func TestATypeStaysForHostsTheClassNoLongerSelects(t *testing.T) {
	g := NewWithT(t)
	held := available("a", "big", "8", "32Gi", claimedAs("big"))
	types := ForClass(Inputs{Class: webClass(), Held: []*v1beta1.SSHHost{held}, Instance: "default"})
	g.Expect(summary(types)).To(Equal([]string{"big amd64 8 *"}))
	g.Expect(types[0].Offerings.Available()).To(BeEmpty())
}

func TestTypesAdvertiseEveryLabelOfTheirNodes(t *testing.T) {
	g := NewWithT(t)
	class := webClass()
	class.Spec.Zone = "hall-2"
	types := ForClass(Inputs{Class: class, Selected: []*v1beta1.SSHHost{available("a", "big", "8", "32Gi"), available("b", "big", "8", "32Gi", zone("hall-1"))}, Instance: "seg-a"})
	g.Expect(types).To(HaveLen(1))
	for label, values := range map[string][]string{
		corev1.LabelInstanceTypeStable: {"big"}, corev1.LabelArchStable: {"amd64"}, corev1.LabelOSStable: {"linux"},
		corev1.LabelTopologyZone: {"hall-1", "hall-2"}, karpv1.CapacityTypeLabelKey: {"on-demand"},
		v1beta1.InstanceLabel: {"seg-a"}, v1beta1.HostClassLabel: {"big"},
	} {
		requirement := types[0].Requirements.Get(label)
		g.Expect(requirement.Operator()).To(Equal(corev1.NodeSelectorOpIn), label)
		g.Expect(requirement.Values()).To(ConsistOf(values), label)
	}
	for label := range karpv1.WellKnownLabels {
		g.Expect(types[0].Requirements.Has(label) || label == karpv1.NodePoolLabelKey).To(BeTrue(), "%s is neither advertised nor denied", label)
	}
	for index, zone := range []string{"hall-1", "hall-2"} {
		g.Expect(types[0].Offerings[index].Zone()).To(Equal(zone))
		g.Expect(types[0].Offerings[index].CapacityType()).To(Equal("on-demand"))
	}
}

// Section 2 #60: a pod that asks for a label which no node will carry must be told so, not given node after node.
func TestARegionIsOfferedOnlyIfTheNodePoolLabelsItsNodes(t *testing.T) {
	g := NewWithT(t)
	pod := scheduling.NewLabelRequirements(map[string]string{corev1.LabelTopologyRegion: "eu"})
	in := Inputs{Class: webClass(), Selected: []*v1beta1.SSHHost{available("a", "big", "8", "32Gi")}, Instance: "default"}
	g.Expect(ForClass(in)[0].Requirements.Intersects(pod)).NotTo(Succeed())
	g.Expect(ForClass(in)[0].Requirements.Intersects(scheduling.NewRequirements())).To(Succeed())
	in.Region = "eu"
	g.Expect(ForClass(in)[0].Requirements.Intersects(pod)).To(Succeed())
}

func TestCapacityAndOverhead(t *testing.T) {
	gpu := corev1.ResourceName("nvidia.com/gpu")
	for _, test := range []struct {
		name        string
		host        *v1beta1.SSHHost
		class       func(*v1beta1.SSHNodeClass)
		capacity    map[corev1.ResourceName]string
		allocatable map[corev1.ResourceName]string
	}{
		{"defaults: 80m, 300Mi, 100Mi eviction, 20Gi disk of which a tenth is kept, 110 pods", available("a", "big", "8", "32Gi"), nil,
			map[corev1.ResourceName]string{"cpu": "8", "memory": "32Gi", "ephemeral-storage": "20Gi", "pods": "110"},
			map[corev1.ResourceName]string{"cpu": "7920m", "memory": "32368Mi", "ephemeral-storage": "19327352800", "pods": "110"}},
		{"the host's own pods and disk", available("a", "big", "8", "32Gi", capacity("pods", "30"), capacity("ephemeral-storage", "100Gi")), nil,
			map[corev1.ResourceName]string{"ephemeral-storage": "100Gi", "pods": "30"}, map[corev1.ResourceName]string{"pods": "30"}},
		{"the class's maxPods outranks the host's", available("a", "big", "8", "32Gi", capacity("pods", "30")), func(c *v1beta1.SSHNodeClass) { c.Spec.MaxPods = new(int32(250)) },
			map[corev1.ResourceName]string{"pods": "250"}, map[corev1.ResourceName]string{"pods": "250"}},
		{"kubeReserved replaces the default whole", available("a", "big", "8", "32Gi"), func(c *v1beta1.SSHNodeClass) {
			c.Spec.KubeReserved = corev1.ResourceList{"memory": resource.MustParse("1Gi")}
		}, map[corev1.ResourceName]string{"cpu": "8"}, map[corev1.ResourceName]string{"cpu": "8", "memory": "31644Mi"}},
		{"extended resources", available("a", "big", "8", "32Gi", capacity(gpu, "2"), capacity("example.com/none", "0")), nil,
			map[corev1.ResourceName]string{gpu: "2", "example.com/none": ""}, map[corev1.ResourceName]string{gpu: "2"}},
		{"hugepages are no longer memory", available("a", "big", "8", "32Gi", capacity("hugepages-2Mi", "1Gi")), nil,
			map[corev1.ResourceName]string{"hugepages-2Mi": "1Gi"}, map[corev1.ResourceName]string{"memory": "31344Mi"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			class := webClass()
			if test.class != nil {
				test.class(class)
			}
			types := ForClass(Inputs{Class: class, Selected: []*v1beta1.SSHHost{test.host}, Instance: "default"})
			g.Expect(types).To(HaveLen(1))
			check := func(list corev1.ResourceList, want map[corev1.ResourceName]string) {
				for name, quantity := range want {
					got, found := list[name]
					if quantity == "" {
						g.Expect(found).To(BeFalse(), "%s", name)
						continue
					}
					g.Expect(got.Cmp(resource.MustParse(quantity))).To(BeZero(), "%s is %s, want %s", name, got.String(), quantity)
				}
			}
			check(types[0].Capacity, test.capacity)
			check(types[0].Allocatable(), test.allocatable)
		})
	}
}

func TestPriceIsCoresTimesThePriceOfOne(t *testing.T) {
	g := NewWithT(t)
	for _, test := range []struct {
		perCPU string
		want   float64
	}{{"0.02", 0.15}, {"1", 7.5}, {"0", 0}, {"", 0.15}} {
		class := webClass()
		class.Spec.PricePerCPUHour = test.perCPU
		types := ForClass(Inputs{Class: class, Selected: []*v1beta1.SSHHost{available("a", "big", "7500m", "32Gi"), available("b", "big", "7500m", "32Gi", zone("z"))}})
		for _, offering := range types[0].Offerings {
			g.Expect(offering.Price).To(BeNumerically("~", test.want, 1e-9))
		}
	}
}

func TestRejectedHostsSayWhatToDo(t *testing.T) {
	g := NewWithT(t)
	rejected := Rejected(webClass(), []*v1beta1.SSHHost{
		available("ok", "big", "8", "32Gi"),
		available("e-arch", "big", "8", "32Gi", arch("bash: uname: command not found")),
		available("d-reserved", "big", "8", "350Mi"),
		available("c-pods", "big", "8", "32Gi", capacity("pods", "0")),
		available("b-unprobed", "big", "8", "32Gi", arch("")),
		available("a-zero", "big", "0", "32Gi"),
		available("a-negative", "big", "8", "32Gi", capacity("nvidia.com/gpu", "-1")),
	})
	reasons := []string{}
	for _, r := range rejected {
		reasons = append(reasons, r.Host+" "+r.Reason)
		g.Expect(r.Message).To(ContainSubstring("SSHHost " + r.Host))
	}
	g.Expect(reasons).To(Equal([]string{"a-negative CapacityInvalid", "a-zero CapacityInvalid", "b-unprobed NotProbed", "c-pods CapacityInvalid", "d-reserved CapacityReserved", "e-arch ArchInvalid"}))
	g.Expect(rejected[0].Message).To(Equal("SSHHost a-negative: capacity.nvidia.com/gpu is -1; it must be positive"))
	g.Expect(rejected[4].Message).To(Equal("SSHHost d-reserved: capacity.memory is not more than what SSHNodeClass web reserves; raise the capacity or lower kubeReserved"))
}

func TestNamesDependOnTheShapeAloneAndAreLabelValues(t *testing.T) {
	g := NewWithT(t)
	base := Shape{HostClass: "big", Arch: "arm64", CPU: 8000, Memory: 32 << 30, EphemeralStorage: 20 << 30, Pods: 110}
	g.Expect(base.Name()).To(Equal("big-arm64-8c-32gi-4e5d36a8"), "a name that changes with a release rolls every node")
	seen := map[string]Shape{}
	for _, class := range []string{"big", "B.i_g", strings.Repeat("c", 63), strings.Repeat("c", 62) + "d"} {
		for _, arch := range []string{"amd64", "riscv64", strings.Repeat("a", 63)} {
			for _, cpu := range []int64{1, 500, 8000, 256000} {
				for _, memory := range []int64{1 << 20, 32 << 30, 32<<30 + 4096, 4 << 40} {
					for _, extra := range []string{"", "nvidia.com/gpu=1"} {
						s := Shape{HostClass: class, Arch: arch, CPU: cpu, Memory: memory, Extra: extra}
						g.Expect(validation.IsValidLabelValue(s.Name())).To(BeEmpty(), s.Name())
						g.Expect(seen).NotTo(HaveKey(s.Name()), "%v", s)
						seen[s.Name()] = s
					}
				}
			}
		}
	}
}

func TestAHostClassMayBeNamedLikeAnotherShape(t *testing.T) {
	g := NewWithT(t)
	big8, _ := ShapeOf(available("a", "big", "8", "32Gi"))
	types := listing(available("a", "big", "8", "32Gi"), available("b", "big", "4", "16Gi"), available("c", big8.Name(), "1", "2Gi"))
	names := map[string]bool{}
	for _, each := range types {
		names[each.Name] = true
	}
	g.Expect(names).To(HaveLen(3))
}

func BenchmarkForClass(b *testing.B) {
	for _, shapes := range []int{1, 10, 1000} {
		hosts := make([]*v1beta1.SSHHost, 1000)
		for index := range hosts {
			hosts[index] = available(fmt.Sprintf("host-%04d", index), "big", "8", fmt.Sprintf("%dMi", 32<<10+index%shapes))
			if index%2 == 0 {
				claimedAs("big")(hosts[index])
			}
		}
		in := Inputs{Class: webClass(), Selected: hosts, Held: hosts, Instance: "default"}
		b.Run(fmt.Sprintf("hosts=1000/shapes=%d", shapes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ForClass(in)
			}
		})
	}
}
