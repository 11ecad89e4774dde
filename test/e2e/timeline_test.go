//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// moment is a change that was seen.
type moment struct {
	at time.Time
	// what changed: "<kind> <name> <change>".
	what string
}

// timeline notes when what changed, as a watcher sees it: timestamps in objects have whole seconds only.
type timeline struct {
	owners *owners // that see what it sees

	mu      sync.Mutex
	moments []moment
	last    map[string]string // what was noted last of a thing, so that a change is noted once
}

func watchTimeline(ctx context.Context, config *rest.Config, owners *owners) (*timeline, error) {
	t := &timeline{owners: owners, last: map[string]string{}}
	informers, err := cache.New(config, cache.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, err
	}
	for _, object := range []client.Object{&corev1.Pod{}, &corev1.Node{}, &karpv1.NodeClaim{}, &v1beta1.SSHHost{}, &karpv1.NodePool{}, &v1beta1.SSHNodeClass{}} {
		informer, err := informers.GetInformer(ctx, object)
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: t.see, UpdateFunc: func(_, is any) { t.see(is) }, DeleteFunc: t.seeGone,
		}); err != nil {
			return nil, err
		}
	}
	go func() { _ = informers.Start(ctx) }()
	if !informers.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the timeline's watches did not start")
	}
	return t, nil
}

// see notes what is new about an object.
func (t *timeline) see(object any) {
	t.owners.see(object)
	switch o := object.(type) {
	case *corev1.Pod:
		t.note("pod "+o.Name, "created")
		if o.Spec.NodeName != "" {
			t.note("pod "+o.Name, "scheduled on "+o.Spec.NodeName)
		}
		if o.Status.Phase == corev1.PodRunning {
			t.note("pod "+o.Name, "running")
		}
	case *corev1.Node:
		t.note("node "+o.Name, "created")
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeReady {
				t.note("node "+o.Name, "ready "+string(c.Status))
			}
		}
		if !slices.ContainsFunc(o.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == karpv1.UnregisteredTaintKey }) {
			t.note("node "+o.Name, "registered")
		}
	case *karpv1.NodeClaim:
		t.note("nodeclaim "+o.Name, "created")
		if !o.DeletionTimestamp.IsZero() {
			t.note("nodeclaim "+o.Name, "deleting")
		}
	case *v1beta1.SSHHost:
		claim := ""
		if o.Status.ClaimRef != nil {
			claim = " for " + o.Status.ClaimRef.Name
		}
		t.noteChange("host "+o.Name+" state", string(o.Status.State)+claim)
		if op := o.Status.Operation; op != nil {
			t.noteChange("host "+o.Name+" operation", string(op.Type)+claim)
		} else {
			t.noteChange("host "+o.Name+" operation", "none")
		}
	case *v1beta1.SSHNodeClass:
		for _, c := range o.Status.Conditions {
			if c.Type == v1beta1.ConditionNodesCurrent {
				t.noteChange("class "+o.Name+" nodes", c.Reason)
			}
		}
	}
}

func (t *timeline) seeGone(object any) {
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	switch o := object.(type) {
	case *corev1.Pod:
		t.note("pod "+o.Name, "gone")
	case *corev1.Node:
		t.note("node "+o.Name, "gone")
	case *karpv1.NodeClaim:
		t.note("nodeclaim "+o.Name, "gone")
	}
}

// note keeps the first time of a change.
func (t *timeline) note(thing, change string) { t.record(thing+" "+change, thing+" "+change, change) }

// noteChange keeps every time that a thing takes another value.
func (t *timeline) noteChange(thing, value string) { t.record(thing, thing+" "+value, value) }

func (t *timeline) record(key, what, value string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last[key] == value {
		return
	}
	t.last[key] = value
	t.moments = append(t.moments, moment{time.Now(), what})
}

// after is the first time at or after start that something was seen; the zero time if it was not.
func (t *timeline) after(start time.Time, what string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.moments {
		if m.what == what && !m.at.Before(start) {
			return m.at
		}
	}
	return time.Time{}
}

// since lists what was seen of things that start with one of the prefixes, with seconds since start.
func (t *timeline) since(start time.Time, prefixes ...string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for _, m := range t.moments {
		if !m.at.Before(start) && (len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(m.what, p) })) {
			lines = append(lines, fmt.Sprintf("%8.2fs  %s", m.at.Sub(start).Seconds(), m.what))
		}
	}
	return lines
}
