//go:build bench

package integration

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

const (
	claimsEach = 50
	// updates of each NodeClaim while bytes are counted: what its owner writes in its life, about.
	updates = 5
)

// Cost: what one instance pays for the other instances' NodeClaims, as a fleet grows from 1 instance to 20 with 50 NodeClaims each. Foreign ones
// are sent by the API server, which cannot select them by class, and are dropped as they are decoded: a foreign NodeClaim costs memory a tenth
// of an own one or less.
func TestCostOfForeignNodeClaims(t *testing.T) {
	owner := shared.newInstance(t, "cost", "kp-cost", "ENABLE_PROFILING=true", "PROBE_INTERVAL=10m")
	s := prepare(t, owner, "cost", 20*time.Second, make([]sim.Spec, claimsEach)...)
	config, err := s.cp.ClientConfig(s.user(), "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t, config)
	s.register()
	s.start(g.Kubeconfig)
	s.allIn(v1beta1.HostAvailable, 2*time.Minute)
	empty := s.heap()
	for n := range claimsEach {
		s.pod(fmt.Sprintf("cost-%d", n))
	}
	s.running(claimsEach, 10*time.Minute)
	own := s.claims()
	if len(own) != claimsEach {
		t.Fatalf("%d own NodeClaims", len(own))
	}
	full := s.heap()
	perOwn := float64(full-empty) / claimsEach

	table := &strings.Builder{}
	w := tabwriter.NewWriter(table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "instances\tNodeClaims\theap, MB\theap per foreign NodeClaim, kB\tof an own one\tNodeClaim bytes sent per update of one\t")
	fmt.Fprintf(w, "1\t%d\t%.1f\t\t(%.1f kB with its Node, Pod and SSHHost)\t\t\n", claimsEach, float64(full)/1e6, perOwn/1e3)
	var foreign []client.Object
	t.Cleanup(func() {
		for _, o := range foreign {
			_ = s.api.Delete(s.ctx(), o)
		}
	})
	worst := 0.0
	for _, instances := range []int{2, 5, 10, 20} {
		for len(foreign) < (instances-1)*claimsEach {
			foreign = append(foreign, s.foreignCopy(&own[len(foreign)%len(own)], len(foreign)))
		}
		s.caughtUp(foreign[len(foreign)-1])
		before := g.bytes("nodeclaims")
		for n := range updates {
			for _, o := range foreign[len(foreign)-claimsEach:] {
				s.touch(o, n)
			}
		}
		s.caughtUp(foreign[len(foreign)-1])
		sent := float64(g.bytes("nodeclaims")-before) / (updates * claimsEach)
		heap := s.heap()
		each := max(0, float64(heap-full)) / float64(len(foreign))
		worst = max(worst, each/perOwn)
		fmt.Fprintf(w, "%d\t%d\t%.1f\t%.2f\t%.3f\t%.0f\t\n", instances, instances*claimsEach, float64(heap)/1e6, each/1e3, each/perOwn, sent)
	}
	_ = w.Flush()
	t.Logf("\n%s", table)
	t.Logf("bytes received since the start, by resource: %v", g.all())
	if worst > 0.1 {
		t.Errorf("a foreign NodeClaim costs %.2f of the memory of an own one", worst)
	}
}

// watched is how long the heap is looked at for one figure: what the process holds for a moment only (answers being decoded, pods on their way through
// a reconciler, connections that grow) is some megabytes, as much as hundreds of foreign NodeClaims, and is not there in every look.
const watched = 15 * time.Second

// heap is what the process holds after a collection: the least of many looks, since all that is kept is in every one of them.
func (s *scenario) heap() int64 {
	s.t.Helper()
	least := int64(math.MaxInt64)
	s.throughout(watched, func() { least = min(least, s.heapNow()) })
	return least
}

func (s *scenario) heapNow() int64 {
	s.t.Helper()
	for range 2 {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", s.metrics)) //nolint:noctx // loopback, in a test
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	return int64(s.metric("go_memstats_heap_alloc_bytes"))
}

// foreignCopy makes a NodeClaim of another instance that is as large as one of this.
func (s *scenario) foreignCopy(own *karpv1.NodeClaim, n int) *karpv1.NodeClaim {
	s.t.Helper()
	other := own.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("foreign-%04d", n), Labels: own.Labels, Annotations: own.Annotations}
	other.Labels[classLabel] = "elsewhere"
	other.Labels[karpv1.NodePoolLabelKey] = "elsewhere"
	other.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: "elsewhere"}
	status := other.Status.DeepCopy()
	s.create(other)
	base := other.DeepCopy()
	other.Status = *status
	other.Status.ProviderID = fmt.Sprintf("kpssh://elsewhere/host-%d", n)
	if err := s.api.Status().Patch(s.ctx(), other, client.MergeFrom(base)); err != nil {
		s.t.Fatal(err)
	}
	return other
}

func (s *scenario) touch(o client.Object, n int) {
	s.t.Helper()
	base := o.DeepCopyObject().(client.Object)
	o.SetAnnotations(map[string]string{"test/touched": fmt.Sprint(n, time.Now().UnixNano())})
	if err := s.api.Patch(s.ctx(), o, client.MergeFrom(base)); err != nil {
		s.t.Fatal(err)
	}
}

// caughtUp waits until the instance's watch has been sent what happened to an object: its count of dropped objects stands still.
func (s *scenario) caughtUp(client.Object) {
	s.t.Helper()
	last, still := -1.0, 0
	s.eventually(time.Minute, "the watch has caught up", func() (bool, string) {
		now := s.metric("kpssh_ownership_dropped_total", `kind="NodeClaim"`)
		if now == last {
			still++
		} else {
			last, still = now, 0
		}
		return still > 4, fmt.Sprint(now)
	})
}

func (g *gate) bytes(resource string) int64 {
	counter, ok := g.received.Load(resource)
	if !ok {
		return 0
	}
	return counter.(*atomic.Int64).Load()
}

func (g *gate) all() map[string]int64 {
	all := map[string]int64{}
	g.received.Range(func(resource, counter any) bool { all[resource.(string)] = counter.(*atomic.Int64).Load(); return true })
	return all
}
