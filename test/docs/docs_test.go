// Package docs checks the documentation against the repository: links lead somewhere, and every reason that a person can meet on
// an object is explained.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// link is `[text](target)`; images and reference definitions do not occur here.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Section 3 #49: what a page points at exists; the API and the metrics are written from the code (make verify).
func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range markdown(t) {
		text := read(t, file)
		for _, match := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			target := match[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			linked := file
			if path != "" {
				linked = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(linked); err != nil {
				t.Errorf("%s: %s leads nowhere", file, target)
				continue
			}
			if anchor != "" && !anchors(read(t, linked))[anchor] {
				t.Errorf("%s: %s: no such heading", file, target)
			}
		}
	}
}

// A reason is part of the API: whoever meets one looks it up.
func TestEveryReasonIsExplained(t *testing.T) {
	page := anchors(read(t, filepath.Join(root, "docs", "troubleshooting.md")))
	reasons := stringConstants(t, filepath.Join(root, "apis", "v1beta1"), "Reason")
	if len(reasons) < 20 {
		t.Fatalf("found only %d reasons in apis/v1beta1", len(reasons))
	}
	for _, reason := range reasons {
		if !page[strings.ToLower(reason)] {
			t.Errorf("docs/troubleshooting.md has no heading for reason %s", reason)
		}
	}
}

// Faults reach people in events, conditions and the log of a controller that does not start.
func TestEveryFaultIsExplained(t *testing.T) {
	page := anchors(read(t, filepath.Join(root, "docs", "troubleshooting.md")))
	var reasons []string
	err := filepath.WalkDir(filepath.Join(root, "pkg"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			reasons = append(reasons, stringConstants(t, path, "Reason")...)
			reasons = append(reasons, stringConstants(t, path, "reason")...)
			reasons = append(reasons, faultLiterals(t, path)...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(reasons)
	for _, reason := range slices.Compact(reasons) {
		if !page[strings.ToLower(reason)] {
			t.Errorf("docs/troubleshooting.md has no heading for fault reason %s", reason)
		}
	}
}

func TestEveryConditionIsExplained(t *testing.T) {
	page := read(t, filepath.Join(root, "docs", "troubleshooting.md"))
	for _, condition := range stringConstants(t, filepath.Join(root, "apis", "v1beta1"), "Condition") {
		if !strings.Contains(page, "`"+condition+"`") {
			t.Errorf("docs/troubleshooting.md does not mention condition %s", condition)
		}
	}
}

func TestEveryDecisionIsInTheIndex(t *testing.T) {
	index := read(t, filepath.Join(root, "adr", "README.md"))
	records, err := filepath.Glob(filepath.Join(root, "adr", "0*.md"))
	if err != nil || len(records) == 0 {
		t.Fatalf("decisions: %v, %v", records, err)
	}
	for _, record := range records {
		if !strings.Contains(index, "("+filepath.Base(record)+")") {
			t.Errorf("adr/README.md does not list %s", filepath.Base(record))
		}
	}
}

// The README's commands are targets of the Makefile, and `make help` lists every target.
func TestMakefileIsDocumented(t *testing.T) {
	makefile := read(t, filepath.Join(root, "Makefile"))
	for _, match := range regexp.MustCompile("(?m)(?:^|`)make ([a-z0-9-]+)").FindAllStringSubmatch(read(t, filepath.Join(root, "README.md")), -1) {
		if !strings.Contains(makefile, "\n"+match[1]+": ") {
			t.Errorf("README.md says `make %s`; the Makefile has no such target", match[1])
		}
	}
	for _, match := range regexp.MustCompile(`(?m)^\.PHONY: (\S+)$`).FindAllStringSubmatch(makefile, -1) {
		if !regexp.MustCompile(`(?m)^` + match[1] + `:.* ## \S`).MatchString(makefile) {
			t.Errorf("target %s has no line in `make help`", match[1])
		}
	}
}

// faultLiterals gives the reasons that a package's code writes into fault.New.
func faultLiterals(t *testing.T, dir string) []string {
	t.Helper()
	var reasons []string
	inspect(t, dir, func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return
		}
		callee, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || callee.Sel.Name != "New" {
			return
		}
		if from, ok := callee.X.(*ast.Ident); !ok || from.Name != "fault" {
			return
		}
		if literal, ok := call.Args[1].(*ast.BasicLit); ok {
			reasons = append(reasons, unquote(t, literal))
		}
	})
	return reasons
}

// stringConstants gives the values of a package's string constants whose names start with prefix.
func stringConstants(t *testing.T, dir, prefix string) []string {
	t.Helper()
	var values []string
	inspect(t, dir, func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != 1 || !strings.HasPrefix(spec.Names[0].Name, prefix) || len(spec.Values) != 1 {
			return
		}
		if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			values = append(values, unquote(t, literal))
		}
	})
	return values
}

// inspect shows every node of a directory's Go files, tests left out.
func inspect(t *testing.T, dir string, show func(ast.Node)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			show(n)
			return true
		})
	}
}

func unquote(t *testing.T, literal *ast.BasicLit) string {
	t.Helper()
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// markdown gives every Markdown file that git knows or would add.
func markdown(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for _, name := range strings.Fields(string(out)) {
		files = append(files, filepath.Join(root, name))
	}
	if len(files) == 0 {
		t.Fatal("no Markdown files")
	}
	return files
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	inline  = regexp.MustCompile("`[^`\n]*`")
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func withoutCode(text string) string {
	return inline.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
}

// anchors gives the fragments of a page's headings, formed as Git forges form them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
