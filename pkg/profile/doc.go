// Package profile turns an SSHJoinProfile into what runs on a machine. It decides what each phase's script is told
// (environment and template fields), which labels and taints the kubelet may register with, what must be hidden in the script's
// output, and which version of the scripts belongs to a machine that has joined. All of that is pure. The one thing it writes are
// ControllerRevisions in the pool namespace, which keep the scripts of every version that is installed on a machine.
package profile
