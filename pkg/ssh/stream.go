package ssh

import (
	"bytes"
	"io"
)

// maxMark bounds a marker line; the longest carries an owner's four fields.
const maxMark = 4 << 10

// splitter takes the remote wrapper's marker lines out of a stream and passes the rest on. What comes before the marker
// "begin" (a login shell's greeting, sudo's complaints) is noise; what comes after the last marker belongs to nobody.
type splitter struct {
	prefix []byte
	// sink receives the script's own output.
	sink io.Writer
	// noise receives what precedes "begin".
	noise keeper
	// mark is told of each marker line, without prefix and newline. It returns true to end the stream.
	mark func(text string) (last bool)

	pending []byte
	begun   bool
	ended   bool
}

func (s *splitter) Write(p []byte) (int, error) {
	if s.ended {
		return len(p), nil
	}
	s.pending = append(s.pending, p...)
	for !s.ended {
		at := bytes.Index(s.pending, s.prefix)
		if at < 0 {
			// The end of what came may be the beginning of a marker.
			keep := overlap(s.pending, s.prefix)
			s.pass(s.pending[:len(s.pending)-keep])
			s.pending = append(s.pending[:0], s.pending[len(s.pending)-keep:]...)
			return len(p), nil
		}
		s.pass(s.pending[:at])
		line := s.pending[at:]
		end := bytes.IndexByte(line, '\n')
		if end < 0 && len(line) <= maxMark {
			s.pending = append(s.pending[:0], line...)
			return len(p), nil
		}
		if end < 0 { // not ours after all
			s.pass(line)
			s.pending = s.pending[:0]
			return len(p), nil
		}
		text := string(line[len(s.prefix):end])
		s.pending = append(s.pending[:0], line[end+1:]...)
		if text == markBegin {
			s.begun = true
		}
		s.ended = s.mark(text)
	}
	s.pending = nil
	return len(p), nil
}

// flush passes on what was held back in case it became a marker; the stream has ended.
func (s *splitter) flush() {
	if !s.ended {
		s.pass(s.pending)
		s.pending, s.ended = nil, true
	}
}

func (s *splitter) pass(p []byte) {
	if len(p) == 0 {
		return
	}
	if s.begun {
		// The sink keeps to memory; a redactor that fails has said so by keeping nothing.
		_, _ = s.sink.Write(p)
		return
	}
	_, _ = s.noise.Write(p)
}

// overlap is the length of the longest end of p that is a beginning of prefix.
func overlap(p, prefix []byte) int {
	for n := min(len(p), len(prefix)-1); n > 0; n-- {
		if bytes.HasPrefix(prefix, p[len(p)-n:]) {
			return n
		}
	}
	return 0
}
