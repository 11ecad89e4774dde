package lab_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func start(t *testing.T, opts lab.Options) *lab.ControlPlane {
	t.Helper()
	opts.Log = testLog{t}
	cp, err := lab.StartControlPlane(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	return cp
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(string(bytes.TrimRight(p, "\n")))
	return len(p), nil
}

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAControlPlaneIsCompleteWhenItIsReady(t *testing.T) {
	cp := start(t, lab.Options{ControllerManager: true, Scheduler: true, CRDs: true, Bootstrap: true, Audit: true})
	ctx := t.Context()
	admin := clientFor(t, cp.RESTConfig())

	groups, err := admin.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"karpenter.sh", "karpenter.dklesev.github.io"} {
		if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == want }) {
			t.Errorf("API group %s is not served", want)
		}
	}

	info, err := admin.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(info.Data["kubeconfig"], cp.Endpoint) {
		t.Errorf("cluster-info does not name %s: %s", cp.Endpoint, info.Data["kubeconfig"])
	}

	t.Run("a pod can be created and is scheduled only where a node is", func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		watch, err := admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=p", TimeoutSeconds: ptr[int64](60)})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if ok && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				return
			}
		}
		t.Errorf("the scheduler did not look at the pod; its log:\n%s", cp.LogTail("kube-scheduler", 10))
	})

	t.Run("users are who their kubeconfig says, and may do no more", func(t *testing.T) {
		path, err := cp.Kubeconfig("jane", "developers")
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := clientFor(t, config).CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "jane"`) {
			t.Errorf("want forbidden for jane, got %v", err)
		}
		if path, err = cp.ServiceAccountKubeconfig(ctx, "default", "default"); err != nil {
			t.Fatal(err)
		}
		if config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
			t.Fatal(err)
		}
		if _, err := clientFor(t, config).CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:default:default") {
			t.Errorf("want forbidden for the ServiceAccount, got %v", err)
		}
	})

	t.Run("the audit log knows who wrote what", func(t *testing.T) {
		events, err := cp.ReadAudit()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(events, func(e lab.AuditEvent) bool {
			return e.Write() && e.User.Username == "kubernetes-admin" && e.Object.Resource == "pods" && e.Object.Name == "p" && e.Response.Code == 201
		}) {
			t.Errorf("no record of the pod's creation in %d events", len(events))
		}
	})
}

func ptr[T any](v T) *T { return &v }

func TestAControlPlaneListensEverywhereUnderFurtherNamesAndStopsAtOnce(t *testing.T) {
	cp := start(t, lab.Options{ListenIP: "0.0.0.0", AdvertiseAddress: "127.0.0.2", ServerNames: []string{"api.lab.example"}})
	if !strings.HasPrefix(cp.Endpoint, "https://127.0.0.2:") {
		t.Errorf("endpoint %s", cp.Endpoint)
	}
	config := cp.RESTConfig()
	config.ServerName = "api.lab.example"
	if _, err := clientFor(t, config).Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}

	watch, err := clientFor(t, cp.RESTConfig()).CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	begin := time.Now()
	cp.Stop()
	// Measured: 0.02 to 0.1 s. A graceful kube-apiserver would wait 20 s for the watch.
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if _, err := os.Stat(cp.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", cp.Dir, err)
	}
	cp.Stop() // a second time is harmless
}

func TestAComponentThatCannotStartShowsItsLog(t *testing.T) {
	_, err := lab.StartControlPlane(t.Context(), lab.Options{APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") || !strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("want the flag that kube-apiserver complains of, got: %v", err)
	}
}

// The parent-death signal (or the watcher, elsewhere) is what keeps a killed `go test` from leaving servers behind.
func TestChildrenDieWithTheirParent(t *testing.T) {
	if os.Getenv("LAB_TEST_PARENT") != "" {
		cp, err := lab.StartControlPlane(context.Background(), lab.Options{Dir: os.Getenv("LAB_TEST_PARENT")})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(cp.Dir, "endpoint.tmp"), []byte(cp.RESTConfig().Host), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(cp.Dir, "endpoint.tmp"), filepath.Join(cp.Dir, "endpoint")); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir := t.TempDir()
	parent := exec.Command(os.Args[0], "-test.run=^TestChildrenDieWithTheirParent$", "-test.v")
	parent.Env = append(os.Environ(), "LAB_TEST_PARENT="+dir)
	output := &bytes.Buffer{}
	parent.Stdout, parent.Stderr = output, output
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- parent.Wait() }()
	var endpoint []byte
	eventually(t, func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the parent ended: %v\n%s", err, output)
		default:
		}
		var err error
		endpoint, err = os.ReadFile(filepath.Join(dir, "endpoint"))
		return err == nil
	})
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	eventually(t, func() bool {
		_, err := clientFor(t, &rest.Config{Host: string(endpoint), TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: time.Second}).Discovery().ServerVersion()
		return err != nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err)
	})
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !check() {
		select {
		case <-deadline.C:
			t.Fatal("waited two minutes in vain")
		case <-tick.C:
		}
	}
}
