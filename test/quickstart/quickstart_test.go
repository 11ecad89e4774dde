package quickstart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/chart"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const page = "../../docs/quick-start.md"

// patience for one block of commands; each of its waits is shorter.
const patience = 10 * time.Minute

var (
	block    = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	assigned = regexp.MustCompile(`(?m)^export ([A-Z][A-Z0-9_]*)=`)
)

// What a newcomer copies from the quick start works, with nothing but the variables at its top changed: a pod lands on a node of the
// segment that it asked for, the node goes when the pod is gone, and nothing stays behind.
func TestTheQuickStartWorksAsItStands(t *testing.T) {
	variables, steps := readPage(t)
	cp, err := lab.StartControlPlane(t.Context(), lab.Options{ControllerManager: true, Scheduler: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	// As kubeadm leaves it.
	if err := cp.PublishClusterInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	clientset, err := kubernetes.NewForConfig(cp.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(cp.RESTConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := sim.NewFleet(t.Context(), sim.Options{Config: cp.RESTConfig()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	n := newcomer{variables: settings(t, variables, fleet), environment: environment(t, cp)}
	w := startWorker(t, cp, clientset)

	checks := map[string]func(){
		"a pod lands": func() {
			wantPodOn(t, api, "rack-1", fleet.Machine("rack-1"))
			wantPodOn(t, api, "rack-2", fleet.Machine("rack-2"))
		},
		"an idle node goes": func() {
			for _, m := range fleet.Machines() {
				if m.KubeletActive() {
					t.Errorf("machine %s still runs a kubelet", m.Name())
				}
			}
		},
		"take it down": func() { wantNothingLeft(t, api) },
	}
	for _, step := range steps {
		began := time.Now()
		if output, err := n.do(t.Context(), step.commands); err != nil {
			t.Fatalf("%q: %v\n%s\n%s", step.heading, err, output, w.logs())
		}
		t.Logf("%-40s %.1fs", step.heading, time.Since(began).Seconds())
		if check := checks[strings.ToLower(step.heading)]; check != nil {
			check()
			delete(checks, strings.ToLower(step.heading))
		}
	}
	for heading := range checks {
		t.Errorf("docs/quick-start.md has no commands under a heading %q", heading)
	}
}

// step is a block of commands and the heading that it stands under.
type step struct{ heading, commands string }

// readPage gives the names that the first block sets, and the blocks after it.
func readPage(t *testing.T) (variables []string, steps []step) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i, at := range block.FindAllStringSubmatchIndex(text, -1) {
		commands := text[at[2]:at[3]]
		if i == 0 {
			for _, match := range assigned.FindAllStringSubmatch(commands, -1) {
				variables = append(variables, match[1])
			}
			continue
		}
		before := text[:at[0]]
		heading, _, _ := strings.Cut(before[strings.LastIndex(before, "\n## ")+len("\n## "):], "\n")
		steps = append(steps, step{heading: strings.TrimLeft(heading, "0123456789. "), commands: commands})
	}
	if len(variables) == 0 || len(steps) < 5 {
		t.Fatalf("%s: variables %v, %d blocks of commands", page, variables, len(steps))
	}
	return variables, steps
}

// settings are what this newcomer puts into the variables: machines, the key to them, and the profile for machines like them.
func settings(t *testing.T, names []string, fleet *sim.Fleet) map[string]string {
	t.Helper()
	dir := t.TempDir()
	values := map[string]string{
		"IMAGE_REPOSITORY": "registry.example/karpenter-provider-ssh", "IMAGE_TAG": "test",
		"KUBELET_URL": "https://registry.example/kubelet", "KUBELET_SHA256": strings.Repeat("0", 64),
		"SSH_KEY": filepath.Join(dir, "key"), "KNOWN_HOSTS": filepath.Join(dir, "known_hosts"), "PROFILE": filepath.Join(dir, "profile.yaml"),
	}
	for _, rack := range []string{"rack-1", "rack-2"} {
		added, err := fleet.Add(sim.Spec{Name: rack, CPU: 4, Memory: resource.MustParse("8Gi")})
		if err != nil {
			t.Fatal(err)
		}
		prefix := strings.ToUpper(strings.ReplaceAll(rack, "-", ""))
		values[prefix+"_ADDRESS"], values[prefix+"_PORT"], values[prefix+"_NODE_ADDRESS"] = added[0].Address(), strconv.Itoa(added[0].Port()), added[0].NodeIP()
	}
	profile := sim.Profile()
	profile.Name = "tls-bootstrap" // of the file that is the variable's default
	rendered, err := yaml.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	login := fleet.LoginSecret("", "", true)
	for file, content := range map[string][]byte{values["PROFILE"]: rendered, values["SSH_KEY"]: login.Data["privateKey"], values["KNOWN_HOSTS"]: login.Data["knownHost"]} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if _, set := values[name]; !set {
			t.Errorf("docs/quick-start.md has a variable %s that this test does not set", name)
		}
	}
	for name := range values {
		if !slices.Contains(names, name) {
			t.Errorf("this test sets %s, which docs/quick-start.md does not have", name)
		}
	}
	return values
}

// environment has helm and kubectl on PATH, and helm's own files out of the way of the user's.
func environment(t *testing.T, cp *lab.ControlPlane) []string {
	t.Helper()
	helm, err := chart.Helm()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cp.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	bin, home := t.TempDir(), t.TempDir()
	for name, target := range map[string]string{"helm": helm, "kubectl": filepath.Join(cp.Assets, "kubectl")} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, kind := range []string{"CACHE", "CONFIG", "DATA"} {
		env = append(env, "HELM_"+kind+"_HOME="+filepath.Join(home, kind))
	}
	return env
}

type newcomer struct {
	variables   map[string]string
	environment []string
}

// do pastes a block of commands into a shell in which the variables are set.
func (n newcomer) do(ctx context.Context, commands string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-x", "-c", commands)
	root, err := lab.Root()
	if err != nil {
		return "", err
	}
	cmd.Dir, cmd.Env = root, n.environment
	for name, value := range n.variables {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s", name, value))
	}
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// wantPodOn fails unless the rack's pod runs on a node that is the rack's machine.
func wantPodOn(t *testing.T, api client.Client, rack string, machine *sim.Machine) {
	t.Helper()
	pods := &corev1.PodList{}
	if err := api.List(t.Context(), pods, client.MatchingLabels{"app": "hello-" + rack}); err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
		t.Fatalf("%s: want one running pod, have %d", rack, len(pods.Items))
	}
	node := &corev1.Node{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: pods.Items[0].Spec.NodeName}, node); err != nil {
		t.Fatal(err)
	}
	if got := node.Labels[v1beta1.InstanceLabel]; got != rack {
		t.Errorf("the pod for %s runs on Node %s of instance %q", rack, node.Name, got)
	}
	if want := v1beta1.ProviderIDScheme + "kp-" + rack + "/"; !strings.HasPrefix(node.Spec.ProviderID, want) {
		t.Errorf("%s: Node %s has provider ID %s, want one below %s", rack, node.Name, node.Spec.ProviderID, want)
	}
	if !machine.KubeletActive() {
		t.Errorf("%s: the machine runs no kubelet", rack)
	}
}

// wantNothingLeft fails if anything of the provider but its CRDs is there.
func wantNothingLeft(t *testing.T, api client.Client) {
	t.Helper()
	for _, kind := range []string{"SSHHost", "SSHNodeClass", "SSHJoinProfile"} {
		wantNone(t, api, v1beta1.GroupVersion.String(), kind)
	}
	for _, kind := range []string{"NodePool", "NodeClaim"} {
		wantNone(t, api, "karpenter.sh/v1", kind)
	}
	nodes := &corev1.NodeList{}
	if err := api.List(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if node.Name != workerName {
			t.Errorf("Node %s is left", node.Name)
		}
	}
	wantNone(t, api, "apps/v1", "Deployment")
	roles := &metav1.PartialObjectMetadataList{}
	roles.SetGroupVersionKind(rbacKind("ClusterRoleBinding"))
	if err := api.List(t.Context(), roles); err != nil {
		t.Fatal(err)
	}
	for _, role := range roles.Items {
		if strings.HasPrefix(role.Name, "kpssh:") {
			t.Errorf("ClusterRoleBinding %s is left", role.Name)
		}
	}
}
