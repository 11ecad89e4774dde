// Package chaos runs several instances in one process, in virtual time, against an API server and machines in memory, while a user and
// the weather do their worst, and checks the safety rules S1 to S6 on every write and every SSH session, and L1 and L3 after the faults
// have healed.
//
// Real are: ownership (class set, filtered watches, hand-over, guarded client), the inventory, the cloud provider, and the controllers
// join, probe and nodeclass. Stand-ins are: the API server (api_test.go), karpenter core (core_test.go), the machines with the remote half
// of a phase (machine_test.go), the kubelets, and the informers' caches, which lag as real ones do.
//
// Each seed is one history. What happens by chance is drawn from the seed and from what the draw is for, never from a shared stream, so
// that a seed replays: but for what happens in the same nanosecond of virtual time, where the Go scheduler decides. See TestSeeds for the environment variables.
package chaos
