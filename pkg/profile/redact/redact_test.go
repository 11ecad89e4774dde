package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// hard is a secret in which every kind of escaping finds something to do.
const hard = `p'a"s$s \w<o>r&d/+é%20` + "\ttab"

func redacted(t testing.TB, r *Redactor, pieces ...string) string {
	t.Helper()
	var out bytes.Buffer
	w := r.Writer(&out)
	for _, piece := range pieces {
		if n, err := io.WriteString(w, piece); err != nil || n != len(piece) {
			t.Fatalf("Write: %d of %d, %v", n, len(piece), err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return out.String()
}

func TestRedactorHidesEveryForm(t *testing.T) {
	const pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASC\nshort\n-----END KEY-----\n"
	for _, test := range []struct {
		name    string
		secrets []string
		in      string
		want    string
	}{
		{"plain", []string{"abcdef.0123456789abcdef"}, "token abcdef.0123456789abcdef!", "token [REDACTED]!"},
		{"nothing to hide", []string{"0123456789"}, "012345678 is not it", "012345678 is not it"},
		{"too short to hide", []string{"1234567"}, "1234567", "1234567"},
		{"no secrets", nil, "text", "text"},
		{"empty secret", []string{""}, "text", "text"},
		{"a secret of 8", []string{"12345678"}, "x12345678y", "x[REDACTED]y"},
		{"trailing newline of a file is no part of it", []string{"0123456789\n"}, "k=0123456789;", "k=[REDACTED];"},
		{"longest first", []string{"abcdefgh", "abcdefghijkl"}, "abcdefghijkl abcdefgh", "[REDACTED] [REDACTED]"},
		{"suffix of another", []string{"efghijkl", "abcdefghijkl"}, "abcdefghijkl efghijkl", "[REDACTED] [REDACTED]"},
		{"overlapping secrets leave nothing of either", []string{"abcdefghXY", "XYijklmnop"}, "-abcdefghXYijklmnop-", "-[REDACTED]-"},
		{"adjacent secrets", []string{"abcdefgh", "ijklmnop"}, "abcdefghijklmnop", "[REDACTED][REDACTED]"},
		{"a false start before the secret", []string{"aaaaaaab"}, "aaaaaaaaaab", "aaa[REDACTED]"},
		{"a false start that another secret ends in", []string{"abcdefghijXX", "defghijk"}, "abcdefghijk", "abc[REDACTED]"},
		{"a periodic secret is one", []string{"aaaaaaaa"}, "aaaaaaaaaaaaaaaaaaaaaaa", "[REDACTED]"},
		{"single quotes", []string{hard}, `+ token='` + strings.ReplaceAll(hard, `'`, `'\''`) + `'`, "+ token='[REDACTED]'"},
		{"double quotes within single", []string{hard}, `'` + strings.ReplaceAll(hard, `'`, `'"'"'`) + `'`, "'[REDACTED]'"},
		{"JSON", []string{hard}, `{"token":` + jsonOf(hard, true) + `}`, `{"token":"[REDACTED]"}`},
		{"JSON without HTML escapes", []string{hard}, jsonOf(hard, false), `"[REDACTED]"`},
		{"JSON in ASCII", []string{hard}, strconv.QuoteToASCII(hard), `"[REDACTED]"`},
		{"query", []string{hard}, "https://x/?t=" + url.QueryEscape(hard) + "&u=1", "https://x/?t=[REDACTED]&u=1"},
		{"path", []string{hard}, "/" + url.PathEscape(hard) + "/", "/[REDACTED]/"},
		{"lower-case percent", []string{"pass/word=="}, "pass%2fword%3d%3d", "[REDACTED]"},
		{"ANSI-C", []string{"first\nsecond"}, `$'first\nsecond'`, `$'[REDACTED]'`},
		{"ANSI-C in octal", []string{"pässwörd"}, `$'p\303\244ssw\303\266rd'`, `$'[REDACTED]'`},
		{"multi-line, whole", []string{pem}, "x\n" + pem + "y", "x\n[REDACTED]\ny"},
		{"multi-line, a line alone", []string{pem}, "saw MIIEvQIBADANBgkqhkiG here", "saw [REDACTED] here"},
		{"multi-line, indented by others", []string{pem}, "  MIIEvQIBADANBgkqhkiG\n  9w0BAQEFAASC\n  short\n", "  [REDACTED]\n  [REDACTED]\n  short\n"},
		{"multi-line with carriage returns", []string{pem}, strings.ReplaceAll(pem, "\n", "\r\n"), "[REDACTED]\r\n"},
		{"folded", []string{"0123456789abcdef"}, "01234567\n89abcdef", "[REDACTED]"},
		{"of nothing but quotes", []string{`''''''''''`}, `x ''''''''''`, "x [REDACTED]"},
		{"of nothing but quotes, quoted", []string{`""""""""`}, `"\"\"\"\"\"\"\"\""`, `"[REDACTED]"`},
		{"cut off at the end", []string{"0123456789abcdef"}, "x 0123456789ab", "x [REDACTED]"},
		{"cut off too early to tell", []string{"0123456789abcdef"}, "x 0123", "x 0123"},
		{"not UTF-8", []string{"\xff\xfe234567\x80"}, "a\xff\xfe234567\x80b", "a[REDACTED]b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := New(test.secrets...)
			if got := r.String(test.in); got != test.want {
				t.Errorf("String(%q)\n got %q\nwant %q", test.in, got, test.want)
			}
			if got := redacted(t, r, strings.Split(test.in, "")...); got != test.want {
				t.Errorf("byte by byte %q\n got %q\nwant %q", test.in, got, test.want)
			}
		})
	}
}

func jsonOf(text string, html bool) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(html)
	_ = encoder.Encode(text)
	return strings.TrimSuffix(out.String(), "\n")
}

func TestRedactorHidesBase64AtEveryAlignment(t *testing.T) {
	const secret = "0123456789abcdef"
	r := New(secret)
	for before := range 7 {
		for after := range 4 {
			text := strings.Repeat("?", before) + secret + strings.Repeat("~", after)
			for name, encoding := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.URLEncoding, "raw": base64.RawStdEncoding} {
				encoded := encoding.EncodeToString([]byte(text))
				got := r.String(encoded)
				if !strings.Contains(got, mask) || longestShared(encoded, got) > before*8/6+after*8/6+6 {
					t.Errorf("%s, %d before, %d after: %q became %q", name, before, after, encoded, got)
				}
			}
		}
	}
}

// longestShared is the length of the longest run that both texts have.
func longestShared(a, b string) int {
	longest := 0
	for i := range a {
		for j := i + longest + 1; j <= len(a) && strings.Contains(b, a[i:j]); j++ {
			longest = j - i
		}
	}
	return longest
}

func TestRedactorHidesFoldedBase64(t *testing.T) {
	secret := strings.Repeat("The quick brown fox. ", 20)
	encoded := base64.StdEncoding.EncodeToString([]byte("user:" + secret))
	for _, columns := range []int{20, 64, 76} {
		var folded strings.Builder
		for line := range slicesOf(encoded, columns) {
			folded.WriteString(line + "\n")
		}
		got := New(secret).String(folded.String())
		if strings.Count(got, mask) != 1 || len(got) > 30 {
			t.Errorf("folded at %d: %q", columns, got)
		}
	}
}

func slicesOf(text string, size int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for start := 0; start < len(text); start += size {
			if !yield(text[start:min(len(text), start+size)]) {
				return
			}
		}
	}
}

// What bash itself makes of a secret under xtrace and %q (section 3 #30).
func TestRedactorHidesWhatBashPrints(t *testing.T) {
	for _, secret := range []string{"plain-0123456789", hard, "line one\nline two\n", "dollar$(id)`id`!~#", "tab\tand\x1besc\x01end"} {
		script := `set -x; : "$S"; : "pre$S-post"; export T="$S"; set +x; printf '%q\n' "$S"; echo "${S@Q}"; declare -p S; echo "$S" | base64; printf x%s "$S" | base64 -w0`
		for _, locale := range []string{"C", "C.UTF-8"} {
			cmd := exec.Command("bash", "-c", script)
			cmd.Env = []string{"S=" + secret, "LC_ALL=" + locale, "PATH=/usr/bin:/bin"}
			raw, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("bash: %v\n%s", err, raw)
			}
			got := New(secret).String(string(raw))
			// Nothing of 5 letters that the secret has may be left.
			for i := 0; i+5 <= len(secret); i++ {
				if piece := secret[i : i+5]; strings.Contains(got, piece) && piece != "print" {
					t.Errorf("%q, %s: %q is left of\n%s\nin\n%s", secret, locale, piece, raw, got)
				}
			}
			if count := strings.Count(got, mask); count < 8 {
				t.Errorf("%q, %s: %d masks in\n%s\nof\n%s", secret, locale, count, got, raw)
			}
		}
	}
}

func TestRedactorIsIndifferentToSplits(t *testing.T) {
	r := New("abcdefgh", "efghijklmnop", "aaaaaaaaaa", "line one\nline two")
	text := "x abcdefghijklmnop aaaaaaaaaaaaaaaa abcdefg'h' line one\r\nline two abcdefabcdefgh" + base64.StdEncoding.EncodeToString([]byte("zabcdefghz"))
	want := r.String(text)
	for i := range text {
		for j := i; j < len(text); j++ {
			if got := redacted(t, r, text[:i], text[i:j], text[j:]); got != want {
				t.Fatalf("split at %d and %d:\n got %q\nwant %q", i, j, got, want)
			}
		}
	}
}

// A machine chooses what it prints; it must not choose how much memory the controller holds.
func TestRedactorMemoryIsBounded(t *testing.T) {
	for _, pattern := range []string{"a", "'", "a'", "\n", "aaaaaaab", "0123456789abcde"} {
		w := New("aaaaaaaaaaaaaaaa", "0123456789abcdef").writer(io.Discard)
		block := []byte(strings.Repeat(pattern, 64<<10/len(pattern)))
		for range 64 {
			if _, err := w.Write(block); err != nil {
				t.Fatal(err)
			}
		}
		if held := cap(w.buffer) + cap(w.ready) + 8*(cap(w.tracks[0].at)+2*cap(w.spans)); held > 512<<10 {
			t.Errorf("%q: %d bytes held", pattern, held)
		}
	}
}

func TestRedactorPassesOnErrors(t *testing.T) {
	broken := errors.New("broken pipe")
	w := New("0123456789").Writer(failing{broken})
	if _, err := io.WriteString(w, "some text"); !errors.Is(err, broken) {
		t.Errorf("Write: %v", err)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("Close: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzRedactor: no form of a secret survives, however it is split into writes.
func FuzzRedactor(f *testing.F) {
	f.Add("0123456789abcdef", "before ", " after", uint64(3))
	f.Add(hard, "'", "'", uint64(77))
	f.Add("two lines\nof secret", "\n", "\n", uint64(1<<40))
	f.Add(`''''''''"""""""\\\\\\\\`, "x", "y", uint64(5))
	f.Add("aaaaaaaaaaaa", "aaaa", "aaaaab", uint64(9))
	f.Fuzz(func(t *testing.T, secret, before, after string, seed uint64) {
		secret = strings.TrimSpace(secret)
		if len(secret) < minSecret || len(secret) > 4096 || strings.ContainsAny(secret, "[]\x00") || strings.Contains(mask, secret) {
			return // with brackets in it, a secret can come into being around a mask
		}
		r := New(secret)
		for name, form := range formsOf(secret, before, after) {
			text := before + form + after
			want := r.String(text)
			if strings.Contains(want, form) {
				t.Fatalf("%s of %q survives in %q", name, secret, want)
			}
			var pieces []string
			for rest, state := text, seed; rest != ""; {
				state = state*6364136223846793005 + 1442695040888963407
				size := min(len(rest), int(state>>60))
				pieces, rest = append(pieces, rest[:size]), rest[size:]
			}
			if got := redacted(t, r, pieces...); got != want {
				t.Fatalf("%s of %q: in pieces %q, at once %q", name, secret, got, want)
			}
		}
	})
}

// formsOf are independent encoders: not those that the patterns are made with.
func formsOf(secret, before, after string) map[string]string {
	forms := map[string]string{
		"plain":        secret,
		"single quote": strings.ReplaceAll(secret, `'`, `'\''`),
		"double quote": strings.NewReplacer(`"`, `\"`, `$`, `\$`, "`", "\\`", `\`, `\\`).Replace(secret),
		"query":        url.QueryEscape(secret),
		"path":         url.PathEscape(secret),
	}
	if encoded := jsonOf(secret, true); strings.ToValidUTF8(secret, "") == secret {
		forms["JSON"] = encoded[1 : len(encoded)-1]
	}
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		encoded := encoding.EncodeToString([]byte(before + secret + after))
		from, to := (len(before)*8+5)/6, (len(before)+len(secret))*8/6
		forms[fmt.Sprintf("base64 %p", encoding)] = encoded[from:to]
	}
	for i, line := range strings.Split(secret, "\n") {
		if line = strings.TrimSpace(line); len(line) >= minSecret {
			forms[fmt.Sprintf("line %d", i)] = line
		}
	}
	return forms
}

func BenchmarkRedactorWrite(b *testing.B) {
	output := []byte(strings.Repeat("Get:1 http://deb.debian.org/debian bookworm/main amd64 containerd amd64 1.6.20 [25.9 MB]\n", 368))
	for name, secrets := range map[string][]string{
		"token": {"abcdef.0123456789abcdef", "0123456789abcdef"},
		"large": {"abcdef.0123456789abcdef", strings.Repeat("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n", 1000)},
	} {
		b.Run(name, func(b *testing.B) {
			w := New(secrets...).Writer(io.Discard)
			_, _ = w.Write(output)
			b.SetBytes(int64(len(output)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = w.Write(output)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		New("abcdef.0123456789abcdef", "0123456789abcdef", "a-join-secret-of-usual-length")
	}
}

func BenchmarkRedactorString(b *testing.B) {
	r := New("abcdef.0123456789abcdef", "0123456789abcdef")
	text := strings.Repeat("an error message without secrets ", 20)
	b.ReportAllocs()
	for b.Loop() {
		_ = r.String(text)
	}
}

// The steady state of a stream that holds no secret costs no allocation per write.
func TestRedactorWritesWithoutAllocating(t *testing.T) {
	w := New("abcdef.0123456789abcdef").Writer(io.Discard)
	line := []byte("abcdef.01234 looks like a token, 'but' is none\n")
	_, _ = w.Write(line)
	if allocs := testing.AllocsPerRun(100, func() { _, _ = w.Write(line) }); allocs > 0 {
		t.Errorf("%v allocations per write", allocs)
	}
}
