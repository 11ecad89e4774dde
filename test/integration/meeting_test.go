package integration

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// patience is how long one side waits for the other: longer than the loop of one can be behind that of the other.
const patience = 15 * time.Second

// meeting makes two controllers write the taint that begins a disruption at the same moment, as if the network were slow: whoever comes first
// waits for the other.
type meeting struct {
	mu      sync.Mutex
	arrived map[string]chan struct{} // closed when that side has come
	waiting map[string]int           // writes of a side that are held up now
	// met counts the writes of this round that came while one of the other side was held up. One that comes after is no meeting.
	met int
}

// end of a round: what follows are the taints of Nodes that are being deleted, which wait for nobody. It returns how many writes met.
func (m *meeting) end() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived = nil
	return m.met
}

func newMeeting(sides ...string) *meeting {
	m := &meeting{}
	m.again(sides...)
	return m
}

// again begins another round.
func (m *meeting) again(sides ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrived, m.waiting, m.met = map[string]chan struct{}{}, map[string]int{}, 0
	for _, side := range sides {
		m.arrived[side] = make(chan struct{})
	}
}

// attend is a gate's hold for one side.
func (m *meeting) attend(side, other string) func(*http.Request) {
	return func(r *http.Request) {
		if !beginsDisruption(r) {
			return
		}
		m.mu.Lock()
		if m.arrived == nil {
			m.mu.Unlock()
			return
		}
		select {
		case <-m.arrived[side]:
		default:
			close(m.arrived[side])
		}
		if m.waiting[other] > 0 {
			m.met++
		}
		waitFor, waiting := m.arrived[other], m.waiting
		waiting[side]++
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			waiting[side]--
		}()
		select {
		case <-waitFor:
		case <-time.After(patience):
		case <-r.Context().Done():
		}
	}
}

// beginsDisruption tells the patch that puts core's taint on a Node.
func beginsDisruption(r *http.Request) bool {
	if r.Method != http.MethodPatch || !strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") || r.Body == nil {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte(karpv1.DisruptedTaintKey))
}
