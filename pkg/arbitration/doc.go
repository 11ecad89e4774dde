// Package arbitration decides which pending pods an instance's karpenter core is shown. Every instance sees every pending pod; without
// this, each would report the others' pods as unschedulable and wake up for them again and again.
//
// It hides a pod only when the pod fits none of the instance's NodePools and does fit somebody else's. When in doubt a pod fits: a pod
// that is shown to one instance too many costs a message, one that is shown to none gets no node.
//
// The package writes nothing.
package arbitration
