package plugin

import (
	"strings"
	"testing"
)

// An edit changes its lines and no others.
func TestSet(t *testing.T) {
	for name, row := range map[string]struct{ before, after string }{
		"a new mapping at the end":   {"spec:\n  a: 1\n", "spec:\n  a: 1\n  signatures:\n    join: |\n      x\n      y\n"},
		"no newline at the end":      {"spec:\n  a: 1", "spec:\n  a: 1\n  signatures:\n    join: |\n      x\n      y\n"},
		"something after spec":       {"spec:\n  a: 1\n\nstatus: {}\n", "spec:\n  a: 1\n  signatures:\n    join: |\n      x\n      y\n\nstatus: {}\n"},
		"deep indentation":           {"spec:\n      a: 1\n", "spec:\n      a: 1\n      signatures:\n        join: |\n          x\n          y\n"},
		"another phase's is kept":    {"spec:\n  signatures:\n    # install's\n    install: z\n  b: 1\n", "spec:\n  signatures:\n    # install's\n    install: z\n    join: |\n      x\n      y\n  b: 1\n"},
		"an old one goes":            {"spec:\n  signatures:\n    join: |\n      old\n\n      lines\n    # leave's\n    leave: z\n", "spec:\n  signatures:\n    join: |\n      x\n      y\n    # leave's\n    leave: z\n"},
		"an old one on one line":     {"spec:\n  signatures:\n    join: \"old\"\n# end\n", "spec:\n  signatures:\n    join: |\n      x\n      y\n# end\n"},
		"empty braces":               {"spec:\n  signatures: {}\n  b: 1\n", "spec:\n  signatures:\n    join: |\n      x\n      y\n  b: 1\n"},
		"nothing":                    {"spec:\n  signatures:\n  b: 1\n", "spec:\n  signatures:\n    join: |\n      x\n      y\n  b: 1\n"},
		"no spec":                    {"a: 1\n", "a: 1\nspec:\n  signatures:\n    join: |\n      x\n      y\n"},
		"a script's last comment":    {"spec:\n  s: |\n    a\n    # b\n# c\n", "spec:\n  s: |\n    a\n    # b\n  signatures:\n    join: |\n      x\n      y\n# c\n"},
		"an end of three dots":       {"---\nspec:\n  a: 1\n...\n", "---\nspec:\n  a: 1\n  signatures:\n    join: |\n      x\n      y\n...\n"},
		"braces around it":           {"spec: {a: 1}\n", ""},
		"braces around everything":   {"{spec: {a: 1}}\n", ""},
		"a list":                     {"- spec\n", ""},
		"signatures that are a text": {"spec:\n  signatures: x\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := setText(row.before, []string{"spec", "signatures", "join"}, "x\ny\n")
			if row.after == "" {
				says(t, err, "lines of its own")
			} else if err != nil || got != row.after {
				t.Errorf("%v, got:\n%s", err, got)
			}
		})
	}
}

// What an edit would change besides is noticed: a text that keeps its empty lines at the end would lose them.
func TestEditsThatSpoilAreRefused(t *testing.T) {
	const before = "spec:\n  scripts:\n    join: |+\n      a\n\n"
	after, err := setText(before, []string{"spec", "signatures", "join"}, "x\n")
	if err != nil || sameBut(before, after) {
		t.Errorf("%v; not noticed:\n%s", err, after)
	}
}

// A file is its documents, byte for byte.
func TestSplit(t *testing.T) {
	for text, want := range map[string]int{
		"": 1, "a: 1\n": 1, "a: 1\n---\nb: 1\n": 2, "---\na: 1\n--- # b\nb: 1\n---": 4, "a: |\n  --- x\n---\r\nb: 1\r\n": 2, "-----BEGIN\n": 1,
	} {
		parts := split(text)
		if len(parts) != want || strings.Join(parts, "") != text {
			t.Errorf("%q: %q", text, parts)
		}
	}
}
