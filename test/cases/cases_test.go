package cases

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A row of README.md, and how tests name a case.
var (
	row      = regexp.MustCompile(`(?m)^\| ([A-H][0-9]+|section [23] #[0-9]+) \|`)
	lettered = regexp.MustCompile(`\b[A-H][0-9]{1,2}\b`)
	numbered = regexp.MustCompile(`(?i)\bsection ([23]) (#[0-9]+(?:, #[0-9]+)*)`)
)

// named is the cases that a text names.
func named(text string) []string {
	found := lettered.FindAllString(text, -1)
	for _, match := range numbered.FindAllStringSubmatch(text, -1) {
		for _, number := range strings.Split(match[2], ", ") {
			found = append(found, "section "+match[1]+" "+number)
		}
	}
	return found
}

func TestNamed(t *testing.T) {
	for text, want := range map[string]string{
		"// D16: fifty claims":                "D16",
		"func TestD16OneClaim(":               "", // no word of its own: such tests say it in a comment too
		"(section 3 #23)":                     "section 3 #23",
		"// A6, Section 3 #1, #2: a slow one": "A6 section 3 #1 section 3 #2",
		"issue 5 #7: a window":                "",
	} {
		if got := strings.Join(named(text), " "); got != want {
			t.Errorf("%q names %q, want %q", text, got, want)
		}
	}
}

// Every case that is listed has a test that names it, and no test names a case, by its section, that is not listed.
func TestEveryCaseHasATest(t *testing.T) {
	index, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{}
	for _, match := range row.FindAllStringSubmatch(string(index), -1) {
		if _, twice := tests[match[1]]; twice {
			t.Errorf("%s is listed twice", match[1])
		}
		tests[match[1]] = nil
	}
	if len(tests) < 100 {
		t.Fatalf("%d cases listed", len(tests))
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(here, "../.."), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == here || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != "..":
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, "_test.yaml"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range named(string(text)) {
			if _, listed := tests[name]; listed {
				tests[name] = append(tests[name], path)
			} else if strings.HasPrefix(name, "section") {
				t.Errorf("%s names %s, which is not listed", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, paths := range tests {
		if len(paths) == 0 {
			t.Errorf("no test names %s", name)
		}
	}
}
