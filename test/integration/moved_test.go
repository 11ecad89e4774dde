package integration

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// movedPool points a NodePool at the other instance's class while a claim of the first lives, and restarts both. The claim, its Node and its
// pod stay the first instance's; what the pool makes from now on is the second's; and core, which asks once a minute for the pool of each claim
// that it sees, is not left in a loop of errors about a pool that it does not see.
func (p *pair) movedPool() {
	began := time.Now()
	a, b, name := p.a, p.b, "moved"
	p.discard(name)
	p.discard("moved-to")
	p.held(a, a.class(name))
	p.held(b, b.class("moved-to"))
	pool := a.pool(name)
	a.create(pool)
	a.pod("moved-before", podIn(name))
	a.running(1, 2*time.Minute)
	claim := a.claimsOf(name)[0]

	base := pool.DeepCopy()
	pool.Spec.Template.Spec.NodeClassRef.Name = "moved-to"
	if err := a.api.Patch(p.Context(), pool, client.MergeFrom(base)); err != nil {
		p.Fatal(err)
	}
	for _, s := range []*scenario{a, b} {
		s.kill()
		s.start("")
	}
	b.pod("moved-after", podIn(name))
	b.running(1, 2*time.Minute)
	claims := a.claimsOf(name)
	i := slices.IndexFunc(claims, func(c karpv1.NodeClaim) bool { return c.UID != claim.UID })
	if len(claims) != 2 || claims[i].Spec.NodeClassRef.Name != "moved-to" || claims[1-i].DeletionTimestamp != nil {
		p.Fatalf("not the old claim and one of the new owner's: %+v", claims)
	}
	a.eventually(time.Minute, "the class of the old claim says that its pool has moved", func() (bool, string) {
		c := &v1beta1.SSHNodeClass{}
		err := a.api.Get(p.Context(), keyIn("", name), c)
		found := slices.IndexFunc(c.Status.Conditions, func(c status.Condition) bool { return c.Type == v1beta1.ConditionOwnershipConflict })
		return err == nil && found >= 0 && c.Status.Conditions[found].Reason == v1beta1.ReasonMovedNodePool, fmt.Sprint(err, c.Status.Conditions)
	})

	// Two of core's looks at each claim, a minute apart.
	a.eventually(3*time.Minute, "core has looked at the old claim twice since the restart", func() (bool, string) {
		return time.Since(a.started) > 135*time.Second, ""
	})
	for _, s := range []*scenario{a, b} {
		// What core reports while it starts, it reports of pools that never moved too.
		settled := s.started.Add(time.Minute).UTC().Format("2006-01-02T15:04:05")
		lines := slices.DeleteFunc(s.errorLines(p.T), func(line string) bool {
			_, at, _ := strings.Cut(line, `"time":"`)
			return at < settled || !strings.Contains(line, "nodeclaim") && !strings.Contains(line, name)
		})
		if len(lines) > 0 {
			p.Errorf("%s does not come to rest:\n%s", s.instance.name, strings.Join(lines, "\n"))
		}
	}

	a.deletePods()
	a.remove(&claim)
	a.allIn(v1beta1.HostAvailable, time.Minute)
	a.eventually(30*time.Second, "the old claim is gone, and the new owner's is not", func() (bool, string) {
		left := a.claimsOf(name)
		return len(left) == 1 && left[0].Spec.NodeClassRef.Name == "moved-to" && left[0].DeletionTimestamp.IsZero(), fmt.Sprintf("%d claims", len(left))
	})
	b.deletePods()
	b.remove(pool) // and with it, by owner references, what is left of it
	b.allIn(v1beta1.HostAvailable, time.Minute)
	p.noForeignWrites(began)
	p.settle()
}
