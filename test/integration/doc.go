// Package integration runs real controller processes against a real control plane and simulated machines: real SSH, real bash,
// real TLS bootstrap, and Nodes registered with what the kubelet is given. It shows what unit tests cannot: what core does with the
// provider's answers, what many hosts at once cost, and that several instances, each an OS process with an API user of its own, keep out
// of each other's way. The audit log of the whole run is judged at its end: no instance writes a foreign object (S6).
package integration
