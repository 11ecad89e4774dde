package ownership

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	memRounds = 80
	memSteps  = 60
	// memSettle is time in the bubble: reflectors back off up to 30 s, and longer with jitter.
	memSettle = 10 * time.Minute
)

// The same promise as against a real API server, with the real informers, in a bubble where time is free: every answer is late, and
// in half of the rounds one request or event in eight breaks. It reaches interleavings that a healthy server seldom produces.
func TestFilteredWatchConvergesWhenEverythingIsLate(t *testing.T) {
	start := seed(t)
	for _, mode := range []string{modeStream, modeClassic} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { lateRun(t, start, mode) })
		})
	}
}

func lateRun(t *testing.T, start uint64, mode string) {
	ctx, cancel := context.WithCancel(t.Context())
	server := newMemServer(start)
	classes := newRegister(nil)
	seam := newSeam(me, &Classes{own: classes}, clock.RealClock{})
	stores, shadows := map[string]toolscache.Store{}, map[string]*shadow{}
	for _, kind := range gainOrder {
		source := &memSource{server: server, kind: kind, list: mode == modeClassic}
		informer := seam.newInformer(source, emptyOf(kind), 0, toolscache.Indexers{})
		stores[kind], shadows[kind] = informer.GetStore(), newShadow(kind)
		_, err := informer.AddEventHandler(shadows[kind].handler())
		must(t, err)
		go informer.RunWithContext(ctx)
	}
	go seam.Follow(ctx)
	user := &memUser{rand: rand.New(rand.NewPCG(start, 1)), server: server, classes: classes}
	for round := range memRounds {
		if round%2 == 1 {
			server.setFlaky(0.125)
		}
		for range memSteps {
			user.step()
		}
		server.setFlaky(0)
		<-time.After(memSettle)
		synctest.Wait()
		for _, kind := range gainOrder {
			want := map[types.NamespacedName]client.Object{}
			objects, _ := server.state(kind, true)
			for _, o := range objects {
				if seam.kinds[kind].see(classes.snapshot(), o).visible() {
					want[client.ObjectKeyFromObject(o)] = o
				}
			}
			seen, faults, _ := shadows[kind].look()
			if len(faults) > 0 {
				t.Errorf("round %d: %d faults, the first: %s", round, len(faults), faults[0])
			}
			if d := differ(want, seen); d != "" {
				t.Errorf("round %d: events of %s: %s", round, kind, d)
			}
			if d := differ(want, contents(stores[kind])); d != "" {
				t.Errorf("round %d: store of %s: %s", round, kind, d)
			}
			if lag := seam.Stats()[kind].Lag; lag != 0 {
				t.Errorf("round %d: %s lags by %v", round, kind, lag)
			}
		}
		if t.Failed() {
			break
		}
	}
	for kind, s := range seam.Stats() {
		if s.HandOvers > 0 {
			t.Logf("%s: %+v", kind, s)
		}
	}
	cancel()
	synctest.Wait()
}

// memUser changes objects and classes.
type memUser struct {
	rand    *rand.Rand
	server  *memServer
	classes *register
}

func (u *memUser) step() {
	if u.rand.IntN(4) == 0 { // the rest comes in bursts, which watches are late to tell
		<-time.After(time.Duration(u.rand.IntN(200)) * time.Millisecond)
	}
	name := fmt.Sprintf("o-%d", u.rand.IntN(6))
	class := fmt.Sprintf("class-%d", u.rand.IntN(3))
	switch u.rand.IntN(10) {
	case 0:
		u.classes.change(func(names map[string]struct{}) { names[class] = struct{}{} })
	case 1:
		u.classes.change(func(names map[string]struct{}) { delete(names, class) })
	case 2:
		if u.rand.IntN(4) == 0 {
			u.server.compact()
		}
	case 3, 4:
		u.server.apply(gainOrder[u.rand.IntN(3)], name, func(client.Object) client.Object { return nil })
	default:
		kind := gainOrder[u.rand.IntN(3)]
		u.server.apply(kind, name, func(current client.Object) client.Object { return u.change(kind, class, current) })
	}
}

// change makes a new object or edits one: its class, its provider ID, its deletion, or nothing of interest.
func (u *memUser) change(kind, class string, current client.Object) client.Object {
	if current == nil {
		switch kind {
		case kindPool:
			return pool("", ref(class))
		case kindClaim:
			return claim("", ref(class), "")
		}
		return node("", class, []string{"", ownHost, foreignHost}[u.rand.IntN(3)], label(karpv1.NodePoolLabelKey, "p"))
	}
	if u.rand.IntN(3) == 0 {
		current.SetAnnotations(map[string]string{"touched": fmt.Sprint(u.rand.IntN(1000))})
		return current
	}
	switch o := current.(type) {
	case *karpv1.NodePool:
		o.Spec.Template.Spec.NodeClassRef = ref(class)
	case *karpv1.NodeClaim:
		o.Status.ProviderID = []string{ownHost, foreignHost, adoptedID}[u.rand.IntN(3)]
	case *corev1.Node:
		o.Labels[ClassLabel] = class
		if u.rand.IntN(3) == 0 {
			now := metav1.NewTime(time.Unix(1700000000, 0))
			o.DeletionTimestamp = &now
		}
	}
	return current
}
