package operator

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// text is safe for concurrent use.
type text struct {
	mu sync.Mutex
	bytes.Buffer
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Buffer.Write(p)
}

// An instance that is installed before its CRDs says which are missing, is alive but not ready, and goes on by itself when they come.
func TestAnInstanceWaitsForItsKinds(t *testing.T) {
	config := apiserver.Start(t)
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	address := free(t)
	out, ended := &text{}, make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	go func() { ended <- awaitKinds(ctx, api, address, wait.Backoff{Duration: 100 * time.Millisecond}, out) }()

	ready := ask(ctx, t, "http://"+address+"/readyz", http.StatusServiceUnavailable)
	for _, name := range []string{"nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "sshhosts.karpenter.dklesev.github.io", "karpenter-provider-ssh-crd"} {
		if !strings.Contains(ready, name) {
			t.Errorf("it does not name %s: %s", name, ready)
		}
	}
	ask(ctx, t, "http://"+address+"/healthz", http.StatusOK)

	crds, err := lab.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, some := range [][]*apiextensionsv1.CustomResourceDefinition{crds[:1], crds[1:]} {
		if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: some}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"waiting for CRDs", "has all CRDs now"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in %s", line, out.String())
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Errorf("core could not listen for probes: %v", err)
	} else {
		listener.Close()
	}
	out.Reset()
	if err := awaitKinds(ctx, api, address, looks, out); err != nil || out.Len() > 0 {
		t.Errorf("with all kinds there: %v, %q", err, out.String())
	}
}

// Being told to end ends the wait.
func TestWaitingForKindsEndsWithTheProcess(t *testing.T) {
	config := apiserver.Start(t)
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	address, ended := free(t), make(chan error, 1)
	go func() { ended <- awaitKinds(ctx, api, address, looks, io.Discard) }()
	ask(ctx, t, "http://"+address+"/healthz", http.StatusOK)
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it claims to have found the kinds")
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits on")
	}
}

// free is an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// ask polls until somebody answers.
func ask(ctx context.Context, t *testing.T, url string, want int) (body string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", url, response.StatusCode, want)
		}
		body = string(content)
		return true, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}
