package ssh

import (
	"io"
	"strings"
	"sync"
)

// noiseCap bounds what is kept, at each end, of what a stream carries before the script.
const noiseCap = 2 << 10

// stream is one of a run's two output streams. Its reader writes; whoever ends the run calls finish.
type stream struct {
	mu    sync.Mutex
	split splitter
	kept  *keeper
	sink  io.WriteCloser
	ended bool
}

// newStream passes marker lines to mark, on the reader's goroutine.
func newStream(e errand, kept options, mark func(string)) *stream {
	s := &stream{kept: &keeper{headCap: kept.head, tailCap: kept.tail}}
	s.sink = nopCloser{s.kept}
	if kept.redact != nil {
		s.sink = kept.redact(s.kept)
	}
	s.split = splitter{
		prefix: []byte(e.prefix()),
		sink:   s.sink,
		noise:  keeper{headCap: noiseCap, tailCap: noiseCap},
		begun:  kept.whole,
		mark: func(text string) bool {
			mark(text)
			return isLast(text)
		},
	}
	return s
}

// Write never fails: what nobody wants any more is dropped, so that the machine is not blocked on it.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return len(p), nil
	}
	return s.split.Write(p)
}

func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.split.flush()
	}
}

// finish ends the stream and tells what it carried.
func (s *stream) finish() Output {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.split.flush()
		s.ended = true
		// A filter that cannot give up its rest keeps it to itself.
		_ = s.sink.Close()
	}
	return s.kept.output()
}

// noise is what the stream carried before the script, in one line.
func (s *stream) noise() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(strings.Fields(s.split.noise.output().Tail(noiseCap)), " ")
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
