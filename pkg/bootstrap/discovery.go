package bootstrap

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// ReasonClusterUnavailable is the reason when the API server did not answer; it is tried again.
const ReasonClusterUnavailable = "ClusterUnavailable"

// refresh is how long what cluster-info said is believed. Joins come in bursts, and the CA changes once in years.
const refresh = time.Minute

// Cluster is what a machine must know to find the API server and to believe it.
type Cluster struct {
	// Endpoint is https://host[:port].
	Endpoint string
	// CA is a PEM bundle.
	CA []byte
}

// Discovery finds the cluster. It may be used by many at once.
type Discovery struct {
	live  client.Reader
	clock clock.PassiveClock

	mu     sync.Mutex
	cached Cluster
	until  time.Time
	// expires is when the CA of each class's cluster does.
	expires map[string]time.Time
}

// NewDiscovery reads ConfigMap kube-public/cluster-info through live, which must not be a cache: a cached reader would watch all
// ConfigMaps of the cluster for the sake of one.
func NewDiscovery(live client.Reader) *Discovery {
	return &Discovery{live: live, clock: clock.RealClock{}, expires: map[string]time.Time{}}
}

// Forget makes the next Resolve read cluster-info anew. Call it when it changed, or when a machine could not reach or believe the API
// server; otherwise a change is seen within a minute.
func (d *Discovery) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = time.Time{}
}

// Resolve is the cluster as machines of a class are told: what the class says, and for the rest what ConfigMap
// kube-public/cluster-info says. Faults: Configuration/ClusterUnknown, Cluster/ClusterUnavailable.
func (d *Discovery) Resolve(ctx context.Context, class *v1beta1.SSHNodeClass) (Cluster, error) {
	cluster, err := d.resolve(ctx, class)
	if fault.Is(err, fault.Cluster) {
		return cluster, err // nothing was learned
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if expires := lastExpiry(cluster.CA); err == nil && !expires.IsZero() {
		d.expires[class.Name] = expires
	} else {
		delete(d.expires, class.Name)
	}
	return cluster, err
}

func (d *Discovery) resolve(ctx context.Context, class *v1beta1.SSHNodeClass) (Cluster, error) {
	override := class.Spec.Cluster
	if override == nil {
		cluster, err := d.clusterInfo(ctx)
		if err != nil {
			return Cluster{}, unresolved(err, class, "spec.cluster.endpoint and spec.cluster.caBundle")
		}
		return cluster, nil
	}
	cluster := Cluster{Endpoint: override.Endpoint, CA: override.CABundle}
	if len(cluster.CA) == 0 {
		published, err := d.clusterInfo(ctx)
		if err != nil {
			return Cluster{}, unresolved(err, class, "spec.cluster.caBundle")
		}
		cluster.CA = published.CA
	}
	if err := cluster.check(); err != nil {
		return Cluster{}, fault.New(fault.Configuration, v1beta1.ReasonClusterUnknown, err,
			"SSHNodeClass %s: spec.cluster is wrong; give endpoint as https://host:port and caBundle as base64 of a PEM bundle", class.Name)
	}
	return cluster, nil
}

func unresolved(err error, class *v1beta1.SSHNodeClass, remedy string) error {
	if fault.Is(err, fault.Cluster) {
		return err
	}
	return fault.New(fault.Configuration, v1beta1.ReasonClusterUnknown, err,
		"SSHNodeClass %s: set %s, or mend ConfigMap kube-public/cluster-info", class.Name, remedy)
}

// clusterInfo reads, at most once a minute, what kubeadm and its like publish for machines that want to join.
func (d *Discovery) clusterInfo(ctx context.Context) (Cluster, error) {
	d.mu.Lock()
	defer d.mu.Unlock() // held while reading: a burst of joins shall read once
	if d.clock.Now().Before(d.until) {
		return d.cached, nil
	}
	var published corev1.ConfigMap
	key := client.ObjectKey{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}
	err := d.live.Get(ctx, key, &published)
	switch {
	case apierrors.IsNotFound(err):
		return Cluster{}, configuration(errors.New("ConfigMap kube-public/cluster-info does not exist"))
	case apierrors.IsForbidden(err):
		return Cluster{}, configuration(fmt.Errorf("the controller may not get ConfigMap kube-public/cluster-info: %w", err))
	case err != nil:
		return Cluster{}, fault.New(fault.Cluster, ReasonClusterUnavailable, err, "reading ConfigMap kube-public/cluster-info failed; it is tried again")
	}
	cluster, err := parse(published.Data[bootstrapapi.KubeConfigKey])
	if err != nil {
		return Cluster{}, configuration(fmt.Errorf("ConfigMap kube-public/cluster-info, key %s: %w", bootstrapapi.KubeConfigKey, err))
	}
	d.cached, d.until = cluster, d.clock.Now().Add(refresh)
	return cluster, nil
}

func configuration(err error) error {
	return fault.New(fault.Configuration, v1beta1.ReasonClusterUnknown, err, "the cluster's address is not published")
}

// parse takes the cluster out of a published kubeconfig: that of the current context, else the only one. Kubeadm publishes one
// cluster without a name and no context.
func parse(kubeconfig string) (Cluster, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return Cluster{}, fmt.Errorf("no kubeconfig: %w", err)
	}
	found, err := choose(config)
	if err != nil {
		return Cluster{}, err
	}
	cluster := Cluster{Endpoint: found.Server, CA: found.CertificateAuthorityData}
	return cluster, cluster.check()
}

func choose(config *clientcmdapi.Config) (*clientcmdapi.Cluster, error) {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		if cluster := config.Clusters[current.Cluster]; cluster != nil {
			return cluster, nil
		}
	}
	if len(config.Clusters) != 1 {
		return nil, fmt.Errorf("it names %d clusters and no current context; one is expected", len(config.Clusters))
	}
	for _, cluster := range config.Clusters {
		return cluster, nil
	}
	return nil, nil
}

// check refuses what no kubelet could use, so that a typing error is the class's fault and not that of every machine.
func (c Cluster) check() error {
	endpoint, err := url.Parse(c.Endpoint)
	if err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	if endpoint.Scheme != "https" || endpoint.Hostname() == "" {
		return fmt.Errorf("endpoint %q is not of the form https://host:port", c.Endpoint)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(c.CA) {
		return errors.New("the CA bundle holds no PEM certificate")
	}
	return nil
}

// ClusterUID is the UID of namespace kube-system: it tells one cluster from another. Fault: Cluster/ClusterUnavailable.
func ClusterUID(ctx context.Context, live client.Reader) (string, error) {
	var namespace corev1.Namespace
	if err := live.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &namespace); err != nil {
		return "", fault.New(fault.Cluster, ReasonClusterUnavailable, err, "reading namespace %s, whose UID tells this cluster from others, failed", metav1.NamespaceSystem)
	}
	return string(namespace.UID), nil
}
