// Package integration runs one real controller process against a real control plane and simulated machines: real SSH, real bash,
// real TLS bootstrap, and Nodes registered with what the kubelet is given. It shows what unit tests cannot: what core does with the
// provider's answers, and what many hosts at once cost.
package integration
