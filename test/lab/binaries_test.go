package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// cacheIn moves the user's cache into the test's directory.
func cacheIn(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir) // Linux
	t.Setenv("HOME", dir)           // macOS: Library/Caches
	return dir
}

func script(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheOverrideNamesAFinishedBinary(t *testing.T) {
	cacheIn(t)
	binary := script(t, filepath.Join(t.TempDir(), "kubebin"), "exit 0\n")
	t.Setenv("KPSSH_KUBEBIN", binary)
	dir, err := Binaries(t.Context(), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Applets() {
		if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != binary {
			t.Errorf("%s leads to %q (%v)", name, target, err)
		}
	}
	t.Setenv("KPSSH_KUBEBIN", binary+"-missing")
	if _, err := Binaries(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "KPSSH_KUBEBIN") {
		t.Errorf("a binary that is missing: want an error that names the variable, got %v", err)
	}
}

func TestAssetsOfTheUserAreUsedIfComplete(t *testing.T) {
	cacheIn(t)
	t.Setenv("KPSSH_KUBEBIN", "")
	assets := t.TempDir()
	for _, name := range Applets() {
		script(t, filepath.Join(assets, name), "exit 0\n")
	}
	if err := os.Remove(filepath.Join(assets, "kubelet")); err != nil { // there is none for macOS
		t.Fatal(err)
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	if dir, err := Binaries(t.Context(), &bytes.Buffer{}); err != nil || dir != assets {
		t.Errorf("got %q, %v", dir, err)
	}
	if missing := missingApplets(t.TempDir()); len(missing) != len(Applets())-1 {
		t.Errorf("an empty directory lacks %v", missing)
	}
}

// fakeGo puts a `go` on PATH that answers list and env, and "builds" whatever BUILD says.
func fakeGo(t *testing.T, build string) *source {
	t.Helper()
	bin := t.TempDir()
	script(t, filepath.Join(bin, "go"), `
case "$1" in
list) echo a; echo b ;;
build)
	while [ "$1" != -o ]; do shift; done
	output=$2
	`+build+`
esac
`)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return &source{dir: t.TempDir(), key: "k"}
}

func TestOneOfManyBuildsTheBinary(t *testing.T) {
	builds := filepath.Join(t.TempDir(), "builds")
	s := fakeGo(t, `echo built >>`+builds+`; printf '#!/bin/sh\n' >"$output"; chmod +x "$output"`)
	dir := filepath.Join(t.TempDir(), "cache")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := s.buildOnce(t.Context(), dir, filepath.Join(dir, "kubebin"), &bytes.Buffer{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if content, err := os.ReadFile(builds); err != nil || string(content) != "built\n" {
		t.Errorf("builds: %q, %v", content, err)
	}
}

func TestAFailedBuildShowsWhyAndLeavesNoBinary(t *testing.T) {
	s := fakeGo(t, `echo half >"$output"; echo k8s.io/some/package >&2; echo "cannot find module: no network" >&2; exit 1`)
	dir := filepath.Join(t.TempDir(), "cache")
	binary := filepath.Join(dir, "kubebin")
	err := s.buildOnce(t.Context(), dir, binary, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "no network") || strings.Contains(err.Error(), "k8s.io/some/package") {
		t.Errorf("want the trouble and not the progress, got %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("left behind: %v (%v)", entries, err)
	}
}

func TestTheCacheKeyCoversSourcesAndToolchain(t *testing.T) {
	s := &source{dir: t.TempDir()}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hash := func(extra ...string) string {
		key, err := s.hash(extra...)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	write("main.go", "a")
	write("go.sum", "b")
	first := hash("go1")
	write("README.md", "prose")
	if hash("go1") != first {
		t.Error("prose changes the key")
	}
	if hash("go2") == first {
		t.Error("the toolchain does not change the key")
	}
	write("go.sum", "c")
	if hash("go1") == first {
		t.Error("go.sum does not change the key")
	}
}

func TestTheRealSourcesHaveAKey(t *testing.T) {
	s, err := findSource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.key) != 16 || !strings.Contains(s.ldflags, "gitVersion=v1.") {
		t.Errorf("key %q, ldflags %q", s.key, s.ldflags)
	}
}

func TestDirectoriesOfTheDeadAreSweptAndThoseOfTheLivingAreNot(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	living, remove, err := TempDir("kpssh-test-")
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(os.TempDir(), "kpssh-test-dead")
	script(t, filepath.Join(dead, aliveFile), "")
	young := filepath.Join(os.TempDir(), "kpssh-test-young")
	if err := os.Mkdir(young, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, removeOther, err := TempDir("kpssh-test-"); err != nil {
		t.Fatal(err)
	} else if err := removeOther(); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{living: true, young: true, dead: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: want it there: %t, got %v", dir, want, err)
		}
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
}

func TestPortsAreHandedOutOnce(t *testing.T) {
	cacheIn(t)
	var a, b Ports
	defer a.Release()
	defer b.Release()
	seen := map[int]bool{}
	for range 50 {
		for _, ports := range []*Ports{&a, &b} {
			port, err := ports.Take("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			if seen[port] {
				t.Fatalf("port %d twice", port)
			}
			seen[port] = true
		}
	}
}
