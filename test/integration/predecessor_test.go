package integration

import (
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// predecessor does to a cluster and its machines what the existing single-instance provider would have done, by its documentation: objects
// with its fields only, scripts by plain SSH, and nothing left on a machine but what the scripts leave there.
type predecessor struct {
	*scenario
	kubeconfig string
	signer     gossh.Signer
	profile    *v1beta1.SSHJoinProfile
	nodePool   *karpv1.NodePool
}

const hostClassOfOld = "metal"

// newPredecessor has the kinds of the existing provider in the cluster, its manifests applied, and n machines registered.
func newPredecessor(t *testing.T, name string, specs ...sim.Spec) *predecessor {
	t.Helper()
	crds, err := lab.ReadCRDs(filepath.Join("testdata", "existing-provider"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := lab.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range own {
		if crd.Spec.Group != v1beta1.Group {
			crds = append(crds, crd)
		}
	}
	w, err := openWorld(t.Context(), shared.binary, crds...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.owners.stop(); w.cp.Stop() })
	p := &predecessor{scenario: &scenario{instance: w.newInstance(t, v1beta1.DefaultInstance, "kpssh-system", "PROBE_INTERVAL=3s"), t: t, name: name, began: time.Now()}}
	if p.kubeconfig, err = w.cp.Kubeconfig("kubernetes-admin", "system:masters"); err != nil {
		t.Fatal(err)
	}
	if p.fleet, err = sim.NewFleet(t.Context(), sim.Options{Config: w.cp.RESTConfig(), Heartbeat: 4 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill(); p.fleet.Close() })
	for i := range specs {
		specs[i].Name, specs[i].NodeIP = fmt.Sprintf("%s-%03d", name, i), w.nodeIP()
	}
	if _, err := p.fleet.Add(specs...); err != nil {
		t.Fatal(err)
	}
	login := p.fleet.LoginSecret(p.namespace, name, false) // trust on first use
	if p.signer, err = gossh.ParsePrivateKey(login.Data["privateKey"]); err != nil {
		t.Fatal(err)
	}
	p.create(login)
	p.profile = sim.Profile()
	p.profile.Name = name
	p.create(p.profile)
	p.kubectl(p.manifests(), "apply", "-f", "-")
	p.nodePool = &karpv1.NodePool{}
	if err := p.api.Get(t.Context(), keyIn("", name), p.nodePool); err != nil {
		t.Fatal(err)
	}
	return p
}

// manifests are what the user of the existing provider has in his repository: class, pool and hosts.
func (p *predecessor) manifests() string {
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHNodeClass
metadata: {name: %[1]s}
spec:
  joinProfileRef: {name: %[1]s}
  hostSelector: {matchLabels: {%[2]s: %[1]s}}
  vars: {REGISTRY: mirror.example}
  pricePerCPUHour: "0.03"
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %[1]s}
spec:
  template:
    metadata: {labels: {karpenter.dklesev.github.io/managed: "true"}}
    spec:
      nodeClassRef: {group: karpenter.dklesev.github.io, kind: SSHNodeClass, name: %[1]s}
      expireAfter: Never
      requirements:
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 1s, budgets: [{nodes: "100%%"}]}
`, p.name, hostLabel)
	for _, m := range p.fleet.Machines() {
		h := m.Host(p.namespace, p.name)
		fmt.Fprintf(&text, `---
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHHost
metadata:
  name: %s
  namespace: %s
  labels: {%s: %s, karpenter.dklesev.github.io/host-class: %s}
spec:
  address: %s
  port: %d
  nodeAddress: %s
  sshKeySecretRef: {name: %s}
  capacity: {cpu: "%s", memory: %s}
`, h.Name, h.Namespace, hostLabel, p.name, hostClassOfOld, h.Spec.Address, h.Spec.Port, h.Spec.NodeAddress, p.name, h.Spec.Capacity.Cpu(), h.Spec.Capacity.Memory())
	}
	return text.String()
}

// kubectl runs as the cluster's administrator and returns what it says.
func (p *predecessor) kubectl(stdin string, args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(p.cp.Assets, "kubectl"), append([]string{"--kubeconfig", p.kubeconfig}, args...)...) //nolint:gosec // of the lab
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// status writes a host's, made by an edit of what a successful probe leaves.
func (p *predecessor) status(machine int, state v1beta1.HostState, edits ...func(*v1beta1.SSHHostStatus)) {
	p.t.Helper()
	m := p.machine(machine)
	h := &v1beta1.SSHHost{}
	if err := p.api.Get(p.t.Context(), keyIn(p.namespace, m.Name()), h); err != nil {
		p.t.Fatal(err)
	}
	h.Status = v1beta1.SSHHostStatus{
		State: state, HostKeyFingerprint: gossh.FingerprintSHA256(m.HostKey()),
		ObservedArch:       "amd64",
		ObservedCapacity:   corev1.ResourceList{corev1.ResourceCPU: h.Spec.Capacity[corev1.ResourceCPU], corev1.ResourceMemory: h.Spec.Capacity[corev1.ResourceMemory]},
		ObservedGeneration: h.Generation, LastProbeTime: new(metav1.Now()),
		Conditions: []metav1.Condition{{
			Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonProbeSucceeded, Message: string(state), LastTransitionTime: metav1.Now(),
		}},
	}
	for _, edit := range edits {
		edit(&h.Status)
	}
	if err := p.api.Status().Update(p.t.Context(), h); err != nil {
		p.t.Fatal(err)
	}
}

func (p *predecessor) machine(index int) *sim.Machine { return p.fleet.Machines()[index] }

func (p *predecessor) providerID(machine int) string {
	return v1beta1.ProviderIDScheme + p.namespace + "/" + p.machine(machine).Name()
}

func installed(marker string) func(*v1beta1.SSHHostStatus) {
	return func(s *v1beta1.SSHHostStatus) { s.InstalledProfile = marker }
}

func claimedBy(name string, uid types.UID, tokenID, providerID string) func(*v1beta1.SSHHostStatus) {
	return func(s *v1beta1.SSHHostStatus) {
		s.ClaimRef = &v1beta1.ClaimReference{Name: name, UID: uid}
		s.BootstrapTokenID, s.ProviderID = tokenID, providerID
	}
}

func (p *predecessor) marker() string { return p.profile.Marker() }

// run sends a script the way the existing provider does in Raw mode: one shell that reads exports and the script from its stdin.
func (p *predecessor) run(machine int, script string, env map[string]string) {
	p.t.Helper()
	m := p.machine(machine)
	connection, err := gossh.Dial("tcp", fmt.Sprintf("%s:%d", m.Address(), m.Port()), &gossh.ClientConfig{
		User: "root", Auth: []gossh.AuthMethod{gossh.PublicKeys(p.signer)}, HostKeyCallback: gossh.FixedHostKey(m.HostKey()),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	defer connection.Close()
	session, err := connection.NewSession()
	if err != nil {
		p.t.Fatal(err)
	}
	var stdin strings.Builder
	stdin.WriteString("set -euo pipefail\n")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&stdin, "export %s='%s'\n", name, strings.ReplaceAll(env[name], "'", `'\''`))
	}
	var stderr bytes.Buffer
	session.Stdin, session.Stderr = strings.NewReader(stdin.String()+script), &stderr
	if err := session.Run("bash -s"); err != nil {
		p.t.Fatalf("%s: %v\n%s", m.Name(), err, stderr.String())
	}
}

// token mints a bootstrap token for a claim.
func (p *predecessor) token(id, claim string) (token string) {
	p.t.Helper()
	const secret = "0123456789abcdef"
	entries := map[string]string{
		bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret,
		bootstrapapi.BootstrapTokenExpirationKey:       time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		bootstrapapi.BootstrapTokenUsageAuthentication: "true", bootstrapapi.BootstrapTokenUsageSigningKey: "true",
		bootstrapapi.BootstrapTokenExtraGroupsKey: "system:bootstrappers:kpssh",
		bootstrapapi.BootstrapTokenDescriptionKey: "karpenter-provider-ssh: NodeClaim " + claim,
	}
	p.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken, StringData: entries,
	})
	return id + "." + secret
}

// claim makes a NodeClaim as the existing provider's core does when it wants a node.
func (p *predecessor) claim(name string) *karpv1.NodeClaim {
	p.t.Helper()
	c := p.nodePool.Spec.Template.ToNodeClaim()
	c.ObjectMeta = metav1.ObjectMeta{
		Name: name, Finalizers: []string{karpv1.TerminationFinalizer},
		Labels: map[string]string{
			karpv1.NodePoolLabelKey: p.name, v1beta1.ManagedLabel: "true",
			// Core writes it on every NodeClaim since it has node classes of more than one kind, and adds it to older ones and their Nodes.
			v1beta1.Group + "/sshnodeclass": p.name,
		},
		Annotations: map[string]string{
			karpv1.NodePoolHashAnnotationKey: p.nodePool.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion,
		},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: p.name, UID: p.nodePool.UID, BlockOwnerDeletion: new(true),
		}},
	}
	c.Spec.Requirements = append(c.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{hostClassOfOld},
	})
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
	p.create(c)
	return c
}

// launched completes a claim whose Create has returned.
func (p *predecessor) launched(c *karpv1.NodeClaim, machine int) {
	p.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	if err := p.api.Get(p.t.Context(), keyIn("", p.name), class); err != nil {
		p.t.Fatal(err)
	}
	base := c.DeepCopy()
	maps.Copy(c.Labels, map[string]string{
		corev1.LabelInstanceTypeStable: hostClassOfOld, corev1.LabelTopologyZone: "pool", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
	})
	maps.Copy(c.Annotations, map[string]string{v1beta1.NodeClassHashAnnotation: class.JoinHash(), v1beta1.NodeClassHashVersionAnnotation: "v1"})
	if err := p.api.Patch(p.t.Context(), c, client.MergeFrom(base)); err != nil {
		p.t.Fatal(err)
	}
	m := p.machine(machine)
	c.Status.ProviderID, c.Status.NodeName = p.providerID(machine), c.Name
	c.Status.Capacity = m.Host(p.namespace, p.name).Spec.Capacity
	c.Status.Allocatable = c.Status.Capacity
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		c.StatusConditions().SetTrue(condition)
	}
	if err := p.api.Status().Update(p.t.Context(), c); err != nil {
		p.t.Fatal(err)
	}
}

// join installs and joins a machine for a claim and awaits that its Node is Ready.
func (p *predecessor) join(machine int, claim, token string, labels map[string]string) *corev1.Node {
	p.t.Helper()
	m := p.machine(machine)
	list := []string{}
	for key, value := range profile.KubeletLabels(labels) {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	env := map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": p.cp.Endpoint, "KPSSH_CLUSTER_CA_B64": p.caBase64(), "KPSSH_BOOTSTRAP_TOKEN": token,
		"KPSSH_NODE_NAME": claim, "KPSSH_PROVIDER_ID": p.providerID(machine), "KPSSH_NODE_LABELS": strings.Join(list, ","),
		"KPSSH_TAINTS":       "karpenter.sh/unregistered:NoExecute",
		"KPSSH_HOST_ADDRESS": m.Address(), "KPSSH_NODE_ADDRESS": m.NodeIP(), "KPSSH_VAR_REGISTRY": "mirror.example",
	}
	p.run(machine, p.profile.Spec.Scripts.Install, env)
	p.run(machine, p.profile.Spec.Scripts.Join, env)
	node := &corev1.Node{}
	p.eventually(time.Minute, "the Node of "+m.Name()+" is Ready", func() (bool, string) {
		err := p.api.Get(p.t.Context(), keyIn("", claim), node)
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}), fmt.Sprint(err, m.Log("kubelet"))
	})
	return node
}

// node is a host in use: a claim, its Node and what core has made of both. It leaves the token of the join in the cluster.
func (p *predecessor) node(machine int, name, tokenID string) *karpv1.NodeClaim {
	p.t.Helper()
	c := p.claim(name)
	p.status(machine, v1beta1.HostClaimed, claimedBy(name, c.UID, tokenID, ""), installed(p.marker()))
	node := p.join(machine, name, p.token(tokenID, name), c.Labels)
	p.status(machine, v1beta1.HostInUse, claimedBy(name, c.UID, tokenID, p.providerID(machine)), installed(p.marker()))
	p.launched(c, machine)
	base := node.DeepCopy()
	maps.Copy(node.Labels, c.Labels)
	maps.Copy(node.Labels, map[string]string{karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true"})
	node.Annotations = map[string]string{}
	maps.Copy(node.Annotations, base.Annotations)
	maps.Copy(node.Annotations, c.Annotations)
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.UnregisteredTaintKey })
	controllerutil.AddFinalizer(node, karpv1.TerminationFinalizer)
	node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: c.Name, UID: c.UID, BlockOwnerDeletion: new(true)}}
	if err := p.api.Patch(p.t.Context(), node, client.MergeFrom(base)); err != nil {
		p.t.Fatal(err)
	}
	return c
}
