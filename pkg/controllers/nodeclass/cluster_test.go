package nodeclass

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
)

// authority is a certificate, for what checks that there is one.
var authority = func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: noon.AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}()

func kubeconfig() string {
	return `apiVersion: v1
kind: Config
clusters:
- name: ""
  cluster:
    server: https://192.0.2.1:6443
    certificate-authority-data: ` + base64.StdEncoding.EncodeToString([]byte(authority)) + "\n"
}
