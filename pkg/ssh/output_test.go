package ssh

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestKeeperKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   string
		want string
		tail string // Tail(4)
	}{
		"empty":             {},
		"short":             {in: "abc", want: "abc", tail: "abc"},
		"exactly both":      {in: "abcd123456", want: "abcd123456", tail: "3456"},
		"one too many":      {in: "abcdX123456", want: "abcd\n[... 1 bytes omitted ...]\n123456", tail: "3456"},
		"runes at the cuts": {in: "abcä" + strings.Repeat("-", 20) + "öäüßx", want: "abc\n[... 26 bytes omitted ...]\nüßx", tail: "ßx"},
		"not UTF-8":         {in: "a\xffb\n", want: "a�b\n", tail: "�b"},
	} {
		for chunk := 1; chunk <= max(len(tc.in), 1); chunk++ {
			k := keeper{headCap: 4, tailCap: 6}
			for at := 0; at < len(tc.in); at += chunk {
				if n, err := k.Write([]byte(tc.in[at:min(at+chunk, len(tc.in))])); n == 0 || err != nil {
					t.Fatal(n, err)
				}
			}
			out := k.output()
			if got := out.String(); got != tc.want || out.Total() != int64(len(tc.in)) {
				t.Errorf("%s in pieces of %d: %q, want %q", name, chunk, got, tc.want)
			}
			if got := out.Tail(4); got != tc.tail {
				t.Errorf("%s in pieces of %d: tail %q, want %q", name, chunk, got, tc.tail)
			}
		}
	}
}

func TestOutputIsValidTextWhereverItIsCut(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("aä€😀", 50)
	for head := range 12 {
		for tail := range 12 {
			k := keeper{headCap: head, tailCap: tail}
			_, _ = k.Write([]byte(text))
			out := k.output()
			for n := range 12 {
				if got := out.String() + out.Tail(n); !utf8.ValidString(got) || strings.ContainsRune(got, utf8.RuneError) {
					t.Fatalf("head %d, tail %d, last %d: %q", head, tail, n, got)
				}
			}
		}
	}
}

// splitIn feeds a text to a splitter in pieces and tells what came of it.
func splitIn(text string, piece func() int) (out, noise string, marks []string) {
	var sink bytes.Buffer
	s := splitter{prefix: []byte("@kpssh-00ff "), sink: &sink, noise: keeper{headCap: 100, tailCap: 100}}
	s.mark = func(text string) bool { marks = append(marks, text); return isLast(text) }
	for len(text) > 0 {
		n := min(piece(), len(text))
		_, _ = s.Write([]byte(text[:n]))
		text = text[n:]
	}
	s.flush()
	return sink.String(), s.noise.output().String(), marks
}

func TestMarkersAreFoundWhereverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	m := "@kpssh-00ff "
	for name, tc := range map[string]struct{ in, out, noise, marks string }{
		"plain":                        {in: m + "begin\nhello\n" + m + "exit 0\n", out: "hello\n", marks: "begin,exit 0"},
		"no newline before a marker":   {in: m + "begin\nhello" + m + "exit 0\n", out: "hello", marks: "begin,exit 0"},
		"greeting":                     {in: "Welcome\n" + m + "shell\nmore\n" + m + "begin\nx" + m + "exit 0\n", out: "x", noise: "Welcome\nmore\n", marks: "shell,begin,exit 0"},
		"what comes after is nobody's": {in: m + "begin\n" + m + "exit 0\nlater" + m + "exit 1\n", marks: "begin,exit 0"},
		"almost a marker":              {in: m + "begin\n@kpssh-00fe exit 0\n@@kpssh-00f@kpssh-" + m + "exit 0\n", out: "@kpssh-00fe exit 0\n@@kpssh-00f@kpssh-", marks: "begin,exit 0"},
		"an end that looks like one":   {in: m + "begin\nx@kpssh-00", out: "x@kpssh-00", marks: "begin"},
		"a marker cut short":           {in: m + "begin\nx" + m + "exi", out: "x" + m + "exi", marks: "begin"},
		"a line too long to be one":    {in: m + "begin\n" + m + strings.Repeat("y", 2*maxMark) + "\n", out: m + strings.Repeat("y", 2*maxMark) + "\n", marks: "begin"},
		"never begun":                  {in: "only noise", noise: "only noise"},
	} {
		for size := 1; size < 60; size++ {
			out, noise, marks := splitIn(tc.in, func() int { return size })
			if name == "a line too long to be one" && size == 1 {
				// The verdict falls when the line has grown too long; the rest is output all the same.
				out = strings.TrimSpace(out) + "\n"
			}
			if out != tc.out || noise != tc.noise || strings.Join(marks, ",") != tc.marks {
				t.Fatalf("%s in pieces of %d: %q, noise %q, marks %v", name, size, out, noise, marks)
			}
		}
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add("x@kpssh-00ff begin\nabc@kpssh-00ff exit 0\n", uint64(1))
	f.Add("@kpssh-00ff begin\n@kpssh-00ff @kpssh-00ff exit 0\n", uint64(7))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if len(text) > maxMark { // beyond, a marker's length depends on where the stream was cut
			return
		}
		whole, wholeNoise, wholeMarks := splitIn(text, func() int { return len(text) })
		random := rand.New(rand.NewPCG(seed, 0)) // pieces, not secrets
		out, noise, marks := splitIn(text, func() int { return 1 + random.IntN(20) })
		if out != whole || noise != wholeNoise || strings.Join(marks, "\n") != strings.Join(wholeMarks, "\n") {
			t.Fatalf("cut %q %q %q, whole %q %q %q", out, noise, marks, whole, wholeNoise, wholeMarks)
		}
	})
}
