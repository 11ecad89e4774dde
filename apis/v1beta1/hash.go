package v1beta1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// NodeClassHashVersion tells JoinHash's recipe; drift abstains between NodeClaims and classes of different versions.
const NodeClassHashVersion = "v1"

// JoinHash is a digest of what a class passes to a machine at join: 16 hex characters. Nodes whose class has another hash drift.
// Selector, price, reservations, pod limit, gates, profile, zone and instance are left out: they change nothing on the machine.
func (c *SSHNodeClass) JoinHash() string {
	raw, err := json.Marshal(struct {
		Vars             map[string]string `json:"vars,omitempty"`
		JoinSecretRef    *SecretReference  `json:"joinSecretRef,omitempty"`
		ProviderIDSource ProviderIDSource  `json:"providerIDSource,omitempty"`
		Cluster          *ClusterSpec      `json:"cluster,omitempty"`
	}{c.Spec.Vars, c.Spec.JoinSecretRef, c.Spec.ProviderIDSource, c.Spec.Cluster})
	if err != nil {
		panic("join hash: strings and bytes always marshal: " + err.Error())
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}
