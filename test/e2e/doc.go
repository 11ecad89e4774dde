// Package e2e proves the provider on real machines: systemd, OpenSSH, containerd and kubelet, a real control plane, the controller
// as a process of its own in its own network, under the permissions of the Helm chart, and the shipped profile to the letter.
//
// Two more instances live in segments that do not reach each other, one inside each, with a machine of its own.
//
// Run it with `make e2e` (root, Linux). Each machine belongs to one scenario or one sequence of them, by its host class; control
// plane, controller and machines are shared by all. KPSSH_E2E_OUTAGE=5m is for how long an instance is dead; a minute if unset.
package e2e
