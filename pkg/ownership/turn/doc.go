// Package turn decides which instance may begin a voluntary disruption now: one at a time in the whole cluster. Two instances that
// consolidate at the same moment each move their pods onto the other's node, and both nodes go.
//
// One Lease, LeaseName, says whose turn it is. Its transitions count the turns, so that a turn is told from every other one by
// (holder, transitions), also from an earlier one of the same instance. What keeps two instances apart is not the Lease's clock:
//
//   - A decision counts only if the whole of it was made within one turn. Core's loop runs, and what it decided before the turn was
//     taken is refused and decided again.
//   - A turn begins only once core's own state shows every disruption taint that the API server shows. So whoever comes next has
//     the marks of whoever came before in its reckoning.
//   - Core first taints a Node, then marks its NodeClaim, and only then deletes anything. The turn is read again, from the API
//     server, before the second write: if it is still the same one, the taint was written within it. If not, the disruption ends
//     there, and core takes the taint away.
//
// Time only decides how long a holder that is gone keeps others waiting: each judges by its own clock how long the Lease has not
// changed. Whoever waits is in a queue on the Lease, and a holder that sees a queue gives the turn away after one loop.
//
// Termination, expiration and repair need no turn: they count on nobody's node.
//
// The package writes that one Lease.
package turn
