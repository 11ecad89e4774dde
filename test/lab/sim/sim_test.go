package sim_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// shared is one control plane for all tests of the package; each test has machines and nodes of its own.
var shared struct {
	once sync.Once
	cp   *lab.ControlPlane
	err  error
	log  bytes.Buffer
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cp != nil {
		shared.cp.Stop()
	}
	os.Exit(code)
}

func controlPlane(t *testing.T) *lab.ControlPlane {
	t.Helper()
	shared.once.Do(func() {
		shared.cp, shared.err = lab.StartControlPlane(context.Background(), lab.Options{ControllerManager: true, Bootstrap: true, Log: &shared.log})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cp
}

// cluster is what a test does to machines in place of the controller.
type cluster struct {
	*testing.T
	cp     *lab.ControlPlane
	client *kubernetes.Clientset
	fleet  *sim.Fleet
}

func newCluster(t *testing.T, opts sim.Options) *cluster {
	t.Helper()
	cp := controlPlane(t)
	opts.Config = cp.RESTConfig()
	client, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{T: t, cp: cp, client: client, fleet: newFleet(t, opts)}
}

func newFleet(t *testing.T, opts sim.Options) *sim.Fleet {
	t.Helper()
	fleet, err := sim.NewFleet(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	return fleet
}

// withAndWithoutLinux runs a test with what this computer has, and as on a Mac.
func withAndWithoutLinux(t *testing.T, name string, test func(*testing.T, sim.Options)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { test(t, sim.Options{}) })
	t.Run(name+", as on a Mac", func(t *testing.T) { test(t, sim.Options{Portable: true}) })
}

func add(t *testing.T, fleet *sim.Fleet, specs ...sim.Spec) []*sim.Machine {
	t.Helper()
	machines, err := fleet.Add(specs...)
	if err != nil {
		t.Fatal(err)
	}
	return machines
}

func dial(ctx context.Context, fleet *sim.Fleet, m *sim.Machine) (*ssh.Conn, error) {
	secret := fleet.LoginSecret("any", "any", true)
	key, err := ssh.ParseKey(secret.Data["privateKey"], nil)
	if err != nil {
		return nil, err
	}
	pins, err := ssh.ParsePins(secret.Data["knownHost"], m.Address(), m.Port())
	if err != nil {
		return nil, err
	}
	return (&ssh.Dialer{}).Dial(ctx, ssh.Target{Address: m.Address(), Port: m.Port(), User: "root", Key: key, Pins: pins})
}

func run(ctx context.Context, fleet *sim.Fleet, m *sim.Machine, script ssh.Script) (ssh.Result, error) {
	conn, err := dial(ctx, fleet, m)
	if err != nil {
		return ssh.Result{}, err
	}
	defer conn.Close()
	if script.Timeout == 0 {
		script.Timeout = time.Minute
	}
	return conn.Run(ctx, script)
}

// phase runs a script of the simulated profile as the controller would.
func (c *cluster) phase(m *sim.Machine, phase string, env map[string]string) error {
	scripts := sim.Profile().Spec.Scripts
	body := map[string]string{"install": scripts.Install, "join": scripts.Join, "leave": scripts.Leave}[phase]
	_, err := run(c.Context(), c.fleet, m, ssh.Script{
		Phase: phase, Body: body, Env: env,
		Owner: &ssh.Owner{Cluster: "cluster", Instance: "default", Host: "host-" + m.Name(), Claim: "claim", Epoch: 1},
	})
	return err
}

func (c *cluster) join(m *sim.Machine, node string) {
	c.Helper()
	if err := c.tryJoin(m, node); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) tryJoin(m *sim.Machine, node string) error {
	id := fmt.Sprintf("%06x", time.Now().UnixNano()%0xffffff)
	_, err := c.client.CoreV1().Secrets("kube-system").Create(c.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:kpssh",
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := c.phase(m, "install", nil); err != nil {
		return err
	}
	return c.phase(m, "join", map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": c.cp.Endpoint,
		"KPSSH_CLUSTER_CA_B64":   base64.StdEncoding.EncodeToString(c.cp.CA()),
		"KPSSH_BOOTSTRAP_TOKEN":  id + ".0123456789abcdef",
		"KPSSH_NODE_NAME":        node,
		"KPSSH_NODE_ADDRESS":     m.NodeIP(),
		"KPSSH_PROVIDER_ID":      "kpssh://ns/" + m.Name(),
		"KPSSH_NODE_LABELS":      "example.com/a=b",
		"KPSSH_TAINTS":           "karpenter.sh/unregistered:NoExecute",
	})
}

// node waits until the Node is as wanted.
func (c *cluster) node(name string, wanted func(*corev1.Node) bool) *corev1.Node {
	c.Helper()
	var node *corev1.Node
	eventually(c.T, func() string {
		var err error
		if node, err = c.client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if !wanted(node) {
			return fmt.Sprintf("%+v", node.Status.Conditions)
		}
		return ""
	})
	return node
}

func ready(status corev1.ConditionStatus) func(*corev1.Node) bool {
	return func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == status
		})
	}
}

// eventually wants check to return "", which is what is still missing.
func eventually(t *testing.T, check func() (missing string)) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := check()
		if missing == "" {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("waited a minute in vain: %s", missing)
		case <-tick.C:
		}
	}
}

// What people without Linux see in the demo.
func TestAMachineJoinsAndLeavesOnAMac(t *testing.T) {
	c := newCluster(t, sim.Options{Heartbeat: time.Second, Portable: true})
	m := add(t, c.fleet, sim.Spec{Name: "mac"})[0]
	c.join(m, "node-mac")
	c.node("node-mac", ready(corev1.ConditionTrue))
	if err := c.phase(m, "leave", nil); err != nil {
		t.Fatal(err)
	}
	if m.KubeletActive() {
		t.Error("the kubelet runs after leave")
	}
}

func TestAMachineJoinsServesPodsAndLeaves(t *testing.T) {
	c := newCluster(t, sim.Options{Heartbeat: time.Second})
	ctx := t.Context()
	m := add(t, c.fleet, sim.Spec{Name: "m1", CPU: 3, Arch: "arm64"})[0]
	c.join(m, "node-1")
	node := c.node("node-1", ready(corev1.ConditionTrue))
	if node.Spec.ProviderID != "kpssh://ns/m1" || node.Labels["example.com/a"] != "b" || node.Labels[corev1.LabelArchStable] != "arm64" {
		t.Errorf("providerID %q, labels %v", node.Spec.ProviderID, node.Labels)
	}
	if !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == "karpenter.sh/unregistered" && taint.Effect == corev1.TaintEffectNoExecute
	}) {
		t.Errorf("taints %v", node.Spec.Taints)
	}
	if cpu := node.Status.Capacity.Cpu().Value(); cpu != 3 {
		t.Errorf("capacity is %d cores", cpu)
	}

	pods := c.client.CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-node-1"},
		Spec: corev1.PodSpec{
			NodeName: "node-1", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		pod, err := pods.Get(ctx, "on-node-1", metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.HostIP != m.NodeIP() {
			return fmt.Sprintf("%v, %v; kubelet:\n%s", err, pod.Status, m.Log("kubelet"))
		}
		return ""
	})
	if err := pods.Delete(ctx, "on-node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if _, err := pods.Get(ctx, "on-node-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the pod is still there (%v)", err)
		}
		return ""
	})

	if err := c.phase(m, "leave", nil); err != nil {
		t.Fatal(err)
	}
	if m.KubeletActive() {
		t.Error("the kubelet runs after leave")
	}
	if counters := m.Counters(); counters.Handshakes != 3 || counters.Sessions != 3 || counters.Runs["install"] != 1 || counters.Runs["join"] != 1 || counters.Runs["leave"] != 1 {
		t.Errorf("counters %+v", counters)
	}
	t.Run("a rejoin needs a new identity", func(t *testing.T) {
		c.join(m, "node-1b")
		c.node("node-1b", ready(corev1.ConditionTrue))
	})
}

func TestASilentNodeBecomesNotReadyAndComesBackAfterAReboot(t *testing.T) {
	c := newCluster(t, sim.Options{Heartbeat: time.Second})
	m := add(t, c.fleet, sim.Spec{Name: "m2"})[0]
	c.join(m, "node-2")
	before := c.node("node-2", ready(corev1.ConditionTrue))
	m.PowerOff()
	c.node("node-2", ready(corev1.ConditionUnknown))
	if err := m.PowerOn(); err != nil {
		t.Fatal(err)
	}
	after := c.node("node-2", ready(corev1.ConditionTrue))
	if before.UID != after.UID || before.Status.NodeInfo.BootID == after.Status.NodeInfo.BootID {
		t.Errorf("want the same Node with another boot ID, got %s/%s, then %s/%s", before.UID, before.Status.NodeInfo.BootID, after.UID, after.Status.NodeInfo.BootID)
	}
}

// A stand-in that only renews its Lease would stay NotReady for good once it was late.
func TestANodeThatWasDeclaredDeadReportsReadyAgain(t *testing.T) {
	c := newCluster(t, sim.Options{Heartbeat: time.Second})
	m := add(t, c.fleet, sim.Spec{Name: "m4"})[0]
	c.join(m, "node-4")
	c.node("node-4", ready(corev1.ConditionTrue))
	// What kube-controller-manager does when a Lease expires.
	patch := []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`)
	_, err := c.client.CoreV1().Nodes().Patch(t.Context(), "node-4", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	c.node("node-4", ready(corev1.ConditionTrue))
}

func TestManyMachinesJoinAtOnce(t *testing.T) {
	const count = 16
	c := newCluster(t, sim.Options{Heartbeat: 10 * time.Second})
	specs := make([]sim.Spec, count)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("many-%03d", i)
	}
	begin := time.Now()
	machines := add(t, c.fleet, specs...)
	t.Logf("%d machines made in %s", count, time.Since(begin).Round(time.Millisecond))
	begin = time.Now()
	var joins sync.WaitGroup
	for _, m := range machines {
		joins.Go(func() {
			if err := c.tryJoin(m, "node-"+m.Name()); err != nil {
				t.Error(err)
			}
		})
	}
	joins.Wait()
	t.Logf("all scripts ran within %s", time.Since(begin).Round(time.Millisecond))
	for _, m := range machines {
		c.node("node-"+m.Name(), ready(corev1.ConditionTrue))
	}
	t.Logf("all nodes were ready within %s", time.Since(begin).Round(time.Millisecond))
}

func TestCommandsSeeTheMachineAndNotTheLab(t *testing.T) {
	withAndWithoutLinux(t, "probe", commandsSeeTheMachine)
}

func commandsSeeTheMachine(t *testing.T, opts sim.Options) {
	t.Setenv("KUBECONFIG", "/of/the/lab")
	fleet := newFleet(t, opts)
	m := add(t, fleet, sim.Spec{Name: "m3", CPU: 7, Arch: "arm64", ClockSkew: 3600})[0]
	result, err := run(t.Context(), fleet, m, ssh.Script{Phase: "probe", Body: `
		nproc; uname -m; echo "${KUBECONFIG-none}"; systemctl is-active kubelet || true
		while read -r key value _; do [ "$key" = MemTotal: ] && echo "$value"; done </proc/meminfo || true
		cat /proc/sys/kernel/random/boot_id | wc -c; date +%s
		command -v flock >&2; ls /proc/self/stat >&2 || true`})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(result.Stdout.String())
	want := []string{"7", "aarch64", "none", "inactive", fmt.Sprint(8 * 1024 * 1024), "37"}
	if len(lines) != len(want)+1 || !slices.Equal(lines[:len(want)], want) {
		t.Fatalf("got %q, want %q and a time", lines, want)
	}
	var seconds int64
	if _, err := fmt.Sscan(lines[len(want)], &seconds); err != nil || seconds < time.Now().Unix()+3500 {
		t.Errorf("the clock is not an hour ahead: %q (%v)", lines[len(want)], err)
	}
	// Or the tests that run as on a Mac would prove nothing.
	tools := result.Stderr.String()
	portable := opts.Portable || runtime.GOOS != "linux"
	if portable != strings.Contains(tools, "/kpssh-sim-") || portable != strings.Contains(tools, "No such file") {
		t.Errorf("flock, and whether there is /proc: %s", tools)
	}
}
