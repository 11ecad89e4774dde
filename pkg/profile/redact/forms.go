package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// quoting are the bytes by which shells and JSON quote, and at which long text is folded. Patterns are looked for with these bytes left
// out of both pattern and text. That covers every mixture of '\”, '"'"', \-escapes, double quotes and folds, whichever tool did it and
// whichever characters it thinks need quoting.
const quoting = "'\"\\\r\n"

// patterns are the forms of all secrets: lax ones are looked for without regard to quoting; exact ones belong to secrets that are
// made of little else than quotes.
func patterns(secrets []string) (lax, exact []string) {
	seen := map[string]bool{}
	add := func(list *[]string, form string) {
		if len(form) >= minSecret && !seen[form] {
			seen[form] = true
			*list = append(*list, form)
		}
	}
	plain := func(text string) {
		for _, form := range escapes(text) {
			if bare := unquoted(form); len(bare) >= minSecret {
				add(&lax, bare)
				continue
			}
			for _, quoted := range shellQuoted(form) {
				add(&exact, quoted)
			}
		}
	}
	for _, secret := range secrets {
		// Secrets made from files end in a newline, which scripts strip.
		if trimmed := strings.TrimSpace(secret); len(trimmed) >= minSecret {
			secret = trimmed
		}
		if len(secret) < minSecret {
			continue
		}
		plain(secret)
		for _, form := range base64Forms(secret) {
			add(&lax, form)
		}
		for line := range strings.Lines(secret) {
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				plain(line)
			}
		}
	}
	return lax, exact
}

// longestRun is how many quoting bytes in a row may stand within a secret: enough for each of the secret's own to be escaped several
// times over, and for a fold.
func longestRun(secrets []string) int {
	longest, run := 0, 0
	for _, secret := range secrets {
		for _, b := range []byte(secret) {
			if strings.IndexByte(quoting, b) < 0 {
				run = 0
				continue
			}
			run++
			longest = max(longest, run)
		}
		run = 0
	}
	return 64 + 8*longest
}

func unquoted(text string) string {
	// By bytes, for a secret need not be UTF-8.
	bare := make([]byte, 0, len(text))
	for _, b := range []byte(text) {
		if strings.IndexByte(quoting, b) < 0 {
			bare = append(bare, b)
		}
	}
	return string(bare)
}

// escapes are the forms in which a byte becomes other bytes: as it is, in $'…', in JSON, in a URL.
func escapes(text string) []string {
	forms := []string{text, ansiC(text, false), ansiC(text, true), asciiJSON(text)}
	var buffer strings.Builder
	for _, html := range []bool{false, true} {
		buffer.Reset()
		encoder := json.NewEncoder(&buffer)
		encoder.SetEscapeHTML(html)
		if encoder.Encode(text) == nil {
			forms = append(forms, strings.Trim(buffer.String(), "\"\n"))
		}
	}
	// What is left alone: by RFC 3986, JavaScript, Python; in a path by Go, in a whole URL by JavaScript.
	for _, safe := range []string{"-_.~", "-_.~!*'()", "-_.~/", "-_.~$&+:=@", "-_.~$&+:=@;,/?!*'()#"} {
		for _, digits := range []string{"%%%02X", "%%%02x"} {
			for _, space := range []string{"%20", "+"} {
				forms = append(forms, percent(text, safe, digits, space))
			}
		}
	}
	return forms
}

func percent(text, safe, digits, space string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		switch {
		case b == ' ':
			out.WriteString(space)
		case alphanumeric(b) || strings.IndexByte(safe, b) >= 0:
			out.WriteByte(b)
		default:
			fmt.Fprintf(&out, digits, b)
		}
	}
	return out.String()
}

func alphanumeric(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// ansiC is bash's $'…', which xtrace and printf %q use for text with control characters; octal says whether bytes above 127 are
// escaped, as they are where the locale is C.
func ansiC(text string, octal bool) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if letter := strings.IndexByte("\x1b\a\b\f\n\r\t\v", b); letter >= 0 {
			out.WriteString(`\` + "Eabfnrtv"[letter:letter+1])
		} else if b < ' ' || b == 0x7f || octal && b > 0x7f {
			fmt.Fprintf(&out, `\%03o`, b)
		} else if b == '\'' || b == '\\' {
			out.WriteString(`\` + string(rune(b)))
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}

// asciiJSON is JSON as Python and jq -a print it: nothing but ASCII.
func asciiJSON(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch letter := strings.IndexRune("\b\f\n\r\t", r); {
		case letter >= 0:
			out.WriteString(`\` + "bfnrt"[letter:letter+1])
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case r < ' ' || r > 0x7e:
			fmt.Fprintf(&out, `\u%04x`, r)
		case r == '"' || r == '\\':
			out.WriteString(`\` + string(r))
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// shellQuoted are the exact quotings of a text.
func shellQuoted(text string) []string {
	backslashed := func(special string) string {
		var out strings.Builder
		for _, b := range []byte(text) {
			if strings.IndexByte(special, b) >= 0 {
				out.WriteByte('\\')
			}
			out.WriteByte(b)
		}
		return out.String()
	}
	return []string{
		text,
		strings.ReplaceAll(text, `'`, `'\''`),
		strings.ReplaceAll(text, `'`, `'"'"'`),
		backslashed("\t !\"$&'()*,;<>?[\\]^`{|}"),
		backslashed("\"$\\`"),
		backslashed(`"\`),
		backslashed(`'\`),
	}
}

// base64Forms are what base64 of any text that holds the secret has in it: one form for each place in a group of three bytes that the
// secret may begin at, less the digits at both ends that depend on the neighbours.
func base64Forms(secret string) []string {
	var forms []string
	for before := range 3 {
		padded := append(make([]byte, before), secret...)
		from, to := (before*8+5)/6, len(padded)*8/6
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, encoding.EncodeToString(padded)[from:to])
		}
	}
	return forms
}
