//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInotifyLimitIsRaisedOnlyWhenTooLow(t *testing.T) {
	for name, c := range map[string]struct {
		limit string
		need  int
		want  string
	}{
		"enough stays as it is":          {limit: "128\n", need: 100, want: "128\n"},
		"too low is raised to a comfort": {limit: "128\n", need: 129, want: "1024"},
		"more than the comfort if asked": {limit: "128\n", need: 4000, want: "4000"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limit")
			if err := os.WriteFile(path, []byte(c.limit), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := ensureInotify(path, c.need); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(path); string(got) != c.want {
				t.Errorf("limit is %q, want %q", got, c.want)
			}
		})
	}
}

func TestInotifyLimitThatCannotBeRaisedSaysWhatToRun(t *testing.T) {
	dir := t.TempDir()
	err := ensureInotify(dir, 200)
	if err == nil {
		t.Fatal("an unreadable limit must fail")
	}
	path := filepath.Join(dir, "limit")
	if err := os.WriteFile(path, []byte("not a number"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := ensureInotify(path, 200); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name %s", err, path)
	}
}
