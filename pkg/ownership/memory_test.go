package ownership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// S6: what the guard refused can be told to people, object by object, and a flood of refusals takes no more room than a few.
func TestRefusalsAreRemembered(t *testing.T) {
	b := newGuardBench(t)
	for range 3 {
		if err := b.client.Delete(t.Context(), claim("theirs", ref("other"), foreignHost)); !errors.Is(err, ErrForeign) {
			t.Fatalf("a foreign NodeClaim could be deleted: %v", err)
		}
		b.clock.Step(time.Second)
	}
	got := b.client.seam.Refusals()
	want := Refusal{Kind: kindClaim, Name: "theirs", UID: "uid-theirs", Verb: "delete", Count: 3, Last: b.clock.Now().Add(-time.Second)}
	if len(got) != 1 || got[0] != want {
		t.Errorf("remembered %+v, want %+v", got, want)
	}
	for i := range 2 * remembered {
		b.clock.Step(time.Second)
		_ = b.client.Delete(t.Context(), pool(fmt.Sprintf("p%03d", i), ref("other")))
	}
	got = b.client.seam.Refusals()
	if len(got) != remembered || got[0].Name != "p064" || got[len(got)-1].Name != "p127" {
		t.Errorf("of a flood, %d are kept, from %s to %s", len(got), got[0].Name, got[len(got)-1].Name)
	}
}

// claimServer lists and watches NodeClaims as the test says.
type claimServer struct {
	items  []karpv1.NodeClaim
	events chan watch.Event
}

func (s *claimServer) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	list := &karpv1.NodeClaimList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}}
	for _, c := range s.items {
		list.Items = append(list.Items, *c.DeepCopy())
	}
	return list, nil
}

func (s *claimServer) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewProxyWatcher(s.events), nil
}

// A claim of an own class on another instance's host is hidden from core; a person can still learn of it, until it is mended or gone.
func TestSplitClaimsAreRemembered(t *testing.T) {
	server := &claimServer{events: make(chan watch.Event), items: []karpv1.NodeClaim{
		*claim("split-1", ref("mine"), foreignHost), *claim("split-2", ref("mine"), foreignHost),
		*claim("whole", ref("mine"), ownHost), *claim("foreign", ref("other"), foreignHost),
	}}
	seam := newSeam(me, &Classes{own: newRegister(own("mine").names)}, clock.RealClock{})
	if seam.Splits() != nil {
		t.Error("there are split claims before anything was read")
	}
	s := seam.kinds[kindClaim].newStream(server, clock.RealClock{})
	_, err := s.List(metav1.ListOptions{})
	must(t, err)
	names := func() (names []string) {
		for _, split := range seam.Splits() {
			names = append(names, split.Name+" "+split.Class+" "+split.ProviderID)
		}
		return names
	}
	if got := names(); !slices.Equal(got, []string{"split-1 mine " + foreignHost, "split-2 mine " + foreignHost}) {
		t.Fatalf("remembered %v", got)
	}
	w := startWatch(t, s)
	defer w.Stop()
	server.events <- watch.Event{Type: watch.Modified, Object: claim("split-1", ref("mine"), ownHost)}
	<-w.ResultChan()
	server.events <- watch.Event{Type: watch.Deleted, Object: claim("split-2", ref("mine"), foreignHost)}
	// The pump takes an event only when it is done with the one before.
	server.events <- watch.Event{Type: watch.Modified, Object: claim("foreign", ref("other"), foreignHost)}
	server.events <- watch.Event{Type: watch.Modified, Object: claim("foreign", ref("other"), foreignHost)}
	if got := names(); got != nil {
		t.Errorf("mended and deleted claims are still remembered: %v", got)
	}
}
