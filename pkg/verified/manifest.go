package verified

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Reasons for which a manifest does not let a script run.
const (
	// ReasonManifestMalformed: its text is not that of a manifest.
	ReasonManifestMalformed = "ManifestMalformed"
	// ReasonManifestMismatch: it is for another profile, version, phase or script.
	ReasonManifestMismatch = "ManifestMismatch"
	// ReasonManifestExpired: its time is over.
	ReasonManifestExpired = "ManifestExpired"
)

// Manifest says what a signed script is for, so that it cannot be replayed as another phase, another version, or for ever. Its text, which is signed,
// has these lines in this order and no others:
//
//	kpssh-manifest: 1
//	profile: <SSHJoinProfile>
//	version: <its version>
//	phase: install | join | leave | uninstall
//	script-sha256: <64 hexadecimal digits>
//	expires: <RFC 3339, UTC, whole seconds> | never
type Manifest struct {
	Profile, Version, Phase string
	// Digest is the SHA-256 of the script's bytes, in lower-case hexadecimal digits.
	Digest string
	// Expires is when the manifest ceases to let the script run; zero for never.
	Expires time.Time
}

// maxManifest is what a manifest's text may take; SSHJoinProfile has the same limit.
const maxManifest = 4096

const never = "never"

// timeLayout is RFC 3339 in UTC and whole seconds, of one length, so that a shell can compare two by their digits.
const timeLayout = "2006-01-02T15:04:05Z"

var manifestForm = regexp.MustCompile(`\Akpssh-manifest: 1\nprofile: ([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)\nversion: ([A-Za-z0-9._-]{1,63})\n` +
	`phase: (install|join|leave|uninstall)\nscript-sha256: ([0-9a-f]{64})\nexpires: ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z|never)\n?\z`)

// NewManifest is the manifest of a script. Expires is cut to whole seconds; zero means never.
func NewManifest(profile, version, phase, script string, expires time.Time) Manifest {
	return Manifest{Profile: profile, Version: version, Phase: phase, Digest: digest(script), Expires: expires.UTC().Truncate(time.Second)}
}

func digest(script string) string {
	sum := sha256.Sum256([]byte(script))
	return hex.EncodeToString(sum[:])
}

// String is the text that is signed. It ends with a newline.
func (m Manifest) String() string {
	expires := never
	if !m.Expires.IsZero() {
		expires = m.Expires.UTC().Format(timeLayout)
	}
	return fmt.Sprintf("kpssh-manifest: 1\nprofile: %s\nversion: %s\nphase: %s\nscript-sha256: %s\nexpires: %s\n", m.Profile, m.Version, m.Phase, m.Digest, expires)
}

// ParseManifest reads a manifest. Fault: Configuration/ManifestMalformed.
func ParseManifest(text string) (Manifest, error) {
	malformed := func(why string) (Manifest, error) {
		return Manifest{}, fault.New(fault.Configuration, ReasonManifestMalformed, nil, "the manifest %s: make it with `kubectl kpssh sign --manifest`", why)
	}
	if len(text) > maxManifest {
		return malformed(fmt.Sprintf("has %d bytes, and %d are the most", len(text), maxManifest))
	}
	found := manifestForm.FindStringSubmatch(text)
	if found == nil {
		return malformed("does not have the lines of a manifest")
	}
	m := Manifest{Profile: found[1], Version: found[2], Phase: found[3], Digest: found[4]}
	if found[5] != never {
		var err error
		if m.Expires, err = time.Parse(timeLayout, found[5]); err != nil || m.Expires.IsZero() { // the zero time would be read as never
			return malformed("expires at no time that a calendar has")
		}
	}
	return m, nil
}

// Want is what is about to run: a script, as a phase of a version of a profile.
type Want struct {
	Profile, Version, Phase, Script string
}

// Check tells whether the manifest is that of what is about to run, and still holds. A leave is never too late: a machine that joined must be able
// to leave. Faults, the configuration's: ManifestMismatch, which names what differs, and ManifestExpired, which says when.
func (m Manifest) Check(want Want, now time.Time) error {
	for _, field := range []struct{ name, says, is string }{
		{"profile", m.Profile, want.Profile}, {"version", m.Version, want.Version}, {"phase", m.Phase, want.Phase}, {"script-sha256", m.Digest, digest(want.Script)},
	} {
		if field.says != field.is {
			return fault.New(fault.Configuration, ReasonManifestMismatch, nil,
				"the manifest is for %s %s, and this is %s: sign the script again, or restore the one that was signed", field.name, field.says, field.is)
		}
	}
	if want.Phase != phaseLeave && !m.Expires.IsZero() && !now.Before(m.Expires) {
		return fault.New(fault.Configuration, ReasonManifestExpired, nil,
			"the manifest has expired on %s: sign the script again", m.Expires.Format(time.RFC3339))
	}
	return nil
}

// phaseLeave is the one phase whose manifest does not expire.
const phaseLeave = "leave"
