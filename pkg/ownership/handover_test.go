package ownership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scripted is a server that says what the test tells it to.
type scripted struct {
	nodes   []corev1.Node
	version string
	err     error
	events  chan watch.Event
}

func (s *scripted) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: s.version}}
	for _, n := range s.nodes {
		list.Items = append(list.Items, *n.DeepCopy())
	}
	return list, s.err
}

func (s *scripted) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewProxyWatcher(s.events), s.err
}

func version(n *corev1.Node, uid, version string) corev1.Node {
	n.UID, n.ResourceVersion = types.UID(uid), version
	return *n
}

// nodeStream has listed these nodes at version 10 with class "mine" as the only own class.
func nodeStream(t *testing.T, nodes ...corev1.Node) (*scripted, *kind, *stream) {
	t.Helper()
	server := &scripted{nodes: nodes, version: "10", events: make(chan watch.Event)}
	k := viewedKinds(me, own("mine"))[kindNode]
	s := k.newStream(server, clock.RealClock{})
	_, err := s.List(metav1.ListOptions{})
	must(t, err)
	return server, k, s
}

func startWatch(t *testing.T, s *stream) watch.Interface {
	t.Helper()
	w, err := s.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "10"})
	must(t, err)
	return w
}

func describe(e watch.Event) string {
	o, ok := e.Object.(client.Object)
	if !ok {
		return string(e.Type)
	}
	return fmt.Sprintf("%s %s %s@%s class=%s", e.Type, o.GetName(), o.GetUID(), o.GetResourceVersion(), o.GetLabels()[ClassLabel])
}

// Rule by rule, what core is told when the class set changes. All deletions come first, at the position of the list; a bookmark at
// that position comes last, and with it the watch ends.
func TestHandOverTellsTheDifference(t *testing.T) {
	server, k, s := nodeStream(t,
		version(node("same", "mine", ownHost), "u1", "1"),
		version(node("edited", "mine", ownHost), "u2", "2"),
		version(node("replaced", "mine", ownHost), "u3", "3"),
		version(node("gone", "mine", ownHost), "u4", "4"),
		version(node("gained", "new", ownHost), "u5", "5"), // still masked
	)
	w := startWatch(t, s)
	server.nodes = []corev1.Node{
		version(node("same", "mine", ownHost), "u1", "1"),
		version(node("edited", "mine", ownHost), "u2", "12"),
		version(node("replaced", "mine", ownHost), "u3-again", "13"),
		version(node("gained", "new", ownHost), "u5", "5"),
		version(node("added", "new", ownHost), "u6", "14"),
	}
	server.version = "20"
	k.target.extend(own("new"))
	var told []string
	for e := range w.ResultChan() {
		told = append(told, describe(e))
	}
	deletions, rest, bookmark := told[:min(3, len(told))], told[min(3, len(told)):max(0, len(told)-1)], told[len(told)-1]
	slices.Sort(deletions)
	slices.Sort(rest)
	for part, pair := range map[string][2][]string{
		"deletions": {deletions, {"DELETED gained u5@20 class=", "DELETED gone u4@20 class=mine", "DELETED replaced u3@20 class=mine"}},
		"the rest": {rest, {
			"ADDED added u6@14 class=new", "ADDED gained u5@5 class=new", "ADDED replaced u3-again@13 class=mine", "MODIFIED edited u2@12 class=mine",
		}},
		"the end": {{bookmark}, {"BOOKMARK  @20 class="}},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s:\ngot  %q\nwant %q", part, pair[0], pair[1])
		}
	}
	if got := s.session().own; got != k.target.snapshot() {
		t.Error("the next watch would start with the old class set")
	}
}

// Core's store holds a part of the difference then, which fits no position of the watch.
func TestWatchDoesNotResumeInTheMiddleOfAHandOver(t *testing.T) {
	server, k, s := nodeStream(t, version(node("a", "new", ownHost), "u1", "1"), version(node("b", "new", ownHost), "u2", "2"))
	w := startWatch(t, s)
	k.target.extend(own("new"))
	<-w.ResultChan() // the first of four
	w.Stop()
	for range w.ResultChan() {
	}
	if _, err := s.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "10"}); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v, want 410, so that the reflector lists", err)
	}
	server.version = "11"
	_, err := s.List(metav1.ListOptions{})
	must(t, err)
	startWatch(t, s).Stop()
}

// A foreign object's events are not core's business, but the position that they move is: it must not be lost with the watch.
func TestPositionSurvivesASilentWatch(t *testing.T) {
	foreignEvent := watch.Event{Type: watch.Modified, Object: ptr.To(version(node("n", "mine", foreignHost), "u1", "15"))}
	gone := watch.Event{Type: watch.Error, Object: &metav1.Status{Code: 410}}
	hiddenKind := viewedKinds(me, own("mine"))[kindNode]
	hiddenKind.see = func(*Set, client.Object) sight { return hidden } // as pools and claims can be
	for name, tc := range map[string]struct {
		last *watch.Event
		want []string
	}{
		"the server ends the watch": {nil, []string{"BOOKMARK  @15 class="}},
		"an error ends the watch":   {&gone, []string{"BOOKMARK  @15 class=", "ERROR"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := &scripted{version: "10", events: make(chan watch.Event)}
			s := hiddenKind.newStream(server, clock.RealClock{})
			_, err := s.List(metav1.ListOptions{})
			must(t, err)
			w := startWatch(t, s)
			go func() {
				server.events <- foreignEvent
				if tc.last != nil {
					server.events <- *tc.last
				}
				close(server.events)
			}()
			var told []string
			for e := range w.ResultChan() {
				told = append(told, describe(e))
			}
			if !slices.Equal(told, tc.want) {
				t.Errorf("told %q, want %q", told, tc.want)
			}
		})
	}
}

// The reflector decides by the error whether to try again, to wait or to list.
func TestErrorsOfTheServerPassUnchanged(t *testing.T) {
	server, _, s := nodeStream(t)
	server.err = errors.New("unavailable")
	if _, err := s.List(metav1.ListOptions{}); !errors.Is(err, server.err) {
		t.Errorf("list: got %v", err)
	}
	if _, err := s.Watch(metav1.ListOptions{ResourceVersion: "10"}); !errors.Is(err, server.err) {
		t.Errorf("watch: got %v", err)
	}
}

// Nothing may be kept of foreign objects: instances are many, and each would keep all claims of all others.
func TestNothingIsKeptOfHiddenObjects(t *testing.T) {
	k := viewedKinds(me, own("mine"))[kindClaim]
	s := k.newStream(&scripted{}, clock.RealClock{})
	session := newSession(k.target.snapshot())
	p := &pump{stream: s, session: session}
	for i := range 1000 {
		c := claim(fmt.Sprintf("c-%d", i), ref("theirs"), "")
		for _, event := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			if _, told := p.translate(event, c); told {
				t.Fatal("core was told of a foreign claim")
			}
		}
	}
	if n := len(session.seen); n != 0 {
		t.Errorf("%d entries are kept", n)
	}
	foreign := claim("c", ref("theirs"), foreignHost)
	if allocs := testing.AllocsPerRun(100, func() { p.translate(watch.Modified, foreign) }); allocs != 0 {
		t.Errorf("%v allocations per foreign event", allocs)
	}
}
