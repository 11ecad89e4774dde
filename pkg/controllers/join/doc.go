// Package join makes claimed machines members of the cluster and makes them leave again. It decides what happens to a host
// next (decide.go, a pure function), runs that beside the reconcile loop (runner.go), and writes, through the inventory, what
// a successor of this process needs to go on: before every step that changes a machine, the write that says so.
//
// It writes SSHHost.status and finalizers (through pkg/host), bootstrap tokens, ControllerRevisions, the finalizer of profiles (through
// pkg/profile), and deletes NodeClaims
// whose join failed and Nodes whose machine has left. Only this package and pkg/controllers/probe open connections.
package join
