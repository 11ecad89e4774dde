// Package instancetype turns machines into karpenter instance types. It decides what one SSHNodeClass offers, under which names,
// at what price, and how much of each machine pods may use. It is pure: it writes nothing and reads no clock and no cluster.
//
// One host shape (host class, architecture, capacity) is one instance type. Karpenter rolls a node when the list lacks the node's
// type, so the list changes only with the set of hosts: whether a host can be claimed changes nothing but Offering.Available, and
// a name that a claim was launched as stays listed until that claim ends.
package instancetype
