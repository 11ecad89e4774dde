package arbitration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Verdict on a pending pod, for one instance.
type Verdict int

const (
	// Shown means that the instance's core deals with it.
	Shown Verdict = iota
	// Hidden means that it is somebody else's affair.
	Hidden
	// Late means hidden, unless it stays pending. From what the pools say, pools of this instance and of others would take it; this
	// instance's hosts cannot, and what the others' hosts are is not known here. If theirs cannot either, every instance hides it, and
	// nobody would tell why it stays pending.
	Late
)

// Decide says whether an instance's core is shown a pending pod. Of pools it expects those of every owner, in core's order.
//
// All instances decide on their own, from the same NodePools and classes. Therefore whatever makes one step back must be known to the
// one it steps back for.
func Decide(me string, pools []Pool, pod *corev1.Pod) Verdict {
	w := wishOf(pod)
	if slices.ContainsFunc(pools, func(p Pool) bool { return p.owner == me && p.fits(w, p.offered) }) {
		return Shown
	}
	own, others := false, false
	for _, p := range pools {
		switch {
		case !p.fits(w, p.declared):
		case p.owner == OtherProvider:
			return Hidden // its karpenter sees every pod, and says why it cannot take one
		case p.owner == me:
			own = true
		case !own:
			return Hidden // it comes before any pool of ours, to its owner as to us
		default:
			others = true
		}
	}
	switch {
	case !own:
		return explainer(me, pools)
	case others:
		return Late
	}
	return Shown // nobody else could
}

// explainer shows a pod that fits nobody to exactly one instance, so that its owner is told once what is wrong with it: the one whose
// pool core would try first. Without any pool of an instance there is nothing to choose by.
func explainer(me string, pools []Pool) Verdict {
	for _, p := range pools {
		if p.owner == OtherProvider {
			continue
		}
		if p.owner == me {
			return Shown
		}
		return Hidden
	}
	return Shown
}
