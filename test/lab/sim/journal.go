package sim

import (
	"slices"
	"sync"
	"time"
)

// Kinds of journal entries.
const (
	EntryPhase        = "phase"         // Detail: install, join or leave
	EntrySessionBegin = "session-begin" // an SSH session began to run a command
	EntrySessionEnd   = "session-end"
	EntryKubeletStart = "kubelet-start"
	EntryKubeletStop  = "kubelet-stop"
	EntryPower        = "power" // Detail: on or off
)

// Entry is something that happened on a machine.
type Entry struct {
	Time   time.Time
	Kind   string
	Detail string
	// Node is KPSSH_NODE_NAME where the entry is about a phase.
	Node string
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
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, Entry{Time: time.Now(), Kind: kind, Detail: detail, Node: node})
}

func (j *journal) all() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}
