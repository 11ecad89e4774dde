package join

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

const hybridID = "eks-hybrid:///region/cluster/mi-1"

// agentNode is a Node whose identity an agent chose, made after the claim.
func agentNode(name, id, address string, edits ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), CreationTimestamp: metav1.NewTime(start.Add(time.Minute)), Labels: map[string]string{}},
		Spec:       corev1.NodeSpec{ProviderID: id},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
	for _, e := range edits {
		e(&n)
	}
	return n
}

func TestWhichNodeIsAdopted(t *testing.T) {
	label := func(key, value string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[key] = value } }
	older := func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute)) }
	other := func(name, address string, edits ...edit) *v1beta1.SSHHost {
		h := in(v1beta1.HostAvailable, edits...)
		h.Name, h.Spec.Address = name, address
		return h
	}
	remembered := func(h *v1beta1.SSHHost) {
		h.Status.Adopted = &v1beta1.AdoptedIdentity{ProviderID: hybridID, NodeName: "mi-1"}
	}
	const ip = "192.0.2.1"
	for name, row := range map[string]struct {
		edits     []edit
		addresses []string
		others    []*v1beta1.SSHHost
		nodes     []corev1.Node
		want      string
		why       []string
	}{
		"none": {},
		"the claim's name, an address of this host":      {nodes: []corev1.Node{agentNode("n", hybridID, ip)}, want: "n"},
		"the claim's name, another machine's address":    {nodes: []corev1.Node{agentNode("n", hybridID, "192.0.2.9")}},
		"the name it had before":                         {edits: []edit{remembered}, nodes: []corev1.Node{agentNode("mi-1", "eks-hybrid:///region/cluster/mi-2", ip)}, want: "mi-1"},
		"an address alone":                               {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip), agentNode("mi-2", "eks-hybrid:///x/mi-2", "192.0.2.2")}, want: "mi-1"},
		"an address spelled otherwise":                   {addresses: []string{"2001:0db8:0::1"}, nodes: []corev1.Node{agentNode("mi-1", hybridID, "2001:db8::1")}, want: "mi-1"},
		"an address that the host's DNS name stands for": {addresses: []string{"host.example", ip}, nodes: []corev1.Node{agentNode("mi-1", hybridID, ip)}, want: "mi-1"},
		"a name wins over an address":                    {nodes: []corev1.Node{agentNode("n", hybridID, ip), agentNode("mi-2", "eks-hybrid:///x/mi-2", ip)}, want: "n"},
		"an address that two Nodes have":                 {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip), agentNode("mi-2", "eks-hybrid:///x/mi-2", ip)}, why: []string{"mi-1", "mi-2"}},
		"an address that two hosts have":                 {others: []*v1beta1.SSHHost{other("h2", ip)}, nodes: []corev1.Node{agentNode("mi-1", hybridID, ip)}, why: []string{"h2", "mi-1"}},
		"two hosts have the address, the name tells":     {others: []*v1beta1.SSHHost{other("h2", ip)}, nodes: []corev1.Node{agentNode("n", hybridID, ip)}, want: "n"},
		"an address alone, older than the claim":         {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip, older)}},
		"an identity that another host has had":          {others: []*v1beta1.SSHHost{other("h2", "192.0.2.2", remembered)}, nodes: []corev1.Node{agentNode("n", hybridID, ip)}},
		"no provider ID yet":                             {nodes: []corev1.Node{agentNode("n", "", ip)}},
		"another instance's provider ID":                 {nodes: []corev1.Node{agentNode("n", "kpssh://kp-b/h", ip)}},
		"section 3 #18: another class's, by its label":   {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip, label(ownership.ClassLabel, "theirs"))}},
		"this class's, by its label":                     {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip, label(ownership.ClassLabel, "nc-a"))}, want: "mi-1"},
		"another karpenter's, by its NodePool":           {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip, label(karpv1.NodePoolLabelKey, "cloud"))}},
		"one of a NodeClaim that is not this host's":     {nodes: []corev1.Node{agentNode("mi-1", hybridID, ip, func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Kind: "NodeClaim", UID: "x"}} })}},
		"one that is being deleted":                      {nodes: []corev1.Node{agentNode("n", hybridID, ip, func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.NewTime(start)) })}},
		"two Nodes with names that it may have":          {edits: []edit{remembered}, nodes: []corev1.Node{agentNode("n", "eks-hybrid:///x/mi-2", ip), agentNode("mi-1", hybridID, ip)}, why: []string{"mi-1", "n"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := in(v1beta1.HostInUse, append(row.edits, claimed, held)...)
			h.Spec.Address = ip
			if row.addresses == nil {
				row.addresses = []string{ip}
			}
			h.Spec.Address = row.addresses[0]
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", CreationTimestamp: metav1.NewTime(start)},
				Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Name: "nc-a"}}}
			got, why := wanted{host: h, claim: claim, addresses: row.addresses, inventory: append(row.others, h)}.match(row.nodes)
			if found := nameOrNone(got); found != row.want {
				t.Errorf("adopted %q, want %q (%s)", found, row.want, why)
			}
			if (why != "") != (len(row.why) > 0) {
				t.Errorf("ambiguity %q", why)
			}
			for _, part := range row.why {
				if !strings.Contains(why, part) {
					t.Errorf("%q does not name %s", why, part)
				}
			}
		})
	}
}

func nameOrNone(n *corev1.Node) string {
	if n == nil {
		return ""
	}
	return n.Name
}

func newAdoptLab(t *testing.T) *lab {
	l := newLab(t, scripts)
	class := &v1beta1.SSHNodeClass{}
	if err := l.api.Get(t.Context(), client.ObjectKey{Name: "nc-a"}, class); err != nil {
		t.Fatal(err)
	}
	class.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt
	if err := l.api.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lab) launched(name, id string) {
	l.t.Helper()
	claim := &karpv1.NodeClaim{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: name}, claim); err != nil {
		l.t.Fatal(err)
	}
	claim.Status.ProviderID = id
	if err := l.api.Status().Update(l.t.Context(), claim); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) providerIDOf(name string) string {
	claim := &karpv1.NodeClaim{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: name}, claim); err != nil {
		l.t.Fatal(err)
	}
	return claim.Status.ProviderID
}

// section 3 #18: the Node is awaited by watch, and the NodeClaim gets its identity; the host remembers it for the next claim.
func TestAdoptedIdentityIsTakenOverAndRemembered(t *testing.T) {
	l := newAdoptLab(t)
	l.claim("n")
	l.launched("n", "kpssh://kp-a/h")
	h := l.settle("joined", isState(v1beta1.HostInUse))
	if l.tokens() != 0 || h.Status.BootstrapTokenID != "" {
		t.Error("a bootstrap token was made that no script asks for")
	}
	node := agentNode("mi-1", hybridID, h.Spec.Address)
	if err := l.api.Create(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	if requests := l.ctl.hostOfNode(context.Background(), &node); len(requests) > 1 {
		t.Errorf("the Node wakes %v", requests)
	}
	h = l.settle("registered", isJoined)
	if want := (v1beta1.AdoptedIdentity{ProviderID: hybridID, NodeName: "mi-1"}); h.Status.Adopted == nil || *h.Status.Adopted != want || h.Status.ProviderID != hybridID {
		t.Errorf("the host has %q and remembers %+v", h.Status.ProviderID, h.Status.Adopted)
	}
	if got := l.providerIDOf("n"); got != hybridID {
		t.Errorf("the NodeClaim has provider ID %s", got)
	}
	// Karpenter's launch may write its own memory of the ID once more.
	l.launched("n", "kpssh://kp-a/h")
	l.settle("followed again", func(*v1beta1.SSHHost) bool { return l.providerIDOf("n") == hybridID })

	if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
		t.Fatal(err)
	}
	h = l.settle("left", isState(v1beta1.HostAvailable))
	if h.Status.ProviderID != "" || h.Status.Adopted == nil || l.exists(&corev1.Node{}, "mi-1") {
		t.Errorf("after the leave: provider ID %q, remembered %+v, or its Node is left", h.Status.ProviderID, h.Status.Adopted)
	}
}

func TestAdoptionThatFailsIsTheHostsFault(t *testing.T) {
	l := newAdoptLab(t)
	l.claim("n")
	h := l.settle("joined", isState(v1beta1.HostInUse))
	for _, name := range []string{"mi-1", "mi-2"} {
		node := agentNode(name, "eks-hybrid:///region/cluster/"+name, h.Spec.Address)
		if err := l.api.Create(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	}
	h = l.settle("given up", isState(v1beta1.HostUnhealthy))
	text := l.eventText()
	for _, want := range []string{"AdoptAmbiguous", "AdoptFailed", "mi-1, mi-2"} {
		if !strings.Contains(text, want) {
			t.Errorf("no event says %s:\n%s", want, text)
		}
	}
	if h.Status.Failures == nil || h.Status.Failures.LastReason != v1beta1.ReasonAdoptFailed || l.exists(&karpv1.NodeClaim{}, "n") {
		t.Errorf("failures %+v, or the NodeClaim is still there", h.Status.Failures)
	}
	if !l.exists(&corev1.Node{}, "mi-1") || !l.exists(&corev1.Node{}, "mi-2") {
		t.Error("a Node was deleted that nobody knows the owner of")
	}
}
