package ssh

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed remote/supervisor.sh
var supervisor string

// Marker lines of the remote half; the text after "@kpssh-<nonce> ".
const (
	markShell  = "shell"  // the login shell ran a POSIX shell
	markNoBash = "nobash" // there is no bash
	markNoSudo = "nosudo" // sudo is needed and missing
	markSudo   = "sudo"   // sudo was called; what follows without markBegin is its refusal
	markBegin  = "begin"  // the whole script has arrived and bash has it
	markReady  = "ready"  // lock, owner and epoch are in order; waiting for "go"
	// Last markers.
	markExit    = "exit "    // <code>: the script ended by itself
	markStopped = "stopped " // <why>: timeout, silence, gone or stop; every process is dead
	markStuck   = "stuck "   // <why>: as stopped, but a process cannot be killed
	markBusy    = "busy "    // <phase>: the lock is held
	markOwned   = "owned "   // <owner>
	markStale   = "stale "   // <epoch>
	markBroken  = "broken "  // <what is wrong with the machine>
)

// launch is the POSIX shell's part. It is one line without single quotes, backslashes and exclamation marks, so that sh, bash,
// csh, fish and the rest all pass it on unharmed inside single quotes. --norc because bash reads ~/.bashrc even here when it finds
// itself the first shell of an SSH session, and what that file does with stdin is anybody's guess. $1 bash program, $2 nonce, $3 "sudo" or "root".
const launch = `m="@kpssh-$2"; echo "$m shell"; unset BASH_ENV ENV; LC_ALL=C; LANG=C; export LC_ALL LANG; ` +
	`command -v bash >/dev/null 2>&1 || { echo "$m nobash"; exit 127; }; ` +
	`if [ "$3" = root ] || [ "$(id -u)" = 0 ]; then exec bash --norc -c "$1" kpssh; fi; ` +
	`command -v sudo >/dev/null 2>&1 || { echo "$m nosudo"; exit 127; }; ` +
	`echo "$m sudo"; exec sudo -n bash --norc -c "$1" kpssh`

// receive is bash's part: take exactly that many bytes (LC_ALL=C makes them bytes, and neither -N nor -n reads past them), and run them
// only if all have come. Bash 3 has no -N and says so before it reads; -n takes them one by one, and stops at NUL, which there is none of.
const receive = `LC_ALL=C; IFS= read -rN %[1]d p 2>/dev/null || IFS= read -r -d "" -n %[1]d p || exit 74; eval "$p"`

// errand is a script made ready to send.
type errand struct {
	nonce   string
	command string
	payload string
	// shim is the version of the envelope that payload is; 0 for a script that goes to a shell.
	shim int
}

// prefix of marker lines in the errand's streams.
func (e errand) prefix() string { return "@kpssh-" + e.nonce + " " }

// prepare renders the command line and what goes to its stdin. silence is how long the machine waits for a sign of life.
func prepare(s Script, user string, lockWait, silence time.Duration) (errand, error) {
	nonce, err := randomHex()
	if err != nil {
		return errand{}, err
	}
	// Not the nonce: the script can see its environment, and must not be able to say by accident that it has ended.
	token, err := randomHex()
	if err != nil {
		return errand{}, err
	}
	var owner Owner
	if s.Owner != nil {
		owner = *s.Owner
	}
	var env strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env.WriteString("export " + name + "=" + quote(s.Env[name]) + "\n")
	}
	var b strings.Builder
	b.WriteString(supervisor)
	for _, v := range [][2]string{
		{"k_nonce", nonce}, {"k_token", token}, {"k_phase", s.Phase},
		{"k_limit", hundredths(s.Timeout)}, {"k_silence", hundredths(silence)},
		{"k_wait", seconds(lockWait)},
		{"k_cluster", owner.Cluster}, {"k_instance", owner.Instance}, {"k_host", owner.Host}, {"k_claim_uid", owner.Claim},
		{"k_epoch", strconv.FormatInt(owner.Epoch, 10)}, {"k_takeover", strings.TrimSpace(owner.TakeOver)},
		{"k_env", env.String()}, {"k_body", s.Body},
	} {
		b.WriteString(v[0] + "=" + quote(v[1]) + "\n")
	}
	b.WriteString("k_main\n")
	payload := b.String()
	how := "sudo"
	if user == "root" {
		how = "root"
	}
	return errand{
		nonce:   nonce,
		command: fmt.Sprintf("sh -c '%s' kpssh '%s' %s %s", launch, fmt.Sprintf(receive, len(payload)), nonce, how),
		payload: payload,
	}, nil
}

// quote makes a POSIX single-quoted word.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func hundredths(d time.Duration) string {
	return strconv.FormatInt(max(int64(d/(10*time.Millisecond)), 1), 10)
}

// seconds is whole seconds, one at least.
func seconds(d time.Duration) string {
	return strconv.Itoa(int(max(d.Round(time.Second), time.Second) / time.Second))
}

func randomHex() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}
