package integration

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// The machines of the switch-over, by what the existing provider had made of them when it was stopped.
const (
	inUse        = iota // its bootstrap token not collected yet
	inUseLarger         // its token collected
	warm                // Available and installed
	cold                // Available and never installed
	midJoin             // Claimed, installed, its token minted, its join script not begun
	zombieLeaves        // Leaving, its kubelet still there
	parked              // Maintenance
	unhealthy
	unseen    // no status yet
	claimless // InUse without a claim (section 3 #19)
	bereft    // Claimed by a NodeClaim that is gone
	machinesOfOld
)

// An installation of the existing single-instance provider becomes instance default in place: its objects in the state that version leaves
// behind, its kinds replaced by this project's, its process by this one. What runs goes on untouched (section 3 #15, #16, #29, #43, #49).
func TestSwitchOver(t *testing.T) {
	specs := make([]sim.Spec, machinesOfOld)
	specs[inUseLarger].CPU = 8
	p := newPredecessor(t, "old", specs...)
	p.leaveBehind()
	before := p.lookAtNodes()
	sessions := []int64{p.machine(inUse).Counters().Sessions, p.machine(inUseLarger).Counters().Sessions}

	p.upgradeKinds()
	p.classHasOwner()
	p.began = time.Now()
	p.start("")
	p.hostsComeToRest()
	p.nothingRolls(before, sessions)
	p.manifestsStillApply()
	p.profileEditRollsNothing(before)
	p.anotherNode()
	p.nodeOfOldLeaves()
	p.thereAndBack()
	p.nothingIsLeft()
}

// leaveBehind makes what the existing provider leaves when it is stopped.
func (p *predecessor) leaveBehind() {
	p.t.Helper()
	p.node(inUse, "old-aaaaa", "aaaaaa")
	larger := p.node(inUseLarger, "old-bbbbb", "bbbbbb")
	p.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-bbbbbb"}})
	p.status(inUseLarger, v1beta1.HostInUse, claimedBy(larger.Name, larger.UID, "", p.providerID(inUseLarger)), installed(p.marker()))
	p.pod("on-a", func(o *corev1.Pod) { o.Spec.NodeName = "old-aaaaa" })
	p.pod("on-b", func(o *corev1.Pod) {
		o.Spec.NodeName = "old-bbbbb"
		o.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("7")
	})
	p.running(2, time.Minute)

	p.run(warm, p.profile.Spec.Scripts.Install, nil)
	p.status(warm, v1beta1.HostAvailable, installed(p.marker()))
	p.status(cold, v1beta1.HostAvailable)

	claim := p.claim("old-ccccc")
	p.run(midJoin, p.profile.Spec.Scripts.Install, nil)
	p.token("cccccc", claim.Name)
	p.status(midJoin, v1beta1.HostClaimed, claimedBy(claim.Name, claim.UID, "cccccc", ""), installed(p.marker()))
	p.pod("wants-c")

	p.join(zombieLeaves, "old-ddddd", p.token("dddddd", "old-ddddd"), map[string]string{karpv1.NodePoolLabelKey: p.name, v1beta1.Group + "/sshnodeclass": p.name})
	p.remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-dddddd"}})
	p.status(zombieLeaves, v1beta1.HostLeaving, installed(p.marker()))

	p.kubectl("", "annotate", "sshhost", "-n", p.namespace, p.machine(parked).Name(), v1beta1.MaintenanceAnnotation+"=disk")
	p.status(parked, v1beta1.HostMaintenance)
	p.status(unhealthy, v1beta1.HostUnhealthy, func(s *v1beta1.SSHHostStatus) { s.LastProbeError = "dial tcp: i/o timeout" })
	p.status(claimless, v1beta1.HostInUse, installed(p.marker()))
	p.token("eeeeee", "old-eeeee")
	p.status(bereft, v1beta1.HostClaimed, claimedBy("old-eeeee", "11111111-2222-3333-4444-555555555555", "eeeeee", ""), installed(p.marker()))

	class := &v1beta1.SSHNodeClass{}
	if err := p.api.Get(p.t.Context(), keyIn("", p.name), class); err != nil {
		p.t.Fatal(err)
	}
	base := class.DeepCopy()
	class.Finalizers = []string{v1beta1.TerminationFinalizer}
	if err := p.api.Patch(p.t.Context(), class, client.MergeFrom(base)); err != nil {
		p.t.Fatal(err)
	}
	class.StatusConditions().SetTrue("Ready")
	if err := p.api.Status().Update(p.t.Context(), class); err != nil {
		p.t.Fatal(err)
	}
	// Its kinds let spec be left out.
	p.kubectl("apiVersion: karpenter.dklesev.github.io/v1beta1\nkind: SSHNodeClass\nmetadata: {name: blank, finalizers: ["+v1beta1.TerminationFinalizer+"]}\n", "create", "-f", "-")
	p.kubectl("apiVersion: karpenter.dklesev.github.io/v1beta1\nkind: SSHJoinProfile\nmetadata: {name: blank}\n", "apply", "-f", "-")
	p.kubectl("apiVersion: karpenter.dklesev.github.io/v1beta1\nkind: SSHHost\nmetadata: {name: blank, namespace: "+p.namespace+"}\n", "apply", "-f", "-")
	if stored := p.raw("SSHNodeClass", "", p.name); strings.Contains(stored, "instance:") {
		p.t.Fatalf("the existing provider's kind has no spec.instance:\n%s", stored)
	}
	for _, m := range p.fleet.Machines() {
		if _, err := os.Stat(filepath.Join(m.Root(), "var/lib/kpssh")); !os.IsNotExist(err) {
			p.t.Fatalf("%s has state of this project: %v", m.Name(), err)
		}
	}
}

func (p *predecessor) caBase64() string { return base64.StdEncoding.EncodeToString(p.cp.CA()) }

// raw is an object as the API server has it, without the ways of Go types.
func (p *predecessor) raw(kind, namespace, name string) string {
	p.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: v1beta1.Group, Version: "v1beta1", Kind: kind})
	if err := p.api.Get(p.t.Context(), keyIn(namespace, name), o); err != nil {
		p.t.Fatal(err)
	}
	return fmt.Sprint(o.Object["spec"])
}

// upgradeKinds is `make install-shared`.
func (p *predecessor) upgradeKinds() {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), filepath.Join("..", "..", ".ci", "steps", "install-crds.sh"), "own")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig, "KUBECTL="+filepath.Join(p.cp.Assets, "kubectl"))
	if output, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, output)
	}
}

// classHasOwner: a class that was stored before there were instances is read with the default, and the field selector by which an instance
// finds its classes finds it, though nobody has written it since.
func (p *predecessor) classHasOwner() {
	p.t.Helper()
	took := p.eventually(30*time.Second, "the class is instance default's", func() (bool, string) {
		list := &v1beta1.SSHNodeClassList{}
		err := p.api.List(p.t.Context(), list, client.MatchingFields{"spec.instance": v1beta1.DefaultInstance})
		names := []string{}
		for _, c := range list.Items {
			names = append(names, c.Name+" of "+c.Spec.Instance)
		}
		return slices.Contains(names, p.name+" of default"), fmt.Sprint(names, err)
	})
	p.t.Logf("the class is found by spec.instance=default %.1fs after the kinds were replaced", took.Seconds())
}

// nodeLook is what must not change about a node.
type nodeLook struct{ node, claim, pod string }

func (p *predecessor) lookAtNodes() map[string]nodeLook {
	p.t.Helper()
	seen := map[string]nodeLook{}
	for name, pod := range map[string]string{"old-aaaaa": "on-a", "old-bbbbb": "on-b"} {
		node, claim, guest := &corev1.Node{}, &karpv1.NodeClaim{}, &corev1.Pod{}
		for _, get := range []error{
			p.api.Get(p.t.Context(), keyIn("", name), node), p.api.Get(p.t.Context(), keyIn("", name), claim),
			p.api.Get(p.t.Context(), keyIn(corev1.NamespaceDefault, pod), guest),
		} {
			if get != nil {
				p.t.Fatal(get)
			}
		}
		if len(node.Spec.Taints) > 0 || !node.DeletionTimestamp.IsZero() || !claim.DeletionTimestamp.IsZero() || !guest.DeletionTimestamp.IsZero() ||
			claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() || guest.Status.Phase != corev1.PodRunning {
			p.t.Errorf("node %s is disturbed: taints %v, claim %v, pod %s", name, node.Spec.Taints, claim.Status.Conditions, guest.Status.Phase)
		}
		seen[name] = nodeLook{string(node.UID), string(claim.UID), string(guest.UID)}
	}
	return seen
}

func (p *predecessor) unchanged(before map[string]nodeLook) {
	p.t.Helper()
	now := p.lookAtNodes()
	for name, was := range before {
		if now[name] != was {
			p.t.Errorf("%s was replaced: %v, now %v", name, was, now[name])
		}
	}
}

// hostsComeToRest: every host goes to where the existing provider's next look would have brought it, or better.
func (p *predecessor) hostsComeToRest() {
	p.t.Helper()
	want := map[int]v1beta1.HostState{
		inUse: v1beta1.HostInUse, inUseLarger: v1beta1.HostInUse, midJoin: v1beta1.HostInUse, parked: v1beta1.HostMaintenance,
		warm: v1beta1.HostAvailable, cold: v1beta1.HostAvailable, zombieLeaves: v1beta1.HostAvailable, unhealthy: v1beta1.HostAvailable,
		unseen: v1beta1.HostAvailable, claimless: v1beta1.HostAvailable, bereft: v1beta1.HostAvailable,
	}
	took := p.eventually(2*time.Minute, "every host is at rest", func() (bool, string) {
		off := []string{}
		for i, h := range p.byMachine() {
			held := slices.Contains(h.Finalizers, v1beta1.HostFinalizer)
			if h.Status.State != want[i] || held != (want[i] == v1beta1.HostInUse) || h.Status.BootstrapTokenID != "" {
				off = append(off, fmt.Sprintf("%s is %s, finalizers %v, token %q, operation %v: %s",
					h.Name, h.Status.State, h.Finalizers, h.Status.BootstrapTokenID, h.Status.Operation, h.Status.LastProbeError))
			}
		}
		if n := p.tokens(); n > 0 {
			off = append(off, fmt.Sprintf("%d tokens", n))
		}
		return len(off) == 0, strings.Join(off, "\n")
	})
	p.running(3, time.Minute)
	p.t.Logf("every host at rest %.1fs after the start", took.Seconds())
	if n := p.machine(midJoin).Counters().Runs; n["join"] != 1 || n["install"] != 1 {
		p.t.Errorf("the join that had been begun was resumed by %v", n)
	}
	if n := p.machine(zombieLeaves).Counters().Runs["leave"]; n != 1 || p.machine(zombieLeaves).KubeletActive() {
		p.t.Errorf("the machine that was leaving ran %d leaves", n)
	}
	if err := p.api.Get(p.t.Context(), keyIn("", "old-ddddd"), &corev1.Node{}); !apierrors.IsNotFound(err) {
		p.t.Errorf("the Node of the machine that left: %v", err)
	}
}

// byMachine are the hosts in the order of their machines.
func (p *predecessor) byMachine() []v1beta1.SSHHost {
	p.t.Helper()
	hosts := p.hosts()
	slices.SortFunc(hosts, func(a, b v1beta1.SSHHost) int { return strings.Compare(a.Name, b.Name) })
	return hosts
}

// nothingRolls watches for a while.
func (p *predecessor) nothingRolls(before map[string]nodeLook, sessions []int64) {
	p.t.Helper()
	p.throughout(15*time.Second, func() { p.unchanged(before) })
	for i, machine := range []int{inUse, inUseLarger} {
		if now := p.machine(machine).Counters().Sessions; now != sessions[i] {
			p.t.Errorf("%d SSH sessions on a machine in use", now-sessions[i])
		}
	}
	for _, e := range p.auditSince(p.began) {
		if e.User.Username != p.user() {
			continue
		}
		what := e.Verb + " " + e.Object.Resource + "/" + e.Object.Name
		switch {
		case e.Verb == "delete" && e.Object.Resource == "nodes" && e.Object.Name == "old-ddddd":
		case (e.Verb == "delete" || e.Verb == "create") && (e.Object.Resource == "nodeclaims" || e.Object.Resource == "nodes"), e.Object.Subresource == "eviction":
			p.t.Errorf("the switch-over rolls: %s", what)
		}
	}
	if ready := readyOf(p.scenario, p.name); ready.Status != "True" {
		p.t.Errorf("the class is not Ready: %v", ready)
	}
	p.t.Logf("writes of the new controller so far: %v", p.writes())
}

// manifestsStillApply: what lies in the user's repository changes nothing, by whichever way it is applied, and takes nothing away.
func (p *predecessor) manifestsStillApply() {
	p.t.Helper()
	versions := p.generations()
	for line := range strings.Lines(p.kubectl(p.manifests(), "apply", "-f", "-")) {
		if !strings.Contains(line, "unchanged") {
			p.t.Errorf("kubectl apply of the old manifests: %s", line)
		}
	}
	p.kubectl(p.manifests(), "apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-")
	if now := p.generations(); now != versions {
		p.t.Errorf("server-side apply of the old manifests changed specs: %s, now %s", versions, now)
	}
	class := &v1beta1.SSHNodeClass{}
	if err := p.api.Get(p.t.Context(), keyIn("", p.name), class); err != nil || class.Spec.Instance != v1beta1.DefaultInstance {
		p.t.Errorf("after an apply of the old manifest the class is %q's: %v", class.Spec.Instance, err)
	}
	for _, h := range p.byMachine()[:inUseLarger+1] {
		if h.Status.ClaimRef == nil || !slices.Contains(h.Finalizers, v1beta1.HostFinalizer) {
			p.t.Errorf("after an apply of the old manifest %s has lost its claim or finalizer: %v %v", h.Name, h.Status.ClaimRef, h.Finalizers)
		}
	}
}

// generations of all that the manifests hold, as text.
func (p *predecessor) generations() string {
	return p.kubectl(p.manifests(), "get", "-f", "-", "-o", `jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.generation} {end}`)
}

func (p *predecessor) profileEditRollsNothing(before map[string]nodeLook) {
	p.t.Helper()
	edited := &v1beta1.SSHJoinProfile{}
	if err := p.api.Get(p.t.Context(), keyIn("", p.name), edited); err != nil {
		p.t.Fatal(err)
	}
	edited.Spec.Scripts.Leave += "echo edited >\"$SIM_ROOT/opt/kubelet/left\"\n"
	if err := p.api.Update(p.t.Context(), edited); err != nil {
		p.t.Fatal(err)
	}
	p.throughout(5*time.Second, func() { p.unchanged(before) })
}

// anotherNode: a new pod gets a node, from the machine that is installed.
func (p *predecessor) anotherNode() {
	p.t.Helper()
	made := p.made(p.began)
	p.pod("new")
	p.running(4, 2*time.Minute)
	if n := p.made(p.began) - made; n != 1 {
		p.t.Errorf("one pod made %d NodeClaims", n)
	}
}

// nodeOfOldLeaves: the existing provider kept no revision of its profile. It leaves once, by the profile as this controller found it.
func (p *predecessor) nodeOfOldLeaves() {
	p.t.Helper()
	m := p.machine(inUseLarger)
	leaves := m.Counters().Runs["leave"]
	p.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: "on-b"}}, &karpv1.NodeClaim{ObjectMeta: objectMeta("old-bbbbb")})
	p.eventually(2*time.Minute, "the machine has left", func() (bool, string) {
		h := p.byMachine()[inUseLarger]
		return h.Status.State == v1beta1.HostAvailable && len(h.Finalizers) == 0 && h.Status.ClaimRef == nil, fmt.Sprint(h.Status)
	})
	if n := m.Counters().Runs["leave"] - leaves; n != 1 || m.KubeletActive() {
		p.t.Errorf("leave ran %d times, kubelet active: %t", n, m.KubeletActive())
	}
	if _, err := os.Stat(filepath.Join(m.Root(), "opt/kubelet/left")); !os.IsNotExist(err) {
		p.t.Errorf("it left by a script that was edited after the switch: %v", err)
	}
	p.eventually(30*time.Second, "its Node and NodeClaim are gone", func() (bool, string) {
		node := p.api.Get(p.t.Context(), keyIn("", "old-bbbbb"), &corev1.Node{})
		claim := p.api.Get(p.t.Context(), keyIn("", "old-bbbbb"), &karpv1.NodeClaim{})
		return apierrors.IsNotFound(node) && apierrors.IsNotFound(claim), fmt.Sprint(node, claim)
	})
}

// thereAndBack: the existing provider is put back for a while, which drops the fields and finalizers that it does not know, and then this one
// again. A machine that has this project's owner file by then leaves all the same.
func (p *predecessor) thereAndBack() {
	p.t.Helper()
	p.kill()
	machine := slices.IndexFunc(p.byMachine(), func(h v1beta1.SSHHost) bool { return h.Status.ClaimEpoch > 0 && h.Status.State == v1beta1.HostInUse })
	if machine < 0 {
		p.t.Fatal("no host was claimed by this project")
	}
	h := p.byMachine()[machine]
	p.kubectl("", "patch", "sshhost", "-n", p.namespace, h.Name, "--type", "merge", "--patch", `{"metadata":{"finalizers":null}}`)
	p.status(machine, v1beta1.HostInUse, claimedBy(h.Status.ClaimRef.Name, h.Status.ClaimRef.UID, "", p.providerID(machine)), installed(p.marker()))
	p.start("")
	p.eventually(time.Minute, "the host is held again", func() (bool, string) {
		h := p.byMachine()[machine]
		return slices.Contains(h.Finalizers, v1beta1.HostFinalizer) && apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionJoined), fmt.Sprint(h.Status)
	})
}

// nothingIsLeft: all that came from the existing provider can be deleted, and no finalizer keeps any of it.
func (p *predecessor) nothingIsLeft() {
	p.t.Helper()
	p.kubectl("", "annotate", "sshhost", "-n", p.namespace, p.machine(parked).Name(), v1beta1.MaintenanceAnnotation+"-")
	p.deleteClaims()
	p.eventually(2*time.Minute, "every host is free", func() (bool, string) { return p.settledIn("") })
	p.remove(p.nodePool)
	p.kubectl("", "delete", "sshnodeclasses", "--all", "--timeout=60s")
	p.kubectl("", "delete", "sshhosts", "-A", "--all", "--timeout=60s")
	p.kubectl("", "delete", "sshjoinprofiles", "--all", "--timeout=60s") // held while a host has one installed
	if lines := p.errorLines(p.t); len(lines) > 0 {
		p.t.Errorf("errors in the log:\n%s", strings.Join(lines, "\n"))
	}
}
