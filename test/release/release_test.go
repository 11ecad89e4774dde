// Package release checks what only runs when a version is released, and so would be found broken too late: the workflows, and that the version
// arrives in executable, charts and metrics.
package release

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../.."

// The linker says nothing when it is told to set a variable that does not exist.
func TestTheVersionIsStampedIntoAVariableThatExists(t *testing.T) {
	stamp := regexp.MustCompile(`-X (\S+)\.(\w+)=\$\(?VERSION\b`)
	for _, file := range []string{"Makefile", "Dockerfile"} {
		match := stamp.FindStringSubmatch(read(t, file))
		if match == nil {
			t.Errorf("%s stamps no version into the controller", file)
			continue
		}
		dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", match[1]).Output()
		if err != nil {
			t.Errorf("%s: package %s: %v", file, match[1], err)
			continue
		}
		if !hasStringVariable(t, strings.TrimSpace(string(dir)), match[2]) {
			t.Errorf("%s: package %s has no variable %s that is initialised with a string constant, as -X needs", file, match[1], match[2])
		}
		// What kpssh_instance_info says is this variable.
		if info := read(t, "pkg/operator/metrics.go"); !strings.Contains(info, `"`+match[1]+`"`) || !strings.Contains(info, "operator."+match[2]) {
			t.Errorf("pkg/operator/metrics.go does not report %s.%s", match[1], match[2])
		}
	}
}

func hasStringVariable(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && len(spec.Names) == 1 && spec.Names[0].Name == name && spec.Names[0].Obj.Kind == ast.Var && len(spec.Values) == 1 {
				literal, ok := spec.Values[0].(*ast.BasicLit)
				found = found || ok && literal.Kind == token.STRING
			}
			return true
		})
	}
	return found
}

// A chart of a release installs the image of that release.
func TestTheVersionIsStampedIntoTheCharts(t *testing.T) {
	for version, want := range map[string]string{"v9.8.7": "9.8.7", "v9.8.7-rc.1": "9.8.7-rc.1", "0a1b2c3-dirty": "0.0.0-g0a1b2c3-dirty"} {
		out := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "make", "-C", root, "package", "VERSION="+version)
		cmd.Env = append(os.Environ(), "OUT="+out)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make package VERSION=%s: %v\n%s", version, err, output)
		}
		if said, err := exec.CommandContext(t.Context(), "sh", "-c", `cd "$1" && sha256sum -c kpssh-shim.sha256 && test -x kpssh-shim`, "sh", out).CombinedOutput(); err != nil {
			t.Errorf("the shim and its checksum: %v: %s", err, said)
		}
		charts, err := filepath.Glob(filepath.Join(root, "charts", "*", "Chart.yaml"))
		if err != nil || len(charts) == 0 {
			t.Fatalf("charts: %v, %v", charts, err)
		}
		for _, chart := range charts {
			name := filepath.Base(filepath.Dir(chart))
			got := packaged(t, filepath.Join(out, name+"-"+want+".tgz"), name)
			if got.Version != want || got.AppVersion != want {
				t.Errorf("VERSION=%s: chart %s has version %q and appVersion %q, want %q", version, name, got.Version, got.AppVersion, want)
			}
		}
	}
}

type metadata struct{ Version, AppVersion string }

// packaged reads Chart.yaml of a packaged chart.
func packaged(t *testing.T, archive, name string) (found metadata) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for reader := tar.NewReader(unzipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s has no Chart.yaml", archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name != name+"/Chart.yaml" {
			continue
		}
		raw, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(raw, &found); err != nil {
			t.Fatal(err)
		}
		return found
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
