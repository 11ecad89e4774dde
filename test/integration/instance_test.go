package integration

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// userPrefix and an instance's name are who its process is to the API server, by which the audit log tells its requests apart.
const userPrefix = "kpssh-controller-"

// instance is one installation of the controller: a name, a pool namespace, and, while it runs, an OS process.
type instance struct {
	*world
	name, namespace string
	// label names its logs. Default: name
	label string
	// runs is the binary of its processes. Default: the controller
	runs string
	// env of each of its processes, NAME=value.
	env []string

	controller *lab.Process // nil while it is down
	metrics    int          // port
	started    time.Time
	last       *lab.Process // that ran, for its last words
}

// newInstance makes one whose process does not run yet.
func (w *world) newInstance(t *testing.T, name, namespace string, env ...string) *instance {
	t.Helper()
	if err := lab.EnsureNamespace(t.Context(), w.clientset, namespace); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(w.instances, name) {
		w.instances = append(w.instances, name) // each has a group of bootstrap tokens
		if err := w.cp.InstallBootstrap(t.Context(), w.instances...); err != nil {
			t.Fatal(err)
		}
	}
	w.owners.own(namespace, name)
	i := &instance{world: w, name: name, namespace: namespace, env: env}
	t.Cleanup(func() { i.end(t) })
	return i
}

func (i *instance) user() string { return userPrefix + i.name }

// start runs the controller. Env is added to its environment; kubeconfig replaces its own if it is not empty.
func (i *instance) start(t *testing.T, kubeconfig string, env ...string) {
	t.Helper()
	var ports lab.Ports
	port, err := ports.Take("0.0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	ports.Release()
	i.metrics = port
	if kubeconfig == "" {
		if kubeconfig, err = i.cp.Kubeconfig(i.user(), "system:masters"); err != nil {
			t.Fatal(err)
		}
	}
	i.started = time.Now()
	i.controller, err = i.cp.StartController(lab.ControllerOptions{
		Binary: cmp.Or(i.runs, i.binary), Name: fmt.Sprintf("controller-%s-%d", cmp.Or(i.label, i.name), i.started.UnixNano()),
		Instance: i.name, PoolNamespace: i.namespace, Kubeconfig: kubeconfig,
		Env: slices.Concat([]string{
			"METRICS_PORT=" + strconv.Itoa(port), "DISABLE_LEADER_ELECTION=true", "BATCH_IDLE_DURATION=500ms", "LOG_LEVEL=debug",
		}, i.env, env),
	})
	if err != nil {
		t.Fatal(err)
	}
	i.last = i.controller
}

// ready awaits that the process would be given work by a Deployment.
func (i *instance) ready(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := i.scrape("kpssh_instance_info"); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("instance %s does not answer", i.name)
		}
		select {
		case <-i.done():
			t.Fatalf("instance %s ended: %v", i.name, i.controller.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// kill is the process's end without a farewell.
func (i *instance) kill() {
	if i.controller != nil {
		i.controller.Kill()
		i.controller = nil
	}
}

// pause stops the process where it is, as a virtual machine that is suspended; resume lets it go on, unaware.
func (i *instance) pause(t *testing.T) { i.signal(t, syscall.SIGSTOP) }

func (i *instance) resume(t *testing.T) { i.signal(t, syscall.SIGCONT) }

func (i *instance) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(i.controller.Pid(), s); err != nil {
		t.Fatal(err)
	}
}

func (i *instance) end(t *testing.T) {
	if t.Failed() && i.last != nil {
		t.Logf("the last words of instance %s:\n%s", i.name, i.last.LogTail(60))
	}
	i.kill()
}

// done is closed when the process ends by itself; nil while it is down.
func (i *instance) done() <-chan struct{} {
	if i.controller == nil {
		return nil
	}
	return i.controller.Done()
}

// metric sums a metric of the process over all label sets that hold every one of the given pairs, as name="value".
func (i *instance) metric(t *testing.T, name string, pairs ...string) float64 {
	t.Helper()
	sum, err := i.scrape(name, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func (i *instance) scrape(name string, pairs ...string) (float64, error) {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", i.metrics)) //nolint:noctx // loopback, in a test
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := lines.Text()
		if !strings.HasPrefix(text, name+"{") && !strings.HasPrefix(text, name+" ") ||
			slices.ContainsFunc(pairs, func(pair string) bool { return !strings.Contains(text, pair) }) {
			continue
		}
		value, err := strconv.ParseFloat(text[strings.LastIndex(text, " ")+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, lines.Err()
}

// errorLines are what the running process has logged as errors.
func (i *instance) errorLines(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile(i.last.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(content)) {
		var entry struct{ Level string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || strings.EqualFold(entry.Level, "error") {
			lines = append(lines, strings.TrimSpace(line)) // what is not JSON is a panic, or a library's complaint
		}
	}
	return lines
}
