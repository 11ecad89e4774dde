package release

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type workflow struct {
	Permissions any
	Jobs        map[string]struct {
		Permissions any
		Uses        string
		Steps       []struct{ Uses, Run string }
	}
}

var (
	pinned   = regexp.MustCompile(`^\s*(?:- )?uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	made     = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	script   = regexp.MustCompile(`(?:^|[\s"'])((?:\./)?\.ci/[\w./-]+)`)
	unpinned = regexp.MustCompile(`\bgo (?:run|install) \S+@(?:latest|main|master)\b|\bcurl\b|\bwget\b`)
	// Text that others choose (a title, a branch) must reach a script as a variable, never as part of it.
	injected = regexp.MustCompile(`\$\{\{`)
)

// A tag of an action can be moved to other code. A commit cannot.
func TestActionsArePinnedByCommit(t *testing.T) {
	for file := range workflows(t) {
		uses := 0
		for line := range strings.SplitSeq(read(t, file), "\n") {
			if strings.Contains(line, "uses:") {
				uses++
				if !pinned.MatchString(line) {
					t.Errorf("%s: %q: want owner/action@<40 hex digits> # v1.2.3", file, strings.TrimSpace(line))
				}
			}
		}
		if uses == 0 {
			t.Errorf("%s: no action found: does this test still read workflows rightly?", file)
		}
	}
}

// Whatever a workflow does can be done, and is tested, without it.
func TestWorkflowsCallOnlyWhatExists(t *testing.T) {
	makefile := read(t, "Makefile")
	for file, flow := range workflows(t) {
		for name, job := range flow.Jobs {
			for _, step := range job.Steps {
				for _, match := range made.FindAllStringSubmatch(step.Run, -1) {
					if !strings.Contains(makefile, "\n"+match[1]+": ") {
						t.Errorf("%s, job %s: the Makefile has no target %s", file, name, match[1])
					}
				}
				for _, match := range script.FindAllStringSubmatch(step.Run, -1) {
					if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
						t.Errorf("%s, job %s: %v", file, name, err)
					}
				}
				if found := unpinned.FindString(step.Run); found != "" {
					t.Errorf("%s, job %s: %q fetches what is not pinned", file, name, found)
				}
				if injected.MatchString(step.Run) {
					t.Errorf("%s, job %s: hand expressions over in env, not in the script:\n%s", file, name, step.Run)
				}
			}
		}
	}
}

// Nobody gets rights by default: each workflow says what it needs, and only a release writes.
func TestWorkflowsHaveLeastPermissions(t *testing.T) {
	for file, flow := range workflows(t) {
		if flow.Permissions == nil {
			t.Errorf("%s has no permissions of its own, so it has the repository's default", file)
		}
		for scope, level := range permissions(t, file, flow.Permissions) {
			if level != "read" {
				t.Errorf("%s: every job has %s: %s; give it to the job that needs it", file, scope, level)
			}
		}
		for name, job := range flow.Jobs {
			for scope, level := range permissions(t, file, job.Permissions) {
				if level != "read" && filepath.Base(file) != "release.yaml" {
					t.Errorf("%s, job %s: %s: %s", file, name, scope, level)
				}
			}
		}
	}
}

func permissions(t *testing.T, file string, given any) map[string]any {
	t.Helper()
	switch given := given.(type) {
	case nil:
		return nil
	case map[string]any:
		return given
	}
	t.Errorf("%s: permissions %v: name each", file, given)
	return nil
}

// workflows by file, relative to the root.
func workflows(t *testing.T) map[string]workflow {
	t.Helper()
	found := map[string]workflow{}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file := filepath.Join(".github", "workflows", filepath.Base(path))
		var flow workflow
		if err := yaml.Unmarshal([]byte(read(t, file)), &flow); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(flow.Jobs) == 0 {
			t.Errorf("%s has no jobs", file)
		}
		found[file] = flow
	}
	for _, name := range []string{"ci.yaml", "release.yaml", "security.yaml"} {
		if _, there := found[filepath.Join(".github", "workflows", name)]; !there {
			t.Errorf("there is no workflow %s", name)
		}
	}
	return found
}
