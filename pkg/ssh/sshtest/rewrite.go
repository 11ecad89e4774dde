package sshtest

import (
	"bytes"
	"fmt"
	"io"
)

// Replacement is a text and what a machine gets in its place. Both are of one length, because senders announce how much they send.
type Replacement struct{ Old, New string }

// Bash3WithoutProc makes what is sent to a machine behave as on macOS: what it would read of /proc is not there, and bash is 3.2, which
// has no read -N and no BASHPID. What that bash cannot parse is left to a test of the scripts' text.
var Bash3WithoutProc = []Replacement{
	{"/proc/", "/none/"},
	{"BASH_VERSINFO[0]", fmt.Sprintf("%16d", 3)},
	{"BASHPID", "NO_PID_"},
	{"read -rN", "read -rX"},
}

// Rewrite replaces what there is; where several fit, the first.
func Rewrite(text string, replacements []Replacement) string {
	done, _ := rewrite([]byte(text), replacements, true)
	return string(done)
}

// RewriteStream does so in a stream. It never holds back more than a text that may be half there, because what is sent to a machine
// is a conversation.
func RewriteStream(source io.Reader, replacements []Replacement) io.Reader {
	return &rewriter{source: source, replacements: replacements}
}

type rewriter struct {
	source       io.Reader
	replacements []Replacement
	ready        []byte // rewritten, not yet read
	held         []byte // may become a text to replace
	err          error
}

func (r *rewriter) Read(p []byte) (int, error) {
	buffer := make([]byte, 32*1024)
	for len(r.ready) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.source.Read(buffer)
		r.ready, r.held = rewrite(append(r.held, buffer[:n]...), r.replacements, err != nil)
		r.err = err
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// rewrite leaves an end that may be the beginning of a text to replace, unless it is the end of everything.
func rewrite(data []byte, replacements []Replacement, all bool) (done, rest []byte) {
	done = make([]byte, 0, len(data))
position:
	for len(data) > 0 {
		for _, r := range replacements {
			if bytes.HasPrefix(data, []byte(r.Old)) {
				done, data = append(done, r.New...), data[len(r.Old):]
				continue position
			}
			if !all && len(data) < len(r.Old) && r.Old[:len(data)] == string(data) {
				return done, data
			}
		}
		done, data = append(done, data[0]), data[1:]
	}
	return done, nil
}
