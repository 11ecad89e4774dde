package integration

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const (
	poolNamespace = "kpssh-system"
	// controllerUser is who the controller is to the API server, by which the audit log tells its requests apart.
	controllerUser = "kpssh-controller-default"
	hostLabel      = "test/scenario"
)

// world is what all tests of the package share: one control plane and one built controller.
type world struct {
	cp     *lab.ControlPlane
	api    client.Client
	binary string
	dir    string
}

var shared *world

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// favour raises this session over those of the simulated machines: the kernel shares the processors out by session, and each phase on a
// machine is one, so that a hundred of them would leave the API server a hundredth. Without the right to do so all is the same, slower.
func favour() {
	_ = os.WriteFile("/proc/self/autogroup", []byte("-10"), 0o644) //nolint:gosec // the kernel's file
}

func run(m *testing.M) int {
	favour()
	dir, err := os.MkdirTemp("", "kpssh-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	fmt.Println("integration: building the controller")
	binary, err := lab.BuildController(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cp, err := lab.StartControlPlane(ctx, lab.Options{
		Log: os.Stdout, Scheduler: true, ControllerManager: true, CRDs: true, Bootstrap: true, Audit: true,
		NodeMonitorGracePeriod: 2 * time.Minute, // two busy cores and hundreds of stand-in kubelets: a late heartbeat is no fault here
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer cp.Stop()
	api, err := client.New(cp.RESTConfig(), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	clientset, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err == nil {
		err = lab.EnsureNamespace(ctx, clientset, poolNamespace)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = &world{cp: cp, api: api, binary: binary, dir: dir}
	return m.Run()
}

// scenario is one test's machines, class, pool and controller. All its objects go when it ends.
type scenario struct {
	*world
	t          *testing.T
	name       string
	fleet      *sim.Fleet
	controller *lab.Process
	metrics    int // port
	began      time.Time
}

// begin makes machines h0… of a scenario, registers them, and applies a class and a pool of the scenario's name. No controller runs yet.
func begin(t *testing.T, name string, heartbeat time.Duration, specs ...sim.Spec) *scenario {
	t.Helper()
	s := &scenario{world: shared, t: t, name: name, began: time.Now()}
	fleet, err := sim.NewFleet(t.Context(), sim.Options{Config: s.cp.RESTConfig(), Log: os.Stderr, Heartbeat: heartbeat})
	if err != nil {
		t.Fatal(err)
	}
	s.fleet = fleet
	t.Cleanup(s.end)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("%s-%03d", name, i)
	}
	if _, err := fleet.Add(specs...); err != nil {
		t.Fatal(err)
	}
	s.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: name}, Data: fleet.LoginSecret(poolNamespace, name, true).Data})
	for _, m := range fleet.Machines() {
		h := m.Host(poolNamespace, name)
		h.Labels = map[string]string{hostLabel: name}
		s.create(h)
	}
	joinProfile := sim.Profile()
	joinProfile.Name = name
	s.create(joinProfile)
	s.create(&v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1beta1.SSHNodeClassSpec{
		HostSelector:   &metav1.LabelSelector{MatchLabels: map[string]string{hostLabel: name}},
		JoinProfileRef: v1beta1.ProfileReference{Name: name},
	}})
	s.create(&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodePoolSpec{
		Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: name},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}},
			ExpireAfter:  karpv1.MustParseNillableDuration("Never"),
		}},
		Disruption: karpv1.Disruption{
			ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmpty, ConsolidateAfter: karpv1.MustParseNillableDuration("1s"),
			Budgets: []karpv1.Budget{{Nodes: "100%"}},
		},
	}})
	return s
}

func (s *scenario) create(o client.Object) {
	s.t.Helper()
	if err := s.api.Create(s.t.Context(), o); err != nil {
		s.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

// start runs the controller. Env is added to its environment; kubeconfig replaces its own if it is not empty.
func (s *scenario) start(kubeconfig string, env ...string) {
	s.t.Helper()
	var ports lab.Ports
	port, err := ports.Take("0.0.0.0")
	if err != nil {
		s.t.Fatal(err)
	}
	ports.Release()
	s.metrics = port
	if kubeconfig == "" {
		if kubeconfig, err = s.cp.Kubeconfig(controllerUser, "system:masters"); err != nil {
			s.t.Fatal(err)
		}
	}
	s.controller, err = s.cp.StartController(lab.ControllerOptions{
		Binary: s.binary, Name: fmt.Sprintf("controller-%s-%d", s.name, time.Now().UnixNano()), PoolNamespace: poolNamespace, Kubeconfig: kubeconfig,
		Env: append([]string{
			"METRICS_PORT=" + strconv.Itoa(port), "DISABLE_LEADER_ELECTION=true", "BATCH_IDLE_DURATION=500ms", "LOG_LEVEL=debug",
		}, env...),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// end removes everything the scenario made, in an order in which nothing is left behind: the pool first, so that its nodes leave.
func (s *scenario) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if s.t.Failed() && s.controller != nil {
		s.t.Logf("the controller's last words:\n%s", s.controller.LogTail(60))
	}
	if s.controller != nil {
		s.controller.Kill()
	}
	s.purge(ctx)
	s.fleet.Close()
}

// purge deletes the scenario's objects, finalizers and all: the machines go with the fleet.
func (s *scenario) purge(ctx context.Context) {
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	_ = s.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(corev1.NamespaceDefault), client.MatchingLabels{hostLabel: s.name}, client.GracePeriodSeconds(0))
	_ = s.api.Delete(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, background)
	claims, nodes, hosts := &karpv1.NodeClaimList{}, &corev1.NodeList{}, &v1beta1.SSHHostList{}
	inPool := client.MatchingLabels{karpv1.NodePoolLabelKey: s.name}
	_ = s.api.List(ctx, claims, inPool)
	_ = s.api.List(ctx, nodes, inPool)
	_ = s.api.List(ctx, hosts, client.InNamespace(poolNamespace), client.MatchingLabels{hostLabel: s.name})
	objects := []client.Object{}
	for i := range claims.Items {
		objects = append(objects, &claims.Items[i])
	}
	for i := range nodes.Items {
		objects = append(objects, &nodes.Items[i])
	}
	for i := range hosts.Items {
		objects = append(objects, &hosts.Items[i])
	}
	class := &v1beta1.SSHNodeClass{}
	if s.api.Get(ctx, client.ObjectKey{Name: s.name}, class) == nil {
		objects = append(objects, class)
	}
	for _, o := range objects {
		_ = s.api.Delete(ctx, o)
		base := o.DeepCopyObject().(client.Object)
		o.SetFinalizers(nil)
		_ = s.api.Patch(ctx, o, client.MergeFrom(base))
	}
	_ = s.api.Delete(ctx, &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	_ = s.api.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: s.name}})
}

// pod makes one pod that fits the scenario's pool only, and that fills most of a host of four cores.
func (s *scenario) pod(name string, edits ...func(*corev1.Pod)) {
	s.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault, Name: name, Labels: map[string]string{hostLabel: s.name}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{karpv1.NodePoolLabelKey: s.name}, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: "pause", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")},
			}}},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	s.create(p)
}

// eventually polls until until is true, and says what was awaited if it never is.
func (s *scenario) eventually(within time.Duration, what string, until func() (bool, string)) time.Duration {
	s.t.Helper()
	began := time.Now()
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, seen := until()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > within {
			s.t.Fatalf("waited %s in vain until %s; last seen: %s", within, what, seen)
		}
		select {
		case <-ticker.C:
		case <-s.controller.Done():
			s.t.Fatalf("the controller ended while waiting until %s: %v", what, s.controller.Err())
		}
	}
}

func (s *scenario) hosts() []v1beta1.SSHHost {
	s.t.Helper()
	list := &v1beta1.SSHHostList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(poolNamespace), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func (s *scenario) pods() []corev1.Pod {
	s.t.Helper()
	list := &corev1.PodList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(corev1.NamespaceDefault), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// running awaits n running pods of the scenario.
func (s *scenario) running(n int, within time.Duration) time.Duration {
	s.t.Helper()
	return s.eventually(within, fmt.Sprintf("%d pods run", n), func() (bool, string) {
		count := 0
		for _, p := range s.pods() {
			if p.Status.Phase == corev1.PodRunning {
				count++
			}
		}
		return count >= n, fmt.Sprintf("%d run; hosts %v", count, s.states())
	})
}

func (s *scenario) states() map[v1beta1.HostState]int {
	counts := map[v1beta1.HostState]int{}
	for _, h := range s.hosts() {
		counts[h.Status.State]++
	}
	return counts
}

// allIn awaits that every host of the scenario is in a state.
func (s *scenario) allIn(state v1beta1.HostState, within time.Duration) time.Duration {
	s.t.Helper()
	return s.eventually(within, fmt.Sprintf("every host is %s", state), func() (bool, string) {
		states := s.states()
		return states[state] == len(s.hosts()), fmt.Sprint(states)
	})
}

func (s *scenario) deletePods() {
	s.t.Helper()
	if err := s.api.DeleteAllOf(s.t.Context(), &corev1.Pod{}, client.InNamespace(corev1.NamespaceDefault), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
}

// tokens counts the bootstrap tokens in the cluster.
func (s *scenario) tokens() int {
	s.t.Helper()
	list := &corev1.SecretList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(metav1.NamespaceSystem), client.MatchingFields{"type": string(corev1.SecretTypeBootstrapToken)}); err != nil {
		s.t.Fatal(err)
	}
	return len(list.Items)
}

// metric sums a metric of the controller over all label sets that hold every one of the given pairs, as name="value".
func (s *scenario) metric(name string, pairs ...string) float64 {
	s.t.Helper()
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", s.metrics)) //nolint:noctx // loopback, in a test
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
line:
	for lines.Scan() {
		text := lines.Text()
		if !strings.HasPrefix(text, name+"{") && !strings.HasPrefix(text, name+" ") {
			continue
		}
		for _, pair := range pairs {
			if !strings.Contains(text, pair) {
				continue line
			}
		}
		value, err := strconv.ParseFloat(text[strings.LastIndex(text, " ")+1:], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// writes counts the controller's writes since the scenario began, by verb and resource.
func (s *scenario) writes() map[string]int {
	s.t.Helper()
	audit, err := s.cp.ReadAudit()
	if err != nil {
		s.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range audit {
		if e.User.Username != controllerUser || !e.Write() || e.Time.Before(s.began) {
			continue
		}
		counts[e.Verb+" "+filepath.Join(e.Object.Resource, e.Object.Subresource)]++
	}
	return counts
}
