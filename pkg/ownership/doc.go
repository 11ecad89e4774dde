// Package ownership decides what belongs to this instance and shows karpenter core nothing else.
//
// The rule: SSHNodeClass.spec.instance names the owner of a class; NodePools and NodeClaims belong to the owner of the class they
// name; a Node belongs to the owner of its class label and must have a provider ID of the same owner. An unknown class is
// somebody else's.
//
// Core cannot be told this rule: it takes every object whose class has the right group and kind for its own. So the package
// stands between core and the API server:
//
//   - Classes is the live set of own class names, from a watch that the server filters.
//   - The views (view.go) are pure functions of a class set and an object.
//   - The filtered stream (stream.go, pump.go, handover.go) is the ListerWatcher of core's informers, seen through a view. When
//     the class set changes it moves core from the old view to the new one at one defined position of the watch.
//   - Follow moves the kinds one after the other, so that core never sees an own Node whose NodeClaim is still hidden.
//   - The guarded client refuses writes on what is not ours, whatever a cache said.
//   - Seam puts all of this into the manager that core makes, and asserts that it is there.
//
// The package writes nothing of its own to the cluster.
package ownership
