package conflict

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// Self is who looks.
type Self struct {
	Instance, PoolNamespace string
	// Release tells this installation from another one with the same instance name; empty if that is not known.
	Release string
}

// Life of an instance, judged by whether its Lease changed while this process watched it.
type Life int

const (
	// Unsure means not watched for long enough to tell.
	Unsure Life = iota
	// Alive means that its Lease was renewed.
	Alive
	// Dead means that it has no Lease, or one that was not renewed for deadAfter.
	Dead
)

// Instance is what a Lease says.
type Instance struct {
	Name      string
	LeaseName string
	LeaseUID  types.UID
	// PoolNamespace and Release are empty if the Lease does not say.
	PoolNamespace, Release string
	// Held tells whether somebody holds the Lease: its last holder did not give it back.
	Held bool
}

// Host is what is compared of an SSHHost.
type Host struct {
	Namespace, Name string
	UID             types.UID
	Labels          labels.Set
	Address         string
	Port            int32
	// Via is the way to the host over jump hosts, behind which an address means something else; empty: it is dialled directly.
	Via string
	// Fingerprint of the host key that the machine showed; empty before the first contact.
	Fingerprint string
	// OwnedElsewhere is what the machine says about its owner, if that is somebody else.
	OwnedElsewhere string
}

// NameInUse is a join that did not take place, or came to nothing, because somebody else's Node has the name.
type NameInUse struct {
	// Node that has the name, its UID, and its provider ID, which may be empty.
	Node       string
	UID        types.UID
	ProviderID string
	// Host that was to join, and the class of its claim.
	Host, NodeClass string
	// Seen is when.
	Seen time.Time
}

// LabelledClaim is what a NodeClaim's metadata says of its class. The label is core's, and as immutable as the reference.
type LabelledClaim struct {
	Name  string
	UID   types.UID
	Class string
}

// Snapshot is everything that findings are derived from. It is read only.
type Snapshot struct {
	Self Self
	Now  time.Time
	// LeaseNamespace holds the Leases of all instances.
	LeaseNamespace string
	Instances      []Instance
	// Contender is what another release said of itself that lately tried to be this instance; empty if none did.
	Contender string
	// Lives has every instance that has a Lease or owns a class.
	Lives map[string]Life
	// Classes and Pools are those of the whole cluster.
	Classes []v1beta1.SSHNodeClass
	Pools   []karpv1.NodePool
	// Claims are this instance's own.
	Claims []karpv1.NodeClaim
	// Labelled are NodeClaims whose class did not exist when they were listed, which may be a minute ago.
	Labelled []LabelledClaim
	// Hosts of the whole cluster; those of others may be a minute old, and are missing if this instance may not list them.
	Hosts      []Host
	Refusals   []ownership.Refusal
	Splits     []ownership.Split
	NamesInUse []NameInUse
}

// missed tells of each instance that somebody would miss whether it is alive. An instance that gave its Lease back and owns no class was
// taken away on purpose. One that is not watched for long enough to tell is left out.
func (s Snapshot) missed() map[string]bool {
	wanted := map[string]bool{s.Self.Instance: true}
	for _, instance := range s.Instances {
		if instance.Held {
			wanted[instance.Name] = true
		}
	}
	for i := range s.Classes {
		if s.Classes[i].DeletionTimestamp.IsZero() {
			wanted[s.Classes[i].Spec.Instance] = true
		}
	}
	alive := map[string]bool{}
	for name := range wanted {
		if life := s.Lives[name]; life != Unsure {
			alive[name] = life == Alive
		}
	}
	return alive
}

// view is a snapshot with what many findings look up.
type view struct {
	Snapshot
	classes map[string]*v1beta1.SSHNodeClass
	// own classes that are not being deleted, in order.
	own []string
	// holders of a pool namespace: this instance, and others that are alive, in order.
	holders map[string][]string
	// last known instance of a pool namespace, alive or not.
	named     map[string]string
	selectors map[string]labels.Selector // of own classes
}

func newView(s Snapshot) *view {
	v := &view{
		Snapshot: s, classes: map[string]*v1beta1.SSHNodeClass{}, holders: map[string][]string{}, named: map[string]string{},
		selectors: map[string]labels.Selector{},
	}
	for i := range s.Classes {
		class := &s.Classes[i]
		v.classes[class.Name] = class
		if class.Spec.Instance == s.Self.Instance && class.DeletionTimestamp.IsZero() {
			v.own = append(v.own, class.Name)
			v.selectors[class.Name] = selectorOf(class)
		}
	}
	slices.Sort(v.own)
	v.holders[s.Self.PoolNamespace] = []string{s.Self.Instance}
	for _, instance := range s.Instances {
		if instance.PoolNamespace == "" || instance.Name == s.Self.Instance {
			continue
		}
		v.named[instance.PoolNamespace] = instance.Name
		if s.Lives[instance.Name] == Alive {
			v.holders[instance.PoolNamespace] = append(v.holders[instance.PoolNamespace], instance.Name)
		}
	}
	v.named[s.Self.PoolNamespace] = s.Self.Instance
	for _, names := range v.holders {
		slices.Sort(names)
	}
	return v
}

// selectorOf matches nothing if the class's selector is no selector; its Ready condition says so.
func selectorOf(class *v1beta1.SSHNodeClass) labels.Selector {
	if class.Spec.HostSelector == nil {
		return labels.Everything()
	}
	selector, err := metav1.LabelSelectorAsSelector(class.Spec.HostSelector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// selecting lists the own classes that select a host.
func (v *view) selecting(h Host) (names []string) {
	if h.Namespace != v.Self.PoolNamespace {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(v.own), func(class string) bool { return !v.selectors[class].Matches(h.Labels) })
}

// isMissing tells whether an instance is another one that is not there.
func (v *view) isMissing(instance string) bool {
	return instance != v.Self.Instance && v.Lives[instance] == Dead
}

// ifOwn is a list of the class, if it is one of this instance's.
func (v *view) ifOwn(class string) []string {
	if slices.Contains(v.own, class) {
		return []string{class}
	}
	return nil
}

// instanceOf names the instance of a pool namespace, in words if it is not known.
func (v *view) instanceOf(namespace string) string {
	return cmp.Or(v.named[namespace], "of pool namespace "+namespace)
}

// classOf is the SSHNodeClass that a reference names, if it names one.
func classOf(ref *karpv1.NodeClassReference) (string, bool) {
	if ref == nil || ref.Group != v1beta1.Group || ref.Kind != ownership.ClassKind {
		return "", false
	}
	return ref.Name, true
}
