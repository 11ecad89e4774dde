package integration

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// A9: a class cannot vanish under live claims, and says which it waits for; nobody ends it in its owner's place.
func (p *pair) classDeletion() {
	began := time.Now()
	s, name := p.a, "nine"
	p.discard(name)
	class := s.class(name)
	pool := s.pool(name)
	s.create(class)
	s.create(pool)
	s.pod("nine", podIn(name))
	s.running(1, 2*time.Minute)
	claim := s.claimsOf(name)[0]
	s.remove(class)
	s.eventually(30*time.Second, "the class names the claim it waits for", func() (bool, string) {
		ready := readyOf(s, name)
		return ready.Reason == v1beta1.ReasonDeleting && strings.Contains(ready.Message, claim.Name), fmt.Sprint(ready)
	})
	s.deletePods()
	s.remove(&claim)
	p.goneClass(s, name, "its claim is gone")
	if left := s.claimsOf(name); len(left) > 0 {
		p.Errorf("the class is gone and %d claims are left", len(left))
	}

	p.held(s, s.class(name))
	s.remove(s.class(name))
	p.goneClass(s, name, "it has no claims")

	p.held(s, s.class(name))
	s.kill()
	s.remove(s.class(name))
	// What seg-b does to a class of its own that was deleted later, it would have done to this one.
	p.discard("nine-b")
	p.held(p.b, p.b.class("nine-b"))
	p.b.remove(p.b.class("nine-b"))
	p.goneClass(p.b, "nine-b", "it has no claims")
	if err := s.api.Get(p.Context(), keyIn("", name), class); err != nil || len(class.Finalizers) != 1 {
		p.Errorf("the class went without its owner: %v, finalizers %v", err, class.Finalizers)
	}
	s.start("")
	p.goneClass(s, name, "its owner is back")
	s.remove(pool)
	p.noForeignWrites(began)
	p.settle()
}

// held makes a class and awaits its owner's finalizer.
func (p *pair) held(s *scenario, class *v1beta1.SSHNodeClass) {
	p.Helper()
	s.create(class)
	s.eventually(30*time.Second, "the class is held", func() (bool, string) {
		err := s.api.Get(p.Context(), keyIn("", class.Name), class)
		return err == nil && len(class.Finalizers) == 1, fmt.Sprint(err, class.Finalizers)
	})
}

func (p *pair) goneClass(s *scenario, name, why string) {
	p.Helper()
	s.eventually(time.Minute, fmt.Sprintf("class %s is gone: %s", name, why), func() (bool, string) {
		err := s.api.Get(p.Context(), keyIn("", name), &v1beta1.SSHNodeClass{})
		return err != nil && client.IgnoreNotFound(err) == nil, fmt.Sprint(readyOf(s, name))
	})
}

// discard removes a pool and a class when the subtest ends, however it does.
func (p *pair) discard(name string) { p.Cleanup(func() { p.a.purgePool(p.a.ctx(), name) }) }

// classOrder: whatever the order in which classes, pools and processes come, a pool has the owner that its class names, within a second
// (CI is given more), never two and never none. A third instance without a class sees it all and has nothing to say (A5); how many
// instances there are, and which UID a class has, changes nothing (C8).
func (p *pair) classOrder() {
	began := time.Now()
	p.idle.start(p.T, "")
	idleSince := time.Now()
	p.Cleanup(p.idle.kill)

	p.orderOf("pool-first", p.a, func(s *scenario, name string) { s.create(s.pool(name)); s.create(s.class(name)) })
	p.orderOf("class-first", p.b, func(s *scenario, name string) { s.create(s.class(name)); s.create(s.pool(name)) })
	p.orderOf("again", p.a, func(s *scenario, name string) { s.create(s.class(name)); s.create(s.pool(name)) })
	for i, next := range []*scenario{p.b, p.a, p.a} { // to another, back, and to the same with another UID
		p.rebirth("again", next, fmt.Sprint(i))
	}

	// While the owner is down. Its start is not part of what is measured: the process itself says when it has read its classes.
	p.a.kill()
	p.discard("while-down")
	p.a.create(p.a.pool("while-down"))
	p.a.create(p.a.class("while-down"))
	p.a.start("")
	took := p.ownedBy(p.a, "while-down", p.a.started)
	p.Logf("class made while its owner was down: owned %.2fs after the process was started", took.Seconds())
	if took > 15*time.Second {
		p.Errorf("owned %.1fs after the start", took.Seconds())
	}

	p.backToBack(20)

	if lines := p.idle.errorLines(p.T); len(lines) > 0 {
		p.Errorf("A5: an instance without classes logged %d errors in %s:\n%s", len(lines), time.Since(idleSince), strings.Join(lines, "\n"))
	}
	if n := p.a.judgeSince(began).own["seg-c"]; n != 0 {
		p.Errorf("A5: an instance without classes wrote %d times", n)
	}
	p.Logf("A5: no error and no write of an instance without classes in %.0fs", time.Since(idleSince).Seconds())
	p.noForeignWrites(began)
}

// orderOf makes class and pool of a name and awaits that they are the scenario's instance's.
func (p *pair) orderOf(name string, s *scenario, make func(s *scenario, name string)) {
	p.Helper()
	p.discard(name)
	began := time.Now()
	make(s, name)
	p.soon(name, p.ownedBy(s, name, began))
}

// rebirth deletes a class and makes it again, under an instance. The pool is changed while it is nobody's: whoever owns it next must
// write its hash.
func (p *pair) rebirth(name string, next *scenario, mark string) {
	p.Helper()
	old := &v1beta1.SSHNodeClass{}
	if err := p.a.api.Get(p.Context(), keyIn("", name), old); err != nil {
		p.Fatal(err)
	}
	p.a.remove(old)
	p.goneClass(p.a, name, "it has no claims")
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test/rebirth":%q}}}}}`, mark)
	if err := p.a.api.Patch(p.Context(), p.a.pool(name), client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		p.Fatal(err)
	}
	began := time.Now()
	next.create(next.class(name))
	p.soon(fmt.Sprintf("%s, from %s to %s", name, old.Spec.Instance, next.instance.name), p.ownedBy(next, name, began))
}

// backToBack makes n classes and pools, of both instances in turn and in both orders.
func (p *pair) backToBack(n int) {
	p.Helper()
	began := time.Now()
	owner := func(i int) *scenario { return []*scenario{p.a, p.b}[i%2] }
	name := func(i int) string { return fmt.Sprintf("pair-%02d", i) }
	made := make([]time.Time, n)
	for i := range n {
		p.discard(name(i))
		objects := []client.Object{owner(i).class(name(i)), owner(i).pool(name(i))}
		if i/2%2 == 1 {
			objects[0], objects[1] = objects[1], objects[0]
		}
		for _, o := range objects {
			owner(i).create(o)
		}
		made[i] = time.Now()
	}
	p.Logf("%d classes and pools made in %.1fs", n, time.Since(began).Seconds())
	var sum, longest time.Duration
	for i := range n {
		took := p.ownedBy(owner(i), name(i), made[i])
		sum, longest = sum+took, max(longest, took)
	}
	p.Logf("%d pairs back to back: owned after %.2fs on average, at most %.2fs", n, sum.Seconds()/float64(n), longest.Seconds())
	if longest > 5*time.Second {
		p.Errorf("a pool was nobody's for %.1fs", longest.Seconds())
	}
}

func (p *pair) soon(what string, took time.Duration) {
	p.Helper()
	p.Logf("%s: owned after %.2fs", what, took.Seconds())
	if took > 5*time.Second {
		p.Errorf("%s: owned only after %.1fs", what, took.Seconds())
	}
}

// ownedBy awaits that a pool is Ready and that the audit shows its owner's writes since a moment and nobody else's. It returns how long
// after that moment the first one came; a negative one is nought.
func (p *pair) ownedBy(s *scenario, pool string, since time.Time) time.Duration {
	p.Helper()
	var first time.Duration
	s.eventually(30*time.Second, fmt.Sprintf("pool %s is %s's", pool, s.instance.name), func() (bool, string) {
		np := &karpv1.NodePool{}
		if err := s.api.Get(p.Context(), keyIn("", pool), np); err != nil {
			return false, err.Error()
		}
		if ready := np.StatusConditions().Get("Ready"); ready == nil || ready.Status != metav1.ConditionTrue {
			return false, fmt.Sprint(ready)
		}
		seen := false
		for _, e := range s.auditSince(since) {
			instance, is := strings.CutPrefix(e.User.Username, userPrefix)
			if !is || !e.Write() || e.Key() != keyOf("nodepools", pool) {
				continue
			}
			if instance != s.instance.name {
				p.Errorf("%s wrote pool %s of %s: %s", instance, pool, s.instance.name, e.URI)
			}
			if !seen {
				seen, first = true, e.Time.Sub(since)
			}
		}
		return seen, "Ready, and no write of its owner"
	})
	return max(first, 0)
}
