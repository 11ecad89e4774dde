package conflict

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// world is instance seg-a with class a, and instance seg-b with class b, both alive, without any conflict.
func world(edits ...func(*Snapshot)) Snapshot {
	s := Snapshot{
		Self: Self{Instance: "seg-a", PoolNamespace: "kp-a", Release: "rel-a"}, Now: noon, LeaseNamespace: "kube-system",
		Instances: []Instance{
			{Name: "seg-a", LeaseName: "kpssh-seg-a", LeaseUID: "lease-a", PoolNamespace: "kp-a", Release: "rel-a"},
			{Name: "seg-b", LeaseName: "kpssh-seg-b", LeaseUID: "lease-b", PoolNamespace: "kp-b", Release: "rel-b"},
		},
		Lives:   map[string]Life{"seg-a": Alive, "seg-b": Alive},
		Classes: []v1beta1.SSHNodeClass{*aClass("a", "seg-a"), *aClass("b", "seg-b")},
		Pools:   []karpv1.NodePool{*aPool("pool-a", "a", tainted("a")), *aPool("pool-b", "b", tainted("b"))},
		Hosts: []Host{
			{Namespace: "kp-a", Name: "h1", UID: "a1", Address: "192.0.2.1", Port: 22, Fingerprint: "SHA256:a1"},
			{Namespace: "kp-b", Name: "h1", UID: "b1", Address: "198.51.100.1", Port: 22, Fingerprint: "SHA256:b1"},
		},
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func aClass(name, instance string, edits ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	c := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name)}, Spec: v1beta1.SSHNodeClassSpec{
		Instance: instance, JoinProfileRef: v1beta1.ProfileReference{Name: "p"},
	}}
	for _, edit := range edits {
		edit(c)
	}
	return c
}

type poolEdit = func(*karpv1.NodePool)

func aPool(name, class string, edits ...poolEdit) *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pool-" + name)}}
	p.Spec.Template.Labels = map[string]string{v1beta1.ManagedLabel: "true"}
	p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ownership.ClassKind, Name: class}
	p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func tainted(value string) poolEdit {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Taints = append(p.Spec.Template.Spec.Taints, corev1.Taint{Key: v1beta1.PoolTaint, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

func requires(key string, values ...string) poolEdit {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
}

func labelled(key, value string) poolEdit {
	return func(p *karpv1.NodePool) { p.Spec.Template.Labels[key] = value }
}

func weighs(weight int32) poolEdit { return func(p *karpv1.NodePool) { p.Spec.Weight = &weight } }

func ofProvider(group, kind string) poolEdit {
	return func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: group, Kind: kind, Name: "any"}
		p.Spec.Template.Labels = map[string]string{}
	}
}

// aClaim of instance seg-a.
func aClaim(name, pool, class string) karpv1.NodeClaim {
	c := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool}}}
	c.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ownership.ClassKind, Name: class}
	return c
}

func pools(pools ...*karpv1.NodePool) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Pools = nil
		for _, p := range pools {
			s.Pools = append(s.Pools, *p)
		}
	}
}

func host(h Host) func(*Snapshot) { return func(s *Snapshot) { s.Hosts = append(s.Hosts, h) } }

// Each kind of conflict is a finding that names the object, the other party and the way out; what looks like one and is none is not.
func TestFind(t *testing.T) {
	for name, row := range map[string]struct {
		edit func(*Snapshot)
		// want has `Type Kind/name other=… classes=… owner=…` for each finding
		want []string
		// says is in the message of the first
		says []string
	}{
		"two instances that keep apart": {edit: func(*Snapshot) {}},

		"A10: the lease of this name is another release's": {
			edit: func(s *Snapshot) { s.Instances[0].Release, s.Instances[0].PoolNamespace = "rel-x", "kp-x" },
			want: []string{"DuplicateInstance Lease/kpssh-seg-a other=release rel-x, pool namespace kp-x classes=a owner=seg-a"},
			says: []string{"rel-x", "kp-x", "rel-a", "another instance.name"},
		},
		"A10: of the same release with another pool namespace": {
			edit: func(s *Snapshot) { s.Instances[0].PoolNamespace = "kp-x" },
			want: []string{"DuplicateInstance Lease/kpssh-seg-a other=release rel-a, pool namespace kp-x classes=a owner=seg-a"},
		},
		"A10: another release stood by and ended": {
			edit: func(s *Snapshot) { s.Contender = "release kp-x.two, pool namespace kp-x" },
			want: []string{"DuplicateInstance Lease/kpssh-seg-a other=release kp-x.two, pool namespace kp-x classes=a owner=seg-a"},
			says: []string{"kp-x.two"},
		},
		"a lease without labels is of an older version": {edit: func(s *Snapshot) { s.Instances[0] = Instance{Name: "seg-a", LeaseName: "kpssh-seg-a"} }},

		"two instances have one pool namespace": {
			edit: func(s *Snapshot) { s.Instances[1].PoolNamespace = "kp-a" },
			want: []string{"SharedPoolNamespace Namespace/kp-a other=seg-b classes=a owner=seg-a"},
			says: []string{"seg-a, seg-b", "a namespace to itself"},
		},
		"the lease of an instance that is gone shares nothing": {
			edit: func(s *Snapshot) { s.Instances[1].PoolNamespace, s.Lives["seg-b"] = "kp-a", Dead },
			want: []string{"UnownedNodeClass SSHNodeClass/b other=seg-b classes= owner=seg-b", "UnownedNodePool NodePool/pool-b other=seg-b classes= owner=seg-b"},
		},
		"two others have one pool namespace": {
			edit: func(s *Snapshot) {
				s.Instances = append(s.Instances, Instance{Name: "seg-c", LeaseName: "kpssh-seg-c", PoolNamespace: "kp-b"})
				s.Lives["seg-c"] = Alive
			},
			want: []string{"SharedPoolNamespace Namespace/kp-b other=seg-c classes= owner=seg-b"},
		},

		"L2: a class of an instance that is not there": {
			edit: func(s *Snapshot) { s.Lives["seg-b"] = Dead },
			want: []string{"UnownedNodeClass SSHNodeClass/b other=seg-b classes= owner=seg-b", "UnownedNodePool NodePool/pool-b other=seg-b classes= owner=seg-b"},
			says: []string{`"seg-b"`, "(seg-a)"},
		},
		"a class of an instance that was not watched for long": {edit: func(s *Snapshot) { s.Lives["seg-b"] = Unsure }},

		"a pool without a class": {
			edit: pools(aPool("p", "none")),
			want: []string{"DanglingNodePool NodePool/p other=none classes= owner="},
			says: []string{`"none" does not exist`, "nodeClassRef.name"},
		},
		"a claim without a class": {
			edit: func(s *Snapshot) { s.Labelled = []LabelledClaim{{Name: "c", Class: "none"}} },
			want: []string{"DanglingNodeClaim NodeClaim/c other=none classes= owner="},
			says: []string{`"none" does not exist`, "delete it"},
		},
		"another provider's pool is never dangling": {edit: pools(aPool("p", "", ofProvider("karpenter.k8s.aws", "EC2NodeClass")))},
		"a pool that is being deleted":              {edit: pools(aPool("p", "none", func(p *karpv1.NodePool) { p.DeletionTimestamp = new(metav1.NewTime(noon)) }))},

		"a pool that was pointed at another instance's class": {
			edit: func(s *Snapshot) {
				s.Claims = []karpv1.NodeClaim{aClaim("c1", "pool-b", "a"), aClaim("c2", "pool-b", "a")}
			},
			want: []string{"MovedNodePool NodePool/pool-b other=seg-b classes=a owner=seg-a"},
			says: []string{"2 NodeClaims", `"seg-a"`, "seg-b", "create a new one and drain the old"},
		},
		"a pool that was pointed at another provider": {
			edit: func(s *Snapshot) {
				s.Claims = []karpv1.NodeClaim{aClaim("c1", "pool-b", "a")}
				ofProvider("karpenter.k8s.aws", "EC2NodeClass")(&s.Pools[1])
				tainted("x")(&s.Pools[1])
			},
			want: []string{"MovedNodePool NodePool/pool-b other=another provider classes=a owner=seg-a"},
		},
		"a pool with claims that stayed": {edit: func(s *Snapshot) { s.Claims = []karpv1.NodeClaim{aClaim("c1", "pool-a", "a")} }},
		"a moved pool whose claims are on their way out": {edit: func(s *Snapshot) {
			s.Claims = []karpv1.NodeClaim{aClaim("c1", "pool-b", "a")}
			s.Claims[0].DeletionTimestamp = new(metav1.NewTime(noon))
		}},

		"one address in two namespaces": {
			edit: host(Host{Namespace: "kp-b", Name: "h2", Address: "192.0.2.1", Port: 22}),
			want: []string{
				"SharedMachine SSHHost/h1 other=kp-b/h2 classes=a owner=seg-a",
				"SharedMachine SSHHost/h2 other=kp-a/h1 classes= owner=seg-b",
			},
			says: []string{"kp-b/h2", "Delete all SSHHosts of the machine but one"},
		},
		"one address in one namespace, spelled otherwise": {
			edit: host(Host{Namespace: "kp-a", Name: "h2", Address: "::ffff:192.0.2.1", Fingerprint: "SHA256:a2"}),
			want: []string{
				"SharedMachine SSHHost/h1 other=kp-a/h2 classes=a owner=seg-a",
				"SharedMachine SSHHost/h2 other=kp-a/h1 classes=a owner=seg-a",
			},
		},
		"one host key at two addresses": {
			edit: host(Host{Namespace: "kp-b", Name: "h2", Address: "192.0.2.77", Port: 22, Fingerprint: "SHA256:a1"}),
			want: []string{
				"SharedMachine SSHHost/h1 other=kp-b/h2 classes=a owner=seg-a",
				"SharedMachine SSHHost/h2 other=kp-a/h1 classes= owner=seg-b",
			},
			says: []string{"host key SHA256:a1", "its own host keys"},
		},
		"one private address behind a jump host":                  {edit: host(Host{Namespace: "kp-a", Name: "h2", Address: "192.0.2.1", Port: 22, Via: "10.0.0.1 22 ", Fingerprint: "SHA256:a2"})},
		"one private address in two segments, with two host keys": {edit: host(Host{Namespace: "kp-b", Name: "h2", Address: "192.0.2.1", Port: 22, Fingerprint: "SHA256:b2"})},
		"another port of one address":                             {edit: host(Host{Namespace: "kp-b", Name: "h2", Address: "192.0.2.1", Port: 2222})},
		"hosts that no class selects are shared all the same": {
			edit: func(s *Snapshot) {
				s.Classes[0].Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
				s.Hosts = append(s.Hosts, Host{Namespace: "kp-a", Name: "h2", Address: "192.0.2.1", Labels: labels.Set{"rack": "1"}})
			},
			want: []string{
				"SharedMachine SSHHost/h1 other=kp-a/h2 classes= owner=seg-a",
				"SharedMachine SSHHost/h2 other=kp-a/h1 classes=a owner=seg-a",
			},
		},

		"a machine says that it is somebody else's": {
			edit: func(s *Snapshot) {
				s.Hosts[0].OwnedElsewhere = "owner cluster=x"
				s.Hosts[1].OwnedElsewhere = "not mine to tell"
			},
			want: []string{"HostOwnedElsewhere SSHHost/h1 other= classes=a owner=seg-a"},
			says: []string{"owner cluster=x"},
		},

		"S6: the guard refused a write": {
			edit: func(s *Snapshot) {
				s.Refusals = []ownership.Refusal{{Kind: "NodeClaim", Name: "c", UID: "u", Verb: "delete", Count: 3, Last: noon.Add(-time.Minute)}}
			},
			want: []string{"ForeignWrite NodeClaim/c other=seg-a classes= owner=seg-a"},
			says: []string{"delete", "refused"},
		},
		"S6: long ago": {edit: func(s *Snapshot) {
			s.Refusals = []ownership.Refusal{{Kind: "NodeClaim", Name: "c", Last: noon.Add(-lingers)}}
		}},

		"E2: a Node's name was taken": {
			edit: func(s *Snapshot) {
				s.NamesInUse = []NameInUse{{Node: "n", ProviderID: "kpssh://kp-b/h1", Host: "h1", NodeClass: "a", Seen: noon.Add(-time.Minute)}}
			},
			want: []string{"NodeNameInUse Node/n other=kpssh://kp-b/h1 classes=a owner=seg-a"},
			says: []string{"kp-a/h1", "delete it"},
		},
		"E2: long ago": {edit: func(s *Snapshot) { s.NamesInUse = []NameInUse{{Node: "n", NodeClass: "a", Seen: noon.Add(-lingers)}} }},

		"a claim of this instance's class on another's host": {
			edit: func(s *Snapshot) {
				s.Splits = []ownership.Split{{Name: "c", UID: "u", Class: "a", ProviderID: "kpssh://kp-b/h1"}}
			},
			want: []string{"SplitNodeClaim NodeClaim/c other=seg-b classes=a owner=seg-a"},
			says: []string{"seg-b", "kpssh://kp-b/h1", "remove its finalizer"},
		},
		"on a host of nobody that is known": {
			edit: func(s *Snapshot) {
				s.Splits = []ownership.Split{{Name: "c", Class: "a", ProviderID: "kpssh://kp-x/h1"}}
			},
			want: []string{"SplitNodeClaim NodeClaim/c other=of pool namespace kp-x classes=a owner=seg-a"},
		},

		"section 2 #59: a pool without the managed label": {
			edit: func(s *Snapshot) {
				delete(s.Pools[0].Spec.Template.Labels, v1beta1.ManagedLabel)
				s.Pools[1].Spec.Template.Labels[v1beta1.ManagedLabel] = "yes"
			},
			want: []string{
				"MissingManagedLabel NodePool/pool-a other= classes=a owner=seg-a",
				"MissingManagedLabel NodePool/pool-b other= classes= owner=seg-b",
			},
			says: []string{"spec.template.metadata.labels"},
		},

		"B1: plain pools of two instances": {
			edit: pools(aPool("p", "a"), aPool("q", "b")),
			want: []string{
				"OverlappingPools NodePool/p other=q (instance seg-b) classes=a owner=seg-a",
				"OverlappingPools NodePool/q other=p (instance seg-a) classes= owner=seg-b",
			},
			says: []string{"taint", "weights"},
		},
		"B1: a plain pool beside another provider's": {
			edit: pools(aPool("p", "a"), aPool("cloud", "", ofProvider("karpenter.k8s.aws", "EC2NodeClass"), requires("karpenter.k8s.aws/instance-family", "c", "m"), weighs(50))),
			want: []string{"OverlappingPools NodePool/p other=cloud (provider karpenter.k8s.aws) classes=a owner=seg-a"},
		},
		"B1: a tainted pool beside another provider's":        {edit: pools(aPool("p", "a", tainted("a")), aPool("cloud", "", ofProvider("karpenter.k8s.aws", "EC2NodeClass")))},
		"B1: another provider's pool with a label of its own": {edit: pools(aPool("p", "a"), aPool("cloud", "", ofProvider("karpenter.k8s.aws", "EC2NodeClass"), requires("team", "x")))},
		"two pools of one instance":                           {edit: pools(aPool("p", "a"), aPool("q", "a"))},
		"pools of different weights":                          {edit: pools(aPool("p", "a", weighs(10)), aPool("q", "b"))},
		"pools of different taints":                           {edit: pools(aPool("p", "a", tainted("a")), aPool("q", "b", tainted("b")))},
		"one pool tainted":                                    {edit: pools(aPool("p", "a", tainted("a")), aPool("q", "b"))},
		"pools of different zones":                            {edit: pools(aPool("p", "a", requires(corev1.LabelTopologyZone, "z1")), aPool("q", "b", requires(corev1.LabelTopologyZone, "z2")))},
		"pools of different labels":                           {edit: pools(aPool("p", "a", labelled("segment", "a")), aPool("q", "b", labelled("segment", "b")))},
		"a pool with a label that the other lacks":            {edit: pools(aPool("p", "a", labelled("segment", "a")), aPool("q", "b"))},
		"a pool of a fixed number of nodes takes no pods":     {edit: pools(aPool("p", "a", func(p *karpv1.NodePool) { p.Spec.Replicas = new(int64(1)) }), aPool("q", "b"))},
		"pools that differ by what is on every pool": {
			edit: pools(aPool("p", "a", requires(v1beta1.InstanceLabel, "seg-a")), aPool("q", "b", requires(v1beta1.InstanceLabel, "seg-b"))),
			want: []string{
				"OverlappingPools NodePool/p other=q (instance seg-b) classes=a owner=seg-a",
				"OverlappingPools NodePool/q other=p (instance seg-a) classes= owner=seg-b",
			},
		},
		"pools of the same taint, one of them in one zone only": {
			edit: pools(aPool("p", "a", tainted("x"), requires(corev1.LabelTopologyZone, "z1")), aPool("q", "b", tainted("x"))),
			want: []string{
				"OverlappingPools NodePool/p other=q (instance seg-b) classes=a owner=seg-a",
				"OverlappingPools NodePool/q other=p (instance seg-a) classes= owner=seg-b",
			},
		},

		"the worst comes first": {
			edit: func(s *Snapshot) {
				s.Instances[0].Release = "rel-x"
				s.Pools = []karpv1.NodePool{*aPool("p", "a", func(p *karpv1.NodePool) { p.Spec.Template.Labels = nil })}
			},
			want: []string{
				"DuplicateInstance Lease/kpssh-seg-a other=release rel-x, pool namespace kp-a classes=a owner=seg-a",
				"MissingManagedLabel NodePool/p other= classes=a owner=seg-a",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := Find(world(row.edit))
			var got []string
			for _, f := range found {
				got = append(got, f.Type+" "+f.Object.Kind+"/"+f.Object.Name+" other="+f.Other+" classes="+strings.Join(f.Classes, ",")+" owner="+f.Owner)
				if f.Object.APIVersion == "" || f.Message == "" || len(f.Message) > noteLimit {
					t.Errorf("%s: version %q, message %q", f.Type, f.Object.APIVersion, f.Message)
				}
				if !slices.Contains(severity, f.Type) {
					t.Errorf("%s has no severity", f.Type)
				}
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(row.want, "\n  "))
			}
			for _, text := range row.says {
				if len(found) > 0 && !strings.Contains(found[0].Message, text) {
					t.Errorf("the message does not say %q: %s", text, found[0].Message)
				}
			}
		})
	}
}

// Each finding is reported once in the cluster: by the owner, or in its place by the first instance that is alive.
func TestOneInstanceReports(t *testing.T) {
	all := []string{"seg-a", "seg-b", "seg-c"}
	for name, row := range map[string]struct {
		owner string
		lives map[string]Life
		want  string
	}{
		"the owner, if it is alive":              {"seg-b", map[string]Life{"seg-a": Alive, "seg-b": Alive, "seg-c": Alive}, "seg-b"},
		"the first, if the owner is dead":        {"seg-b", map[string]Life{"seg-a": Alive, "seg-b": Dead, "seg-c": Alive}, "seg-a"},
		"nobody, while that is not known":        {"seg-b", map[string]Life{"seg-a": Alive, "seg-b": Unsure, "seg-c": Alive}, ""},
		"the first alive, if there is no owner":  {"", map[string]Life{"seg-a": Dead, "seg-b": Alive, "seg-c": Alive}, "seg-b"},
		"an instance that is new does not count": {"", map[string]Life{"seg-a": Unsure, "seg-b": Alive, "seg-c": Alive}, "seg-b"},
	} {
		for _, self := range all {
			if row.lives[self] != Alive {
				continue // it knows of itself that it lives
			}
			lives := maps.Clone(row.lives)
			got := Snapshot{Self: Self{Instance: self}, Lives: lives}.reporter(Finding{Owner: row.owner})
			if got != row.want {
				t.Errorf("%s: %s thinks that %q reports, want %q", name, self, got, row.want)
			}
		}
	}
}
