package verified

import (
	"strings"
	"testing"
	"time"
)

func TestManifestsAreReadAsTheyWereWritten(t *testing.T) {
	for name, m := range map[string]Manifest{
		"for a time": NewManifest("p", "1.2_3-x", "install", script, noon.Add(90*24*time.Hour+time.Millisecond)),
		"for ever":   NewManifest("a.profile-1", "2", "leave", "", time.Time{}),
	} {
		text := m.String()
		got, err := ParseManifest(text)
		wants(t, err, "")
		if got != m {
			t.Errorf("%s: wrote %+v, read %+v", name, m, got)
		}
		if _, err := ParseManifest(strings.TrimSuffix(text, "\n")); err != nil {
			t.Errorf("%s: an editor that drops the last newline spoils it: %v", name, err)
		}
	}
	const want = "kpssh-manifest: 1\nprofile: p\nversion: 1\nphase: join\nscript-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\nexpires: 2026-12-01T12:00:00Z\n"
	if got := NewManifest("p", "1", "join", "", noon).String(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestManifestsThatAreNone(t *testing.T) {
	good := NewManifest("p", "1", "join", script, noon).String()
	for name, text := range map[string]string{
		"nothing":             "",
		"of another version":  strings.Replace(good, "manifest: 1", "manifest: 2", 1),
		"a line more":         good + "more: 1\n",
		"a line before":       "\n" + good,
		"a line less":         strings.Replace(good, "version: 1\n", "", 1),
		"lines in disorder":   strings.Replace(strings.Replace(good, "phase: join\n", "", 1), "profile", "phase: join\nprofile", 1),
		"no such phase":       strings.Replace(good, "join", "probe", 1),
		"a digest in capital": strings.ToUpper(good),
		"a short digest":      strings.Replace(good, "sha256: ", "sha256: 0", 1),
		"another time zone":   strings.Replace(good, "00Z", "00+01:00", 1),
		"no such day":         strings.Replace(good, "12-01", "13-41", 1),
		"Go's zero time":      strings.Replace(good, "2026-12-01T12", "0001-01-01T00", 1),
		"too long":            good + strings.Repeat(" ", maxManifest),
	} {
		_, err := ParseManifest(text)
		t.Log(name)
		wants(t, err, ReasonManifestMalformed)
	}
}

// Section 3 #46: a manifest lets one script of one version of one profile run, in one phase, until it expires.
func TestManifestChecks(t *testing.T) {
	m := NewManifest("p", "2", "install", script, noon.Add(time.Hour))
	for name, row := range map[string]struct {
		profile, version, phase, script string
		now                             time.Time
		reason                          string
	}{
		"what it was made for": {"p", "2", "install", script, noon, ""},
		"another profile":      {"q", "2", "install", script, noon, ReasonManifestMismatch},
		"an older version":     {"p", "3", "install", script, noon, ReasonManifestMismatch},
		"another phase":        {"p", "2", "join", script, noon, ReasonManifestMismatch},
		"another script":       {"p", "2", "install", script + "#", noon, ReasonManifestMismatch},
		"its last moment":      {"p", "2", "install", script, noon.Add(time.Hour - time.Second), ""},
		"expired":              {"p", "2", "install", script, noon.Add(time.Hour), ReasonManifestExpired},
	} {
		t.Log(name)
		wants(t, m.Check(Want{row.profile, row.version, row.phase, row.script}, row.now), row.reason)
	}
	leave := NewManifest("p", "2", "leave", script, noon)
	wants(t, leave.Check(Want{"p", "2", "leave", script}, noon.Add(time.Hour)), "") // what joined must be able to leave
}

func FuzzManifest(f *testing.F) {
	for _, seed := range []string{NewManifest("p", "1", "join", script, noon).String(), NewManifest("p", "1", "leave", script, time.Time{}).String(), "", "kpssh-manifest: 1\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseManifest(text)
		if err == nil && strings.TrimSuffix(m.String(), "\n") != strings.TrimSuffix(text, "\n") {
			t.Fatalf("read %q as %q", text, m)
		}
	})
}
