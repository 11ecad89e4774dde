package sim

import (
	"slices"
	"sync"
	"time"
)

// Kinds of journal entries.
const (
	EntryPhase        = "phase"         // Detail: install, join or leave
	EntrySessionBegin = "session-begin" // an SSH session began to run a command; Detail: who logged in
	EntrySessionEnd   = "session-end"   // Detail: who had logged in
	EntryKubeletStart = "kubelet-start"
	EntryKubeletStop  = "kubelet-stop"
	EntryPower        = "power" // Detail: on or off
)

// Entry is something that happened on a machine.
type Entry struct {
	Time   time.Time
	Kind   string
	Detail string
	// Node is KPSSH_NODE_NAME where the entry is about a phase, User who logged in to run it.
	Node, User string
}

// Counters of one machine since it was made.
type Counters struct {
	// Handshakes, AuthAttempts and Sessions are the SSH server's.
	Handshakes, AuthAttempts, Sessions int64
	// Runs counts script runs by phase: install, join, leave.
	Runs map[string]int
}

// journal is safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	entries []Entry
}

func (j *journal) add(kind, detail, node string) {
	j.append(Entry{Kind: kind, Detail: detail, Node: node})
}

func (j *journal) append(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Time = time.Now()
	j.entries = append(j.entries, e)
}

func (j *journal) all() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}
