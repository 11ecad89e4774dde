package integration

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// gate stands between the controller and the API server. It can be armed to kill the controller after one of its writes: the API server
// has taken the write, and the controller never hears of it.
type gate struct {
	// Kubeconfig that leads through the gate.
	Kubeconfig string

	// hold is called with each request before it goes on, and may block it.
	hold atomic.Pointer[func(*http.Request)]

	// received counts the bytes of answers, watches among them, by resource.
	received sync.Map // of *atomic.Int64

	mu     sync.Mutex
	armed  bool
	left   int
	kill   func()
	writes []string
}

// newGate opens a gate to the API server for a user.
func newGate(t *testing.T, config *rest.Config) *gate {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			if hold := g.hold.Load(); hold != nil {
				(*hold)(r.Out)
			}
		},
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(r *http.Response) error {
			if g.fatal(r) {
				return http.ErrAbortHandler
			}
			if r.StatusCode != http.StatusSwitchingProtocols {
				counter, _ := g.received.LoadOrStore(resourceOf(r.Request.URL.Path), &atomic.Int64{})
				r.Body = &counted{ReadCloser: r.Body, bytes: counter.(*atomic.Int64)}
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as a connection that breaks
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // loopback, in a test
	if err != nil {
		t.Fatal(err)
	}
	served := &http.Server{Handler: proxy} //nolint:gosec // loopback, in a test
	go func() { _ = served.Serve(listener) }()
	t.Cleanup(func() { _ = served.Close() })
	g.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["gate"] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	kubeconfig.Contexts["gate"] = &clientcmdapi.Context{Cluster: "gate"}
	kubeconfig.CurrentContext = "gate"
	raw, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(g.Kubeconfig, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// arm makes the gate call kill after the nth write from now. Events and leases do not count: nothing is decided on them.
func (g *gate) arm(n int, kill func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.left, g.kill, g.writes = true, n, kill, nil
}

// disarm tells whether the gate killed, and which writes it saw since it was armed.
func (g *gate) disarm() (killed bool, writes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	killed = g.armed && g.left <= 0
	g.armed = false
	return killed, g.writes
}

func (g *gate) fatal(r *http.Response) bool {
	path := r.Request.URL.Path
	if r.Request.Method == http.MethodGet || r.StatusCode >= 300 || strings.Contains(path, "/events") || strings.Contains(path, "/leases") || strings.Contains(path, "reviews") {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.armed || g.left <= 0 {
		return g.armed // after the fatal one nothing comes back any more
	}
	_, short, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/"), "/")
	g.writes = append(g.writes, r.Request.Method+" "+short)
	if g.left--; g.left > 0 {
		return false
	}
	g.kill()
	return true
}

// counted is a body whose bytes are counted as they are read.
type counted struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// resourceOf is the resource in an API path: /api/v1/nodes/x and /apis/karpenter.sh/v1/nodeclaims/x/status are of nodes and nodeclaims.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2
	if parts[0] == "apis" {
		skip = 3
	}
	if len(parts) > skip+2 && parts[skip] == "namespaces" {
		skip += 2
	}
	if len(parts) <= skip {
		return "discovery"
	}
	return parts[skip]
}
