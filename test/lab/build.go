package lab

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// buildFlags must stay the flags of the project's own builds (Makefile, CI): the Go build cache is shared only between equal
// flags, and a cold build is the most expensive thing in this repository.
var buildFlags = []string{"-buildvcs=false", "-trimpath"}

var kubernetesVersion = regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes\s+v(\d+)\.(\d+)\.(\d+)\s*$`)

// source is what the multi-call binary is built from.
type source struct {
	dir     string
	key     string
	ldflags string
}

func findSource(ctx context.Context) (*source, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	s := &source{dir: filepath.Join(root, "test", "lab", "kubebin")}
	goMod, err := os.ReadFile(filepath.Join(s.dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	version := kubernetesVersion.FindSubmatch(goMod)
	if version == nil {
		return nil, fmt.Errorf("%s/go.mod requires no release of k8s.io/kubernetes", s.dir)
	}
	// Without these the binaries call themselves v0.0.0-master, which confuses everything that looks at version skew.
	const pkg = "k8s.io/component-base/version."
	s.ldflags = fmt.Sprintf("-s -w -X %[1]sgitVersion=v%[2]s.%[3]s.%[4]s -X %[1]sgitMajor=%[2]s -X %[1]sgitMinor=%[3]s -X %[1]sgitCommit=unknown -X %[1]sgitTreeState=clean",
		pkg, version[1], version[2], version[3])
	toolchain, err := s.goCommand(ctx, "env", "GOVERSION").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOVERSION: %w", err)
	}
	s.key, err = s.hash(s.ldflags, strings.TrimSpace(string(toolchain)), runtime.GOOS, runtime.GOARCH)
	return s, err
}

// hash covers every file of the module, and the extra inputs.
func (s *source) hash(extra ...string) (string, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	sum := sha256.New()
	for _, value := range extra {
		fmt.Fprintf(sum, "%q\n", value)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if ext := filepath.Ext(name); ext != ".go" && ext != ".mod" && ext != ".sum" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%q %d\n", name, len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// goCommand runs go in the binary's module.
func (s *source) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	return goCommand(ctx, s.dir, args...)
}

// goCommand runs go in a process group of its own, so that a cancelled build takes its compilers along.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The modules name a newer toolchain than some people have, and a go.work of theirs must not change what is built.
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=auto", "GOWORK=off", "GOFLAGS=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// workIn gives a build a work directory that is removed whatever becomes of it: go leaves its own behind when interrupted.
func workIn(cmd *exec.Cmd) (remove func() error, err error) {
	dir, remove, err := TempDir("kpssh-build-")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(cmd.Env, "GOTMPDIR="+dir)
	return remove, nil
}

// buildOnce builds the binary unless another process does so first.
func (s *source) buildOnce(ctx context.Context, dir, binary string, log io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "lock"), func(owner string) {
		fmt.Fprintf(log, "lab: waiting for process %s, which builds the Kubernetes binaries\n", owner)
	})
	if err != nil {
		return err
	}
	defer unlock()
	if executable(binary) == nil {
		return nil
	}
	partial := binary + ".partial"
	defer os.Remove(partial)
	if err := s.build(ctx, partial, log); err != nil {
		return fmt.Errorf("building the Kubernetes binaries from %s: %w", s.dir, err)
	}
	return os.Rename(partial, binary)
}

func (s *source) build(ctx context.Context, output string, log io.Writer) error {
	start := time.Now()
	elapsed := func() time.Duration { return time.Since(start).Round(time.Second) }
	fmt.Fprintf(log, "lab: building the Kubernetes binaries (etcd, control plane, kubelet, kubectl) once; this takes 10 minutes or more on 2 cores\n")
	list, err := s.goCommand(ctx, append([]string{"list", "-deps"}, append(buildFlags, ".")...)...).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", withStderr(err))
	}
	total := bytes.Count(list, []byte("\n"))

	args := append([]string{"build", "-v", "-ldflags", s.ldflags, "-o", output}, append(buildFlags, ".")...)
	cmd := s.goCommand(ctx, args...)
	remove, err := workIn(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = remove() }() // the next build tries again
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	progress := &buildProgress{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		progress.read(stderr)
	}()
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	for done := false; !done; {
		select {
		case <-read:
			done = true
		case <-ticker.C:
			if compiled, last := progress.now(); compiled == 0 {
				fmt.Fprintf(log, "lab: all %d packages seem to be in Go's cache; linking, %s\n", total, elapsed())
			} else {
				fmt.Fprintf(log, "lab: compiled %d of at most %d packages in %s, last %s\n", compiled, total, elapsed(), last)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("go build: %w\n%s", err, progress.trouble())
	}
	compiled, _ := progress.now()
	fmt.Fprintf(log, "lab: built in %s (%d packages compiled)\n", elapsed(), compiled)
	return nil
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}

// buildProgress reads `go build -v`: import paths, one a line, and whatever goes wrong.
type buildProgress struct {
	mu       sync.Mutex
	compiled int
	last     string
	others   []string
}

func (p *buildProgress) read(r io.Reader) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		p.mu.Lock()
		if strings.ContainsAny(line, " \t#") {
			p.others = append(p.others, line)
		} else {
			p.compiled, p.last = p.compiled+1, line
		}
		p.mu.Unlock()
	}
}

func (p *buildProgress) now() (int, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.compiled, p.last
}

func (p *buildProgress) trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.others[max(0, len(p.others)-30):], "\n")
}
