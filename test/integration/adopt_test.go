package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const (
	hybrid = "hybrid"
	// agentHeld is a file on a machine that keeps its agent from ending while it exists.
	agentHeld = "agent-held"
	// agentJoin stands for an agent such as nodeadm: credentials of its own (the class's Secret), and a provider ID and a Node name that it
	// alone chooses, the same at each join.
	agentJoin = `simulated-phase join
umask 077
[ -z "$KPSSH_PROVIDER_ID" ] || { echo "a provider ID was chosen for the agent" >&2; exit 1; }
echo "apiVersion: v1
kind: Config
clusters:
- name: cluster
  cluster:
    server: $KPSSH_CLUSTER_ENDPOINT
    certificate-authority-data: $KPSSH_CLUSTER_CA_B64
users:
- name: agent
  user:
    token: $KPSSH_SECRET_ACTIVATION
contexts:
- name: agent
  context:
    cluster: cluster
    user: agent
current-context: agent" >"$SIM_ROOT/etc/kubernetes/bootstrap-kubelet.conf"
echo "NODE_NAME=mi-$SIM_MACHINE
NODE_IP=$KPSSH_NODE_ADDRESS
PROVIDER_ID=eks-hybrid:///region/cluster/mi-$SIM_MACHINE
NODE_LABELS=$KPSSH_NODE_LABELS
TAINTS=$KPSSH_TAINTS" >"$SIM_ROOT/etc/kubernetes/kubelet.env"
systemctl enable --now kubelet
while [ -e "$SIM_ROOT/` + agentHeld + `" ]; do sleep 0.1; done
`
)

// identityOf is what the stand-in agent of a machine calls itself.
func identityOf(m *sim.Machine) v1beta1.AdoptedIdentity {
	return v1beta1.AdoptedIdentity{ProviderID: "eks-hybrid:///region/cluster/mi-" + m.Name(), NodeName: "mi-" + m.Name()}
}

// agentsIdentity: the identity that an agent on a machine chooses becomes the host's and the NodeClaim's, through karpenter's registration,
// its garbage collection, the node's end, and the next claim, which has it from its launch on.
func (p *pair) agentsIdentity() {
	began := time.Now()
	s := p.a
	token := s.permitAgents(p)
	s.pod(hybrid, podIn(hybrid))
	s.running(1, time.Minute)
	claim := s.onlyClaim(hybrid)
	m := p.machineOf(claim)
	p.adopted(claim.Name, m)
	p.survivesCollection(claim.Name, m)
	p.twoNodesOfOneAddress(m)

	// The first node ends; its machine remembers.
	before := m.Counters().Runs["leave"]
	s.deletePods()
	if err := s.api.DeleteAllOf(p.Context(), &karpv1.NodeClaim{}, client.MatchingLabels{karpv1.NodePoolLabelKey: hybrid}); err != nil {
		p.Fatal(err)
	}
	s.eventually(90*time.Second, "the segment is at rest", func() (bool, string) {
		return len(s.claimsOf(hybrid)) == 0 && s.states()[v1beta1.HostAvailable] == len(s.hosts()), fmt.Sprint(s.states(), len(s.claimsOf(hybrid)))
	})
	if m.Counters().Runs["leave"] != before+1 {
		p.Errorf("leave ran %d times", m.Counters().Runs["leave"]-before)
	}
	for _, each := range s.fleet.Machines() {
		h, want := s.hostOf(each), identityOf(each)
		if h.Status.ProviderID != "" || h.Status.Adopted == nil || *h.Status.Adopted != want {
			p.Errorf("after the claim %s has provider ID %q and remembers %+v, want %+v", h.Name, h.Status.ProviderID, h.Status.Adopted, want)
		}
		if err := s.api.Get(p.Context(), keyIn("", want.NodeName), &corev1.Node{}); client.IgnoreNotFound(err) != nil || err == nil {
			p.Errorf("Node %s is left behind (%v)", want.NodeName, err)
		}
	}
	p.remembered()
	for _, e := range s.auditSince(began) {
		if e.User.Username == s.user() && e.Verb == "create" && e.Object.Resource == "secrets" {
			p.Errorf("a bootstrap token was made that no script asks for: %s", e.URI)
		}
	}
	p.noForeignWrites(began)
	s.remove(token) // at rest there is none
	p.settle()
}

// permitAgents makes a class that leaves identities to agents, its pool, and the token that the agents join with.
func (s *scenario) permitAgents(p *pair) *corev1.Secret {
	s.t.Helper()
	p.discard(hybrid)
	profile := sim.Profile()
	profile.Name, profile.Spec.Scripts.Join = hybrid, agentJoin
	id, secret := bootstrap.NewTokenID(), "0123456789abcdef"
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret, bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey: bootstrap.Group(s.instance.name),
		},
	}
	activation := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: hybrid}, StringData: map[string]string{"activation": id + "." + secret}}
	for _, o := range []client.Object{profile, token, activation} {
		s.create(o)
		s.t.Cleanup(func() { s.remove(o) })
	}
	s.create(s.class(hybrid, func(c *v1beta1.SSHNodeClass) {
		c.Spec.JoinProfileRef.Name, c.Spec.ProviderIDSource = hybrid, v1beta1.ProviderIDAdopt
		c.Spec.JoinSecretRef = &v1beta1.SecretReference{Name: activation.Name}
	}))
	s.create(s.pool(hybrid))
	return token
}

// onlyClaim is the one NodeClaim of a pool.
func (s *scenario) onlyClaim(pool string) karpv1.NodeClaim {
	s.t.Helper()
	claims := s.claimsOf(pool)
	if len(claims) != 1 {
		s.t.Fatalf("%d NodeClaims of %s, want 1", len(claims), pool)
	}
	return claims[0]
}

// hostOf is the SSHHost of a machine.
func (s *scenario) hostOf(m *sim.Machine) *v1beta1.SSHHost {
	s.t.Helper()
	h := &v1beta1.SSHHost{}
	if err := s.api.Get(s.t.Context(), keyIn(s.namespace, m.Name()), h); err != nil {
		s.t.Fatal(err)
	}
	return h
}

// adopted awaits that a claim, its host and its Node agree about who the machine is.
func (p *pair) adopted(name string, m *sim.Machine) {
	p.Helper()
	want := identityOf(m)
	p.a.eventually(30*time.Second, "karpenter has initialized the node of "+name, func() (bool, string) {
		claim, node := &karpv1.NodeClaim{}, &corev1.Node{}
		if err := p.a.api.Get(p.Context(), keyIn("", name), claim); err != nil {
			return false, err.Error()
		}
		if err := p.a.api.Get(p.Context(), keyIn("", want.NodeName), node); err != nil {
			return false, err.Error()
		}
		done := claim.Status.ProviderID == want.ProviderID && claim.Status.NodeName == want.NodeName &&
			claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() && node.Labels[karpv1.NodeInitializedLabelKey] == "true"
		return done, fmt.Sprintf("%s, %s, %s", claim.Status.ProviderID, claim.Status.NodeName, claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).Message)
	})
	h := p.a.hostOf(m)
	if h.Status.ProviderID != want.ProviderID || h.Status.Adopted == nil || *h.Status.Adopted != want {
		p.Errorf("host %s has provider ID %q and adopted %+v, want %+v", h.Name, h.Status.ProviderID, h.Status.Adopted, want)
	}
}

// survivesCollection: karpenter looks for NodeClaims without a machine when its process starts, and spares none whose node is not Ready.
func (p *pair) survivesCollection(claim string, m *sim.Machine) {
	p.Helper()
	s := p.a
	s.kill()
	m.PowerOff()
	p.notReady(identityOf(m).NodeName)
	s.start("")
	s.ready(p.T)
	s.eventually(time.Minute, "karpenter has collected its garbage", func() (bool, string) {
		runs, err := s.scrape("controller_runtime_reconcile_total", `controller="nodeclaim.garbagecollection"`, `result="requeue_after"`)
		return err == nil && runs > 0, fmt.Sprint(runs, err)
	})
	if live := s.onlyClaim(hybrid); live.Name != claim || !live.DeletionTimestamp.IsZero() {
		p.Fatalf("NodeClaim %s was taken for garbage: %s is there now, deleted %v", claim, live.Name, live.DeletionTimestamp)
	}
	if err := m.PowerOn(); err != nil {
		p.Fatal(err)
	}
	s.eventually(time.Minute, "the node is Ready again", func() (bool, string) {
		node := &corev1.Node{}
		if err := s.api.Get(p.Context(), keyIn("", identityOf(m).NodeName), node); err != nil {
			return false, err.Error()
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue, c.Reason
			}
		}
		return false, ""
	})
}

// twoNodesOfOneAddress: of two Nodes that might be the other machine's, none is taken, people are told, and once one of them is gone the
// other one is.
func (p *pair) twoNodesOfOneAddress(first *sim.Machine) {
	p.Helper()
	s := p.a
	var m *sim.Machine
	for _, each := range s.fleet.Machines() {
		if each != first {
			m = each
		}
	}
	held := filepath.Join(m.Root(), agentHeld)
	if err := os.WriteFile(held, nil, 0o600); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.Remove(held) })
	s.pod(hybrid+"-2", podIn(hybrid))
	own := &corev1.Node{}
	s.eventually(time.Minute, "the second agent's Node is there", func() (bool, string) {
		err := s.api.Get(p.Context(), keyIn("", identityOf(m).NodeName), own)
		return err == nil, fmt.Sprint(err)
	})
	left := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "mi-left-over"},
		Spec:       corev1.NodeSpec{ProviderID: "eks-hybrid:///region/cluster/mi-left-over", Taints: []corev1.Taint{{Key: "left", Effect: corev1.TaintEffectNoSchedule}}},
	}
	s.create(left)
	p.Cleanup(func() { s.remove(left) })
	bare := left.DeepCopy()
	left.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: m.NodeIP()}}
	if err := s.api.Status().Patch(p.Context(), left, client.MergeFrom(bare)); err != nil {
		p.Fatal(err)
	}
	if err := os.Remove(held); err != nil {
		p.Fatal(err)
	}
	s.eventually(time.Minute, "the ambiguity is told", func() (bool, string) {
		c := apimeta.FindStatusCondition(s.hostOf(m).Status.Conditions, v1beta1.ConditionJoined)
		return c != nil && c.Reason == v1beta1.ReasonAdoptAmbiguous && strings.Contains(c.Message, left.Name) && strings.Contains(c.Message, own.Name), fmt.Sprintf("%+v", c)
	})
	if h := s.hostOf(m); h.Status.ProviderID != h.StaticProviderID() || h.Status.Adopted != nil {
		p.Errorf("%s took %q (%+v) although it could not be told", h.Name, h.Status.ProviderID, h.Status.Adopted)
	}
	s.remove(left)
	s.running(2, time.Minute)
	p.adopted(s.hostOf(m).Status.ClaimRef.Name, m)
}

// remembered: a claim of a machine that has been an agent's has the agent's provider ID from its launch on.
func (p *pair) remembered() {
	p.Helper()
	s := p.a
	for _, m := range s.fleet.Machines() {
		m.Slow("join", 2*time.Second)
		defer m.Inject("join", "")
	}
	s.pod(hybrid, podIn(hybrid))
	var claim karpv1.NodeClaim
	s.eventually(time.Minute, "the NodeClaim is launched", func() (bool, string) {
		claims := s.claimsOf(hybrid)
		if len(claims) != 1 {
			return false, fmt.Sprint(len(claims), " claims")
		}
		claim = claims[0]
		return claim.Status.ProviderID != "", "no provider ID"
	})
	m := p.machineOf(claim)
	want := identityOf(m)
	if claim.Status.ProviderID != want.ProviderID {
		p.Errorf("NodeClaim %s was launched with provider ID %s, want the remembered %s", claim.Name, claim.Status.ProviderID, want.ProviderID)
	}
	if err := s.api.Get(p.Context(), keyIn("", want.NodeName), &corev1.Node{}); err == nil {
		p.Errorf("Node %s was there already: the test was too late to see what the launch gave", want.NodeName)
	}
	s.running(1, time.Minute)
	p.adopted(claim.Name, m)
}
