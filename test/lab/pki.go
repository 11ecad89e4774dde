package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates. Keys are ECDSA P-256 throughout: making them costs nothing.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	certPEM []byte
	keyPEM  []byte
}

const validity = 365 * 24 * time.Hour

func newAuthority(name string) (*authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	cert, certPEM, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, certPEM: certPEM, keyPEM: keyPEM}, nil
}

// client makes a client certificate: the user is the common name, the groups are the organizations.
func (a *authority) client(user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server makes a serving certificate for names that may be IP addresses or DNS names.
func (a *authority) server(name string, names []string) (certPEM, keyPEM []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	_, certPEM, err = sign(template, a.cert, key, a.key)
	return certPEM, keyPEM, err
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = serial
	// Machines with a clock that is slow must not refuse a certificate of a minute ago.
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(validity)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

// pki is everything that the components of one control plane read from files.
type pki struct {
	dir string
	ca  *authority
}

// newPKI writes ca, front-proxy-ca, apiserver, apiserver-kubelet, sa (.crt and .key each; sa.pub) into dir.
func newPKI(dir string, serverNames []string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &pki{dir: dir}
	var err error
	if p.ca, err = newAuthority("kubernetes"); err != nil {
		return nil, err
	}
	frontProxy, err := newAuthority("front-proxy")
	if err != nil {
		return nil, err
	}
	serverCert, serverKey, err := p.ca.server("kube-apiserver", serverNames)
	if err != nil {
		return nil, err
	}
	kubeletCert, kubeletKey, err := p.ca.client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return nil, err
	}
	saKey, saKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	saPublic, err := x509.MarshalPKIXPublicKey(&saKey.PublicKey)
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{
		"ca.crt": p.ca.certPEM, "ca.key": p.ca.keyPEM,
		"front-proxy-ca.crt": frontProxy.certPEM,
		"apiserver.crt":      serverCert, "apiserver.key": serverKey,
		"apiserver-kubelet.crt": kubeletCert, "apiserver-kubelet.key": kubeletKey,
		"sa.key": saKeyPEM, "sa.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: saPublic}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("write PKI: %w", err)
		}
	}
	return p, nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }
