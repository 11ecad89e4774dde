package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// otherUser is who the other provider's karpenter is to the API server.
const otherUser = "karpenter-of-a-cloud"

// cloud is a NodePool of the other provider, and its karpenter.
type cloud struct {
	*scenario // of one of the instances, for its looks at the cluster
	process   *lab.Process
}

// Two instances and a real karpenter of another provider, in one cluster: each pod gets one node, of its own side; nobody writes anything
// of the others, from the first NodePool to the last node.
func TestBesideAnotherProvidersKarpenter(t *testing.T) {
	env := []string{"FEATURE_GATES=NodeRepair=true,StaticCapacity=true", "PROBE_INTERVAL=3s"}
	began := time.Now()
	sides := []*scenario{
		prepare(t, shared.newInstance(t, "coex-a", "kp-coex-a", env...), "coex-a", 4*time.Second, sim.Spec{}),
		prepare(t, shared.newInstance(t, "coex-b", "kp-coex-b", env...), "coex-b", 4*time.Second, sim.Spec{}),
	}
	c := startCloud(t, sides[0])
	for _, s := range sides {
		s.register()
		s.start("")
	}
	for _, s := range sides {
		s.allIn("Available", time.Minute)
		s.pod("pod-of-" + s.name)
	}
	c.pod("pod-of-cloud", func(p *corev1.Pod) {
		p.Spec.NodeSelector[karpv1.NodePoolLabelKey] = "cloud"
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("500m")
	})
	for _, s := range sides {
		s.claimed(1, time.Minute)
	}
	c.initialized()
	c.pod("second-of-cloud", func(p *corev1.Pod) { p.Spec.NodeSelector[karpv1.NodePoolLabelKey] = "cloud" }) // and the first is not consolidated for it
	c.eventually(time.Minute, "a second pod has a second node in the cloud", func() (bool, string) {
		n := len(c.claimsOf("cloud"))
		return n == 2, fmt.Sprintf("%d claims", n)
	})
	made := map[string]int{}
	for _, e := range c.auditSince(began) {
		if e.Verb == "create" && e.Object.Resource == "nodeclaims" && e.Response.Code < 300 {
			made[e.User.Username]++
		}
	}
	if want := map[string]int{userPrefix + "coex-a": 1, userPrefix + "coex-b": 1, otherUser: 2}; fmt.Sprint(made) != fmt.Sprint(want) {
		t.Errorf("NodeClaims were made by %v, want %v", made, want)
	}
	names := c.names()
	for _, s := range sides {
		names = append(names, named(s)...)
		s.deleteClaims()
	}
	c.end()
	for _, s := range sides {
		s.eventually(time.Minute, "the segment is at rest", func() (bool, string) { return s.settledIn("") })
	}
	c.checkWriters(began, sides, names)
	for _, s := range sides {
		for _, line := range s.errorLines(t) {
			if strings.Contains(line, "cloud") {
				t.Errorf("%s complains of the other provider's objects: %s", s.name, line)
			}
		}
	}
}

// startCloud applies the other provider's class and pool, and starts its karpenter.
func startCloud(t *testing.T, s *scenario) *cloud {
	t.Helper()
	binary, err := lab.Build(t.Context(), "test/integration/otherprovider")
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range kwokapis.CRDs {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{Object: raw}
		o.SetAPIVersion("apiextensions.k8s.io/v1")
		o.SetKind("CustomResourceDefinition")
		s.create(o)
		t.Cleanup(func() { s.remove(o) })
	}
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": map[string]any{"name": "cloud"}}}
	s.eventually(time.Minute, "the other provider's CRD is served", func() (bool, string) {
		err := s.api.Create(s.ctx(), class)
		return err == nil, fmt.Sprint(err)
	})
	pool := s.pool("cloud")
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass", Name: "cloud"}
	s.create(pool)
	kubeconfig, err := s.cp.Kubeconfig(otherUser, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	var ports lab.Ports
	env := []string{"KUBECONFIG=" + kubeconfig, "DISABLE_LEADER_ELECTION=true", "BATCH_IDLE_DURATION=500ms", "LOG_LEVEL=debug"}
	for _, name := range []string{"METRICS_PORT", "HEALTH_PROBE_PORT"} {
		port, err := ports.Take("0.0.0.0")
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strconv.Itoa(port))
	}
	ports.Release()
	process, err := s.cp.Start("other-provider", binary, nil, env)
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{scenario: s, process: process}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the other karpenter's last words:\n%s", process.LogTail(40))
		}
		process.Kill()
		s.purgePool(s.ctx(), "cloud")
		s.remove(class)
	})
	return c
}

// initialized plays the kubelet of the cloud's nodes, which exist in the API only, until core takes one for initialized.
func (c *cloud) initialized() {
	c.t.Helper()
	c.eventually(time.Minute, "the cloud's node is initialized", func() (bool, string) {
		nodes := &corev1.NodeList{}
		if err := c.api.List(c.ctx(), nodes, client.MatchingLabels{karpv1.NodePoolLabelKey: "cloud"}); err != nil {
			return false, err.Error()
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			base := n.DeepCopy()
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
			if err := c.api.Status().Patch(c.ctx(), n, client.MergeFrom(base)); err != nil {
				return false, err.Error()
			}
		}
		claims := c.claimsOf("cloud")
		return len(claims) == 1 && claims[0].StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue(), fmt.Sprintf("%d claims, %d nodes", len(claims), len(nodes.Items))
	})
}

// names are the cloud's pool, claims and nodes.
func (c *cloud) names() []string {
	c.t.Helper()
	names := []string{"cloud"}
	nodes := &corev1.NodeList{}
	if err := c.api.List(c.ctx(), nodes, client.MatchingLabels{karpv1.NodePoolLabelKey: "cloud"}); err != nil {
		c.t.Fatal(err)
	}
	for _, n := range nodes.Items {
		names = append(names, n.Name)
	}
	for _, claim := range c.claimsOf("cloud") {
		names = append(names, claim.Name)
	}
	return names
}

func named(s *scenario) []string {
	names := []string{s.name}
	for _, claim := range s.claims() {
		names = append(names, claim.Name)
	}
	return names
}

// end deletes the cloud's claims and awaits their end, which is its own karpenter's to bring about.
func (c *cloud) end() {
	c.t.Helper()
	if err := c.api.DeleteAllOf(c.ctx(), &karpv1.NodeClaim{}, client.MatchingLabels{karpv1.NodePoolLabelKey: "cloud"}); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(90*time.Second, "the cloud's claims are gone", func() (bool, string) {
		claims := c.claimsOf("cloud")
		return len(claims) == 0, fmt.Sprintf("%d left", len(claims))
	})
}

// checkWriters: of the objects that were alive, each side wrote its own, and only those.
func (c *cloud) checkWriters(began time.Time, sides []*scenario, names []string) {
	c.t.Helper()
	owners := map[string]string{"cloud": otherUser}
	for _, s := range sides {
		owners[s.name] = s.user()
	}
	wrote := map[string]int{}
	for _, e := range c.auditSince(began) {
		karpenter := strings.HasPrefix(e.User.Username, userPrefix) || e.User.Username == otherUser
		if !karpenter || !e.Write() || !slices.Contains([]string{"nodepools", "nodeclaims", "nodes"}, e.Object.Resource) || !slices.Contains(names, e.Object.Name) {
			continue
		}
		pool := e.Object.Name // of a NodeClaim or Node, the pool's name is its beginning
		for name := range owners {
			if strings.HasPrefix(strings.TrimPrefix(e.Object.Name, "kwok-"), name) {
				pool = name
			}
		}
		wrote[e.User.Username]++
		if owners[pool] != e.User.Username {
			c.t.Errorf("%s: %s of %s %s", e.User.Username, e.Verb, e.Object.Resource, e.Object.Name)
		}
	}
	c.t.Logf("writes on NodePools, NodeClaims and Nodes that lived: %v", wrote)
	if len(wrote) != 3 {
		c.t.Errorf("only %v wrote: the audit log does not show what happened", wrote)
	}
}
