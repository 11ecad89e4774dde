package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// RESTConfig is cluster-admin's, without a client-side rate limit. The caller may change it.
func (cp *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(cp.admin) }

// CA is the PEM certificate that signs kube-apiserver's.
func (cp *ControlPlane) CA() []byte { return cp.pki.ca.certPEM }

// ClientConfig is a user's, by client certificate.
func (cp *ControlPlane) ClientConfig(user string, groups ...string) (*rest.Config, error) {
	cert, key, err := cp.pki.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            cp.localURL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.CA(), CertData: cert, KeyData: key},
	}, nil
}

// AdminKubeconfig writes a kubeconfig for cluster-admin and returns its path.
func (cp *ControlPlane) AdminKubeconfig() (string, error) {
	return cp.Kubeconfig("kubernetes-admin", "system:masters")
}

// Kubeconfig writes a kubeconfig for a user with groups and returns its path. Every call makes a new file.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	config, err := cp.ClientConfig(user, groups...)
	if err != nil {
		return "", err
	}
	return cp.writeKubeconfig(user, &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData})
}

// ServiceAccountKubeconfig writes a kubeconfig with a token, good for a day, of a ServiceAccount that exists.
func (cp *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	client, err := kubernetes.NewForConfig(cp.admin)
	if err != nil {
		return "", err
	}
	day := int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return cp.writeKubeconfig(name, &clientcmdapi.AuthInfo{Token: token.Status.Token})
}

func (cp *ControlPlane) writeKubeconfig(user string, auth *clientcmdapi.AuthInfo) (string, error) {
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: cp.localURL(), CertificateAuthorityData: cp.CA()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: auth},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: user}},
		CurrentContext: "lab",
	})
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(cp.Dir, "kubeconfig-*.yaml")
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return "", err
	}
	return filepath.Abs(file.Name())
}
