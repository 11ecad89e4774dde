package chart_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/chart"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// server is the API server that the tests of this package share, each with namespaces of its own.
type server struct {
	api        client.Client
	config     *rest.Config
	kubeconfig string
	stop       func() error
}

var (
	startOnce = sync.OnceValues(start)
	started   bool
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if started {
		if s, err := startOnce(); err == nil {
			if err := s.stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
	}
	os.Exit(code)
}

func apiServer(t *testing.T) server {
	t.Helper()
	started = true
	s, err := startOnce()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start() (server, error) {
	environment, err := apiserver.Run()
	if err != nil {
		return server{}, err
	}
	dir, err := os.MkdirTemp("", "kpssh-chart-")
	if err != nil {
		return server{}, errors.Join(err, environment.Stop())
	}
	s := server{config: environment.Config, kubeconfig: filepath.Join(dir, "kubeconfig"), stop: func() error { return errors.Join(environment.Stop(), os.RemoveAll(dir)) }}
	scheme := runtime.NewScheme()
	err = errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), os.WriteFile(s.kubeconfig, environment.KubeConfig, 0o600))
	if err == nil {
		s.api, err = client.New(s.config, client.Options{Scheme: scheme})
	}
	if err != nil {
		return server{}, errors.Join(err, s.stop())
	}
	return s, nil
}

// helm runs helm against the API server and returns all that it says. In arguments, @main and @crd stand for the charts.
func (s server) helm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	executable, err := chart.Helm()
	if err != nil {
		t.Fatal(err)
	}
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	charts := strings.NewReplacer("@main", filepath.Join(root, "charts", "karpenter-provider-ssh"), "@crd", filepath.Join(root, "charts", "karpenter-provider-ssh-crd"))
	for i := range arguments {
		arguments[i] = charts.Replace(arguments[i])
	}
	cmd := exec.CommandContext(t.Context(), executable, arguments...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func (s server) mustHelm(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := s.helm(t, arguments...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return output
}
