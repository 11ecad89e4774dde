package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate/csr"
)

// CredentialsFile below StateDir is the kubeconfig that the TLS bootstrap produced.
const CredentialsFile = "kubelet.kubeconfig"

// credentials are those of an earlier run, or new ones by TLS bootstrap.
func (o *Options) credentials(ctx context.Context) (kubernetes.Interface, error) {
	path := filepath.Join(o.StateDir, CredentialsFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		err := retry(ctx, o.Log, "TLS bootstrap", func() error { return o.bootstrap(ctx, path) })
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	return clientFrom(path)
}

func clientFrom(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // one kubelet has little to say; a limiter would cost a goroutine's wake-ups for nothing
	config.UserAgent = "kubelet-simulated"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(config)
}

// bootstrap asks for a certificate with the bootstrap token and waits until somebody has approved and signed it.
func (o *Options) bootstrap(ctx context.Context, credentials string) error {
	// Read at every attempt: a script may have replaced the token since.
	bootstrap, err := clientcmd.LoadFromFile(o.BootstrapKubeconfig)
	if err != nil {
		return err
	}
	config, err := clientcmd.NewDefaultClientConfig(*bootstrap, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("%s: %w", o.BootstrapKubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + o.Config.NodeName, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return err
	}
	requestPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, requestPEM, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	certificate, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: %w", name, err)
	}
	o.Log("certificate request %s is signed", name)
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	return writeCredentials(credentials, config, certificate, keyPEM)
}

func writeCredentials(path string, cluster *rest.Config, certificate, key []byte) error {
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: cluster.Host, CertificateAuthorityData: cluster.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"kubelet": {ClientCertificateData: certificate, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{"kubelet": {Cluster: "cluster", AuthInfo: "kubelet"}},
		CurrentContext: "kubelet",
	})
	if err != nil {
		return err
	}
	return writeFile(path, content)
}
