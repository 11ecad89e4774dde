// Package equivalence shows that any number of instances do together what one would do that can reach every host: for random NodePools,
// classes, weights, hosts and pods they create the same NodeClaims, up to names. Karpenter's provisioner and scheduler are the real
// ones, and so are the cloud provider, the inventory, the views of pkg/ownership and the filter of pkg/arbitration; the API server is
// in memory.
package equivalence
