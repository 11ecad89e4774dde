package ownership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// podCache answers every List with the pods it has, shared as a cache shares them when no copy is asked for.
type podCache struct {
	client.Client
	pods []*corev1.Pod
	err  error
}

func (c *podCache) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if c.err != nil {
		return c.err
	}
	unsafe := ptr.Deref((&client.ListOptions{}).ApplyOptions(opts).UnsafeDisableDeepCopy, false)
	into := list.(*corev1.PodList)
	into.Items = nil
	for _, p := range c.pods {
		if !unsafe {
			p = p.DeepCopy()
		}
		into.Items = append(into.Items, *p)
	}
	return nil
}

// theirs hides pods whose name starts with "their".
type theirs struct{ asked int }

func (f *theirs) Hidden(p *corev1.Pod) bool { f.asked++; return strings.HasPrefix(p.Name, "their") }

func (f *theirs) Shown(pending []corev1.Pod) []corev1.Pod {
	var shown []corev1.Pod
	for i := range pending {
		if !f.Hidden(&pending[i]) {
			shown = append(shown, pending[i])
		}
	}
	return shown
}

func pendingBench(t *testing.T, names ...string) (*guardedClient, *podCache) {
	t.Helper()
	b := newGuardBench(t)
	cached := &podCache{Client: b.client.Client}
	for _, name := range names {
		cached.pods = append(cached.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}})
	}
	b.client.Client = cached
	return b.client, cached
}

func podNames(list *corev1.PodList) string {
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// A12: the one List that core reads pending pods with is filtered, and no other.
func TestOnlyTheListOfPendingPodsIsFiltered(t *testing.T) {
	pending := client.MatchingFields{"spec.nodeName": ""}
	for _, tc := range []struct {
		name     string
		opts     []client.ListOption
		filtered bool
	}{
		{"pending pods, as core asks", []client.ListOption{pending}, true},
		{"pending pods without a copy", []client.ListOption{pending, client.UnsafeDisableDeepCopy}, true},
		{"pending pods, by an empty label selector", []client.ListOption{pending, client.MatchingLabelsSelector{Selector: labels.Everything()}}, true},
		{"all pods", nil, false},
		{"a node's pods", []client.ListOption{client.MatchingFields{"spec.nodeName": "n"}}, false},
		{"pods by another field", []client.ListOption{client.MatchingFields{"status.phase": ""}}, false},
		{"pending pods of a namespace", []client.ListOption{pending, client.InNamespace("default")}, false},
		{"pending pods by label", []client.ListOption{pending, client.MatchingLabels{"app": "mine"}}, false},
		{"a page of pending pods", []client.ListOption{pending, client.Limit(10)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _ := pendingBench(t, "their-1", "mine", "their-2")
			want := "their-1 mine their-2"
			list := &corev1.PodList{}
			must(t, c.List(t.Context(), list, tc.opts...))
			if got := podNames(list); got != want {
				t.Fatalf("without a filter: %q, want %q", got, want)
			}
			c.seam.FilterPending(&theirs{})
			if tc.filtered {
				want = "mine"
			}
			must(t, c.List(t.Context(), list, tc.opts...))
			if got := podNames(list); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// Core changes the pods it gets: it relaxes their preferences.
func TestFilteredPodsAreCopiesUnlessCoreAsksOtherwise(t *testing.T) {
	c, cached := pendingBench(t, "mine")
	c.seam.FilterPending(&theirs{})
	for _, unsafe := range []bool{false, true} {
		opts := []client.ListOption{client.MatchingFields{"spec.nodeName": ""}}
		if unsafe {
			opts = append(opts, client.UnsafeDisableDeepCopy)
		}
		list := &corev1.PodList{}
		must(t, c.List(t.Context(), list, opts...))
		list.Items[0].Labels["app"] = fmt.Sprint(unsafe)
		if got := cached.pods[0].Labels["app"] == fmt.Sprint(unsafe); got != unsafe {
			t.Errorf("unsafe %v: a change of the result reaches the cache: %v", unsafe, got)
		}
		cached.pods[0].Labels["app"] = "mine"
	}
}

// Core's garbage collection and its state act on errors: the filter adds none.
func TestErrorsOfAFilteredListAreTheCachesOwn(t *testing.T) {
	c, cached := pendingBench(t, "mine")
	filter := &theirs{}
	c.seam.FilterPending(filter)
	cached.err = errors.New("not started")
	if err := c.List(t.Context(), &corev1.PodList{}, client.MatchingFields{"spec.nodeName": ""}); !errors.Is(err, cached.err) {
		t.Errorf("got %v, want the cache's error", err)
	}
	if filter.asked > 0 {
		t.Error("the filter was asked about pods that were not read")
	}
}

// A12: a pending pod is reported on by the instances that are shown it.
func TestAHiddenPodIsNotReportedOn(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	b := newGuardBench(t, pod("mine"), pod("theirs"))
	b.client.seam.FilterPending(&theirs{})
	inner := &reporting{client: b.client, object: func() client.Object { return &corev1.Pod{} }}
	reporter := NewReporter("test", &corev1.Pod{}, inner, 1)
	for _, name := range []string{"mine", "theirs"} {
		_, err := reporter.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: name}})
		must(t, err)
	}
	if strings.Join(inner.saw, " ") != "mine" {
		t.Errorf("reported on %v", inner.saw)
	}
}
