package ssh

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Defaults of how much of each stream is kept. A failed script's cause is at the end, how it came to it at the beginning.
const (
	defaultHead = 16 << 10
	defaultTail = 48 << 10
)

// Output is what a stream carried, bounded: its head and its tail are kept whatever its length. It is safe to copy.
type Output struct {
	head, tail string
	total      int64
}

// NewOutput is a stream that carried this text, for stand-ins of machines.
func NewOutput(text string) Output { return Output{head: text, total: int64(len(text))} }

// Total is the number of bytes that the stream carried, kept or not.
func (o Output) Total() int64 { return o.total }

// Truncated tells whether bytes in the middle were dropped.
func (o Output) Truncated() bool { return int64(len(o.head)+len(o.tail)) < o.total }

// String is the text: all of it, or head and tail with a line between them that says how many bytes are missing. It is valid
// UTF-8: no rune is cut in two, and bytes that are not UTF-8 become U+FFFD.
func (o Output) String() string {
	if !o.Truncated() {
		return valid(o.head + o.tail)
	}
	head, tail := cutEnd(o.head), cutStart(o.tail)
	return valid(head) + fmt.Sprintf("\n[... %d bytes omitted ...]\n", o.total-int64(len(head)+len(tail))) + valid(tail)
}

// Tail is at most n bytes from the end, surrounding white space aside, beginning at a whole rune.
func (o Output) Tail(n int) string {
	text := o.head + o.tail
	if o.Truncated() {
		text = cutStart(o.tail)
	}
	text = strings.TrimSpace(valid(text))
	if len(text) <= n {
		return text
	}
	return cutStart(text[len(text)-n:])
}

func valid(s string) string { return strings.ToValidUTF8(s, "�") }

// cutStart drops the rest of a rune whose beginning is missing.
func cutStart(s string) string {
	n := 0
	for n < len(s) && n < utf8.UTFMax-1 && !utf8.RuneStart(s[n]) {
		n++
	}
	return s[n:]
}

// cutEnd drops the beginning of a rune whose rest is missing.
func cutEnd(s string) string {
	for i := len(s) - 1; i >= 0 && i >= len(s)-utf8.UTFMax; i-- {
		if utf8.RuneStart(s[i]) {
			if !utf8.FullRuneInString(s[i:]) {
				return s[:i]
			}
			break
		}
	}
	return s
}

// keeper is an io.Writer that keeps the head and the tail of what is written, in memory that never grows beyond both.
type keeper struct {
	headCap, tailCap int
	head             []byte
	ring             []byte // the tail, as a ring once it is full
	next             int    // where the ring is written next
	total            int64
}

func (k *keeper) Write(p []byte) (int, error) {
	written := len(p)
	k.total += int64(written)
	if room := k.headCap - len(k.head); room > 0 {
		n := min(room, len(p))
		k.head = append(k.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > k.tailCap {
		p = p[len(p)-k.tailCap:]
	}
	if room := k.tailCap - len(k.ring); room > 0 {
		n := min(room, len(p))
		k.ring = append(k.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(k.ring[k.next:], p)
		k.next = (k.next + n) % len(k.ring)
		p = p[n:]
	}
	return written, nil
}

func (k *keeper) output() Output {
	return Output{head: string(k.head), tail: string(k.ring[k.next:]) + string(k.ring[:k.next]), total: k.total}
}
