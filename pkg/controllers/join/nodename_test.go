package join

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// E2: a Node of the intended name is this host's only if its provider ID, or else its addresses, say so.
func TestWhoseNodeIsIt(t *testing.T) {
	const mine, adopted = "kpssh://kp-a/h", "aws:///eu-west-1a/i-1"
	for name, row := range map[string]struct {
		// the Node
		providerID string
		addresses  []string
		age        time.Duration // before (positive) or after (negative) the claim
		// the host
		address string
		adopt   bool
		want    bool
	}{
		"this host's, from an earlier attempt":                                {providerID: mine, addresses: []string{"192.0.2.9"}, address: "192.0.2.1"},
		"another instance's":                                                  {providerID: "kpssh://kp-b/h", address: "192.0.2.1", want: true},
		"another instance's with the same address in its own segment":         {providerID: "kpssh://kp-b/h", addresses: []string{"192.0.2.1"}, address: "192.0.2.1", want: true},
		"another host's of this instance":                                     {providerID: "kpssh://kp-a/h2", address: "192.0.2.1", want: true},
		"another provider's":                                                  {providerID: adopted, address: "192.0.2.1", want: true},
		"no provider ID, other addresses":                                     {addresses: []string{"192.0.2.2"}, address: "192.0.2.1", want: true},
		"no provider ID, this host's address":                                 {addresses: []string{"192.0.2.7", "192.0.2.1"}, address: "192.0.2.1"},
		"no provider ID, this host's address spelled otherwise":               {addresses: []string{"2001:db8::1"}, address: "2001:0db8:0::1"},
		"no provider ID, no address, older than the claim":                    {age: time.Hour, address: "192.0.2.1", want: true},
		"no provider ID, no address, made since":                              {age: -time.Second, address: "192.0.2.1"},
		"addresses that cannot be compared, older than the claim":             {addresses: []string{"192.0.2.2"}, age: time.Hour, address: "host.example", want: true},
		"addresses that cannot be compared, made since":                       {addresses: []string{"192.0.2.2"}, age: -time.Second, address: "host.example"},
		"an agent's provider ID on this host's address":                       {providerID: adopted, addresses: []string{"192.0.2.1"}, address: "192.0.2.1", adopt: true},
		"an agent's provider ID elsewhere":                                    {providerID: adopted, addresses: []string{"192.0.2.2"}, address: "192.0.2.1", adopt: true, want: true},
		"another instance's is never adopted, though its address is the same": {providerID: "kpssh://kp-b/h", addresses: []string{"192.0.2.1"}, address: "192.0.2.1", adopt: true, want: true},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start.Add(-row.age))}, Spec: corev1.NodeSpec{ProviderID: row.providerID}}
		for _, a := range row.addresses {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		h := in(v1beta1.HostClaimed, claimed)
		h.Spec.Address = row.address
		if got := elses(node, h, metav1.NewTime(start), row.adopt); got != row.want {
			t.Errorf("%s: somebody else's is %v, want %v", name, got, row.want)
		}
	}
}

func (l *lab) theirs(name string) *corev1.Node {
	l.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("theirs-" + name)}, Spec: corev1.NodeSpec{ProviderID: "kpssh://kp-b/h"}}
	if err := l.api.Create(l.t.Context(), node); err != nil {
		l.t.Fatal(err)
	}
	return node
}

// untouched fails if a Node of somebody else was written.
func (l *lab) untouched(was *corev1.Node) {
	l.t.Helper()
	is := &corev1.Node{}
	if err := l.api.Get(l.t.Context(), client.ObjectKeyFromObject(was), is); err != nil || is.ResourceVersion != was.ResourceVersion {
		l.t.Errorf("the other instance's Node was touched: %v, version %s, was %s", err, is.ResourceVersion, was.ResourceVersion)
	}
	for _, write := range l.writes {
		if strings.Contains(write, "v1.Node") && !strings.Contains(write, "NodeClaim") && write != fmt.Sprintf("create %T", was) {
			l.t.Errorf("a Node was written: %s", write)
		}
	}
}

// E2: a host does not join under a name that another instance's Node has. Its machine sees nothing of it, the host is free for the next
// claim, and karpenter makes that with another name.
func TestE2NodeNameInUseBeforeTheJoin(t *testing.T) {
	l := newLab(t, scripts)
	node := l.theirs("n")
	l.claim("n")
	h := l.settle("given up", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
	l.idle()
	l.wantLog()
	if h.Status.State != v1beta1.HostAvailable || h.Status.Failures != nil {
		t.Errorf("the host is %s and remembers %+v", h.Status.State, h.Status.Failures)
	}
	if l.server.Connections() != 0 {
		t.Errorf("the machine saw %d connections", l.server.Connections())
	}
	if l.exists(&karpv1.NodeClaim{}, "n") || l.tokens() != 0 {
		t.Error("the NodeClaim or a token is still there")
	}
	if text := l.eventText(); !strings.Contains(text, v1beta1.ReasonNodeNameInUse) {
		t.Errorf("no event says so:\n%s", text)
	}
	l.untouched(node)
	if uses := l.ctl.NamesInUse(); len(uses) != 1 || uses[0].Node != "n" || uses[0].Host != "h" || uses[0].NodeClass != "nc-a" || uses[0].ProviderID != "kpssh://kp-b/h" {
		t.Errorf("remembered %+v", uses)
	}
	// The next claim, of another name, gets the same host.
	if err := l.api.Create(t.Context(), l.nodeClaim("n2")); err != nil {
		t.Fatal(err)
	}
	l.claim("n2")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("install", "join:n2")
}

// E2: the other Node comes while the join runs. It is not touched; this machine leaves, and does not wait for a Node that cannot come.
func TestE2NodeNameInUseAfterTheJoin(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	node := l.theirs("n")
	began := l.clock.Now()
	h := l.settle("left", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
	l.wantLog("install", "join:n", "leave")
	if h.Status.State != v1beta1.HostAvailable || h.Status.Failures != nil {
		t.Errorf("the host is %s and remembers %+v", h.Status.State, h.Status.Failures)
	}
	if waited := l.clock.Since(began); waited >= registrationTimeout {
		t.Errorf("waited %s", waited)
	}
	if l.exists(&karpv1.NodeClaim{}, "n") {
		t.Error("the NodeClaim is still there")
	}
	if text := l.eventText(); !strings.Contains(text, v1beta1.ReasonNodeNameInUse) {
		t.Errorf("no event says so:\n%s", text)
	}
	l.untouched(node)
}
