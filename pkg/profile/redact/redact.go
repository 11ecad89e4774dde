// Package redact hides secrets in the output of scripts. It decides which forms of a secret count as the secret, and writes nothing of
// its own. It depends on the standard library only, so that its fuzz target builds in seconds.
package redact

import (
	"io"
	"strings"
)

const (
	// minSecret is the shortest value, in bytes, that is hidden. Shorter ones would blank out ordinary words.
	minSecret = 8
	// mask stands where a secret was.
	mask = "[REDACTED]"
	// window is how many bytes are looked at before what is settled is passed on; it bounds the memory of a writer.
	window = 4 << 10
)

// Redactor hides secrets in text, in every form that scripts commonly print them: as they are, quoted for a shell, escaped for JSON or
// a URL, in base64 at any alignment and folded at any column, whole or line by line. It works on the stream, so that a secret is never
// cut in two by a write's end or by truncation before it is looked for. All bytes that belong to any secret are hidden; where several
// overlap, one mask stands for all of them.
//
// A Redactor is immutable and may be used by many at once.
type Redactor struct {
	automata []*automaton
}

// New makes a Redactor. Values of fewer than 8 bytes are not hidden.
func New(secrets ...string) *Redactor {
	lax, exact := patterns(secrets)
	r := &Redactor{}
	if len(lax) > 0 {
		r.automata = append(r.automata, compile(lax, quoting, longestRun(secrets)))
	}
	if len(exact) > 0 {
		r.automata = append(r.automata, compile(exact, "", 0))
	}
	return r
}

// String hides secrets in a text that is complete.
func (r *Redactor) String(text string) string {
	if len(r.automata) == 0 || text == "" {
		return text
	}
	var out strings.Builder
	w := r.writer(&out)
	_, _ = io.WriteString(w, text) // a Builder never fails
	_ = w.Close()
	if !w.hidden {
		return text
	}
	return out.String()
}

// Writer hides secrets in what passes through to out. It holds back what may be the beginning of a secret until more is written or it
// is closed; Close does not close out. A secret that breaks off at the end is hidden too, from 8 bytes on. The writer is for one
// goroutine; errors are those of out.
func (r *Redactor) Writer(out io.Writer) io.WriteCloser { return r.writer(out) }

func (r *Redactor) writer(out io.Writer) *redacting {
	w := &redacting{out: out, tracks: make([]track, len(r.automata))}
	for i := range w.tracks {
		w.tracks[i].automaton = r.automata[i]
	}
	return w
}

// span is a stretch of a writer's buffer.
type span struct{ start, end int }

// track is one automaton's place in the stream.
type track struct {
	*automaton
	node int32
	// run counts skipped bytes in a row.
	run int
	// at are the buffer offsets of the bytes that led from the root to node, and perhaps of some before them.
	at []int
}

// begin is where in the buffer the pattern that may be under way begins.
func (t *track) begin() int { return t.at[len(t.at)-int(t.nodes[t.node].depth)] }

type redacting struct {
	out    io.Writer
	tracks []track
	// buffer is what has not been passed on.
	buffer []byte
	// spans are the secrets found in buffer, ascending, none touching another's bytes.
	spans []span
	// begun says that the mask of the first span has been passed on already.
	begun bool
	// hidden says that something was.
	hidden bool
	ready  []byte
	err    error
}

func (w *redacting) Write(p []byte) (int, error) {
	if len(w.tracks) == 0 {
		return w.out.Write(p)
	}
	written := 0
	for written < len(p) && w.err == nil {
		piece := p[written:min(len(p), written+window)]
		from := len(w.buffer)
		w.buffer = append(w.buffer, piece...)
		for i := range w.tracks {
			w.scan(&w.tracks[i], from)
		}
		w.pass(w.settled())
		written += len(piece)
	}
	if w.err != nil {
		return 0, w.err
	}
	return written, nil
}

func (w *redacting) Close() error {
	for i := range w.tracks {
		t := &w.tracks[i]
		if t.nodes[t.node].depth >= minSecret {
			w.hide(t.begin(), t.at[len(t.at)-1]+1)
		}
		t.node, t.at = root, t.at[:0]
	}
	w.pass(len(w.buffer))
	return w.err
}

// scan looks at buffer from an offset on.
func (w *redacting) scan(t *track, from int) {
	for i, b := range w.buffer[from:] {
		if t.skip[b] {
			if t.run++; t.run > t.maxRun {
				t.node, t.at = root, t.at[:0]
			}
			continue
		}
		t.run = 0
		if t.node = t.next(t.node, b); t.node == root {
			t.at = t.at[:0]
			continue
		}
		t.at = append(t.at, from+i)
		if length := t.nodes[t.node].match; length > 0 {
			w.hide(t.at[len(t.at)-int(length)], from+i+1)
		}
	}
}

// hide adds a span, merged with those that it shares bytes with.
func (w *redacting) hide(start, end int) {
	w.hidden = true
	last := len(w.spans)
	for last > 0 && w.spans[last-1].start >= end {
		last--
	}
	first := last
	for first > 0 && w.spans[first-1].end > start {
		first--
		start, end = min(start, w.spans[first].start), max(end, w.spans[first].end)
	}
	if first == last {
		w.spans = append(w.spans, span{})
		copy(w.spans[first+1:], w.spans[first:])
		w.spans[first] = span{start, end}
		return
	}
	w.spans[first] = span{start, end}
	w.spans = append(w.spans[:first+1], w.spans[last:]...)
}

// settled is the offset before which no secret can begin that has not been found.
func (w *redacting) settled() int {
	offset := len(w.buffer)
	for i := range w.tracks {
		if t := &w.tracks[i]; t.node != root {
			offset = min(offset, t.begin())
		}
	}
	return offset
}

// pass hands buffer up to an offset on, with masks for spans, and drops it. Of a span that reaches further only the mask is passed on,
// once, so that a secret that goes on and on needs no memory.
func (w *redacting) pass(offset int) {
	w.ready = w.ready[:0]
	done, kept := 0, 0
	for i, s := range w.spans {
		if s.start >= offset {
			break
		}
		w.ready = append(w.ready, w.buffer[done:s.start]...)
		if i > 0 || !w.begun {
			w.ready = append(w.ready, mask...)
		}
		done = min(s.end, offset)
		if w.begun = s.end > offset; w.begun {
			break
		}
		kept = i + 1
	}
	w.ready = append(w.ready, w.buffer[done:offset]...)
	if len(w.ready) > 0 && w.err == nil {
		_, w.err = w.out.Write(w.ready)
	}

	w.buffer = append(w.buffer[:0], w.buffer[offset:]...)
	w.spans = append(w.spans[:0], w.spans[kept:]...)
	for i := range w.spans {
		w.spans[i] = span{max(0, w.spans[i].start-offset), w.spans[i].end - offset}
	}
	for i := range w.tracks {
		t := &w.tracks[i]
		t.at = append(t.at[:0], t.at[len(t.at)-int(t.nodes[t.node].depth):]...)
		for j := range t.at {
			t.at[j] -= offset
		}
	}
}
