package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	serviceCIDR    = "10.96.0.0/16"
	firstServiceIP = "10.96.0.1"
	pollInterval   = 50 * time.Millisecond
)

func (cp *ControlPlane) startEtcd() (*Process, error) {
	urls := make([]string, 2)
	for i := range urls {
		port, err := cp.ports.Take("127.0.0.1")
		if err != nil {
			return nil, err
		}
		urls[i] = "http://127.0.0.1:" + strconv.Itoa(port)
	}
	client, peer := urls[0], urls[1]
	cp.etcdURL = client
	return cp.run("etcd", []string{
		"--name=lab",
		"--data-dir=" + filepath.Join(cp.Dir, "etcd"),
		"--unsafe-no-fsync", // the data lives as long as the lab
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=lab=" + peer,
		"--log-level=warn",
	})
}

func (cp *ControlPlane) startAPIServer() (*Process, error) {
	args := []string{
		"--etcd-servers=" + cp.etcdURL,
		"--bind-address=" + cp.opts.ListenIP,
		"--secure-port=" + strconv.Itoa(cp.port),
		"--advertise-address=" + cp.opts.AdvertiseAddress,
		"--tls-cert-file=" + cp.pki.file("apiserver.crt"), "--tls-private-key-file=" + cp.pki.file("apiserver.key"),
		"--client-ca-file=" + cp.pki.file("ca.crt"),
		"--requestheader-client-ca-file=" + cp.pki.file("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-key-file=" + cp.pki.file("sa.pub"),
		"--service-account-signing-key-file=" + cp.pki.file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth",
		"--kubelet-client-certificate=" + cp.pki.file("apiserver-kubelet.crt"),
		"--kubelet-client-key=" + cp.pki.file("apiserver-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged",
		"--profiling=false",
	}
	if net.ParseIP(cp.opts.AdvertiseAddress).IsLoopback() {
		// Endpoints must not be loopback addresses: the reconciler would fail for ever.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if cp.opts.Audit {
		policy := filepath.Join(cp.Dir, "audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+cp.AuditLog(), "--audit-log-mode=blocking")
	}
	return cp.run("kube-apiserver", append(args, cp.opts.APIServerArgs...))
}

func (cp *ControlPlane) startControllerManager() (*Process, error) {
	// One client in system:masters, not one ServiceAccount per controller: half the start-up time, and nothing here tests
	// Kubernetes' own permissions.
	kubeconfig, err := cp.Kubeconfig("system:kube-controller-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	return cp.run("kube-controller-manager", append([]string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--root-ca-file=" + cp.pki.file("ca.crt"),
		"--cluster-signing-cert-file=" + cp.pki.file("ca.crt"), "--cluster-signing-key-file=" + cp.pki.file("ca.key"),
		"--service-account-private-key-file=" + cp.pki.file("sa.key"),
		"--allocate-node-cidrs=false",
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--node-monitor-period=" + cp.opts.NodeMonitorPeriod.String(),
		"--node-monitor-grace-period=" + cp.opts.NodeMonitorGracePeriod.String(),
		// The default of 20 a second makes a burst of joins wait for signatures and everything else wait for those.
		"--kube-api-qps=300", "--kube-api-burst=600",
		"--profiling=false",
	}, cp.opts.ControllerManagerArgs...))
}

func (cp *ControlPlane) startScheduler() (*Process, error) {
	kubeconfig, err := cp.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	return cp.run("kube-scheduler", append([]string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=300", "--kube-api-burst=600",
		"--profiling=false",
	}, cp.opts.SchedulerArgs...))
}

// waitReady polls readyz until it answers 200.
func (cp *ControlPlane) waitReady(ctx context.Context, apiserver, etcd *Process) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cp.pki.ca.certPEM)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	url := cp.localURL() + "/readyz"
	return poll(ctx, apiserver, func() error {
		select {
		case <-etcd.done:
			return fatal{etcd.failure(fmt.Errorf("ended: %w", etcd.err))}
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fatal{err}
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz answers %s", response.Status)
		}
		return nil
	})
}

// waitDefaultServiceAccount: no pod can be created before.
func (cp *ControlPlane) waitDefaultServiceAccount(ctx context.Context, manager *Process) error {
	client, err := kubernetes.NewForConfig(cp.admin)
	if err != nil {
		return err
	}
	return poll(ctx, manager, func() error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fatal{err}
		}
		return err
	})
}

// localURL is kube-apiserver as this process reaches it.
func (cp *ControlPlane) localURL() string {
	ip := cp.opts.ListenIP
	if net.ParseIP(ip).IsUnspecified() {
		ip = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(ip, strconv.Itoa(cp.port))
}

// fatal ends a poll at once.
type fatal struct{ error }

// poll calls check until it succeeds, the process that it depends on ends, or patience does.
func poll(ctx context.Context, p *Process, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := check()
		var final fatal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final):
			return final.error
		}
		select {
		case <-ctx.Done():
			return p.failure(fmt.Errorf("not ready: %w: %w", context.Cause(ctx), err))
		case <-p.done:
			return p.failure(fmt.Errorf("ended: %w", errors.Join(p.err, err)))
		case <-ticker.C:
		}
	}
}
