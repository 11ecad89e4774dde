package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// wantFault checks party and reason, and that the message names each of the words.
func wantFault(t *testing.T, err error, blame fault.Blame, reason string, words ...string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Blame != blame || f.Reason != reason {
		t.Fatalf("error is %+v (%v), want %s/%s", f, err, blame, reason)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error does not say %q: %v", word, err)
		}
	}
}

func TestRunReturnsBothStreamsAndTheExitCode(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	result, err := m.run("echo out; echo err >&2; printf 'no newline'")
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Stdout.String(); got != "out\nno newline" {
		t.Errorf("stdout %q", got)
	}
	if got := result.Stderr.String(); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	if result.ExitCode != 0 || result.Stdout.Total() != int64(len("out\nno newline")) {
		t.Errorf("exit %d, total %d", result.ExitCode, result.Stdout.Total())
	}
	result, err = m.run("echo 'wörum' >&2; exit 3")
	wantFault(t, err, fault.Host, "ScriptFailed", "probe script", "exit code 3: wörum")
	if result.ExitCode != 3 {
		t.Errorf("exit %d", result.ExitCode)
	}
}

func TestScriptsRunAsBashRunsAFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.dial(&Dialer{})
	for name, tc := range map[string]struct {
		body   string
		env    map[string]string
		stdout string
		exit   int
		stderr string // contained
	}{
		"errexit":                   {body: "false; echo no", exit: 1},
		"nounset":                   {body: "echo $nope; echo no", exit: 1, stderr: "nope: unbound variable"},
		"pipefail":                  {body: "false | true; echo no", exit: 1},
		"errexit in a function":     {body: "f() { false; echo no; }\nf\necho no", exit: 1},
		"exit in a function":        {body: "f() { exit 7; }\nf", exit: 7},
		"killed by a signal":        {body: "kill -TERM $BASHPID", exit: 143},
		"shebang, comment at end":   {body: "#!/bin/bash\necho hi # bye", stdout: "hi\n"},
		"line numbers are its own":  {body: "#!/bin/bash\n\nnosuchcommand", exit: 127, stderr: "line 3: nosuchcommand"},
		"syntax error":              {body: "echo one\nif then", exit: 2, stdout: "one\n", stderr: "syntax error"},
		"here document":             {body: "cat <<E\n$((1+1)) 'x'\nE", stdout: "2 'x'\n"},
		"closing what it never had": {body: "echo a\n}\necho b", exit: 2, stdout: "a\n"},
		"exit trap":                 {body: "trap 'echo bye' EXIT; echo hi", stdout: "hi\nbye\n"},
		"empty":                     {},
		"no arguments":              {body: "echo $#", stdout: "0\n"},
		"locale":                    {body: `echo "$LANG $LC_ALL"`, stdout: "C C\n"},
		"UTF-8 passes":              {body: "echo 'grün 日本'", stdout: "grün 日本\n"},
		"umask is the account's":    {body: "umask", stdout: umask(t)},
		"descriptors":               {body: `for fd in 3 7 8 9 63; do [[ -e /proc/$$/fd/$fd ]] && echo $fd; done; true`},
		"stdin is empty":            {body: "cat; read -r x || echo none", stdout: "none\n"},
		// section 3 #32: a child that reads stdin must not eat the script.
		"child that reads stdin": {body: "cat >/dev/null\nhead -c 100\nbash -s\necho after", stdout: "after\n"},
		"quoting": {
			body:   `printf '%s|' "$KPSSH_A" "$KPSSH_B" "$KPSSH_C"`,
			env:    map[string]string{"KPSSH_A": "it's\n$(touch no) `id` \\", "KPSSH_B": "", "KPSSH_C": "ä\"b!"},
			stdout: "it's\n$(touch no) `id` \\||ä\"b!|",
		},
		"the wrapper's names are not the script's": {body: `compgen -v | grep -c '^k_' || true`, stdout: "0\n"},
		"exported to children":                     {body: `bash -c 'echo $KPSSH_A'`, env: map[string]string{"KPSSH_A": "x"}, stdout: "x\n"},
	} {
		result, err := c.Run(t.Context(), Script{Phase: "probe", Body: tc.body, Env: tc.env, Timeout: time.Minute})
		if result.ExitCode != tc.exit || (err == nil) != (tc.exit == 0) {
			t.Errorf("%s: exit %d, want %d (%v)", name, result.ExitCode, tc.exit, err)
		}
		if got := result.Stdout.String(); got != tc.stdout {
			t.Errorf("%s: stdout %q, want %q", name, got, tc.stdout)
		}
		if got := result.Stderr.String(); !strings.Contains(got, tc.stderr) || (tc.exit == 0 && got != "") {
			t.Errorf("%s: stderr %q, want %q in it", name, got, tc.stderr)
		}
	}
	if m.file("no") != "" {
		t.Error("a value was executed")
	}
	if _, err := os.Stat(m.state()); err == nil {
		t.Error("a phase that only reads made the state directory")
	}
}

func umask(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "Umask:"); ok {
			return strings.TrimSpace(value) + "\n"
		}
	}
	t.Fatal("no umask")
	return ""
}

// Section 3 #34: a process list must show no secret.
func TestNoCommandLineCarriesScriptOrValues(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	secret := fmt.Sprintf("hush-%d", time.Now().UnixNano())
	result, err := m.dial(&Dialer{}).Run(t.Context(), Script{
		Phase: "probe", Timeout: time.Minute,
		Body: `: ` + secret + "\n" + `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' || true`,
		Env:  map[string]string{"KPSSH_SECRET_X": secret},
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(result.Stdout.String(), secret) {
		t.Error("the secret is on a command line")
	}
}

func TestLoginShellsAndBannersDoNotMatter(t *testing.T) {
	t.Parallel()
	noisy := filepath.Join(t.TempDir(), "noisy")
	if err := os.WriteFile(noisy, []byte("#!/bin/sh\necho '*** welcome 12 34 ***'\necho 'warning: x' >&2\nexec /bin/sh \"$@\"\n"), 0o755); err != nil { // it must be executable
		t.Fatal(err)
	}
	for _, shell := range []string{shellPath(t, "sh"), shellPath(t, "dash"), shellPath(t, "bash"), noisy} {
		m := newMachine(t, func(s *sshtest.Server, login *sshtest.Shell) {
			s.Banner = "Authorised use only\nexit 1\n"
			login.Path = shell
		})
		result, err := m.run("echo \"it's fine!\"")
		if err != nil || result.Stdout.String() != "it's fine!\n" || result.Stderr.String() != "" {
			t.Errorf("%s: %q %q %v", shell, result.Stdout.String(), result.Stderr.String(), err)
		}
	}
}

// Bash, as the first shell of an SSH session, reads ~/.bashrc; one that reads stdin would eat the script.
func TestStartupFilesAreNotRead(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(_ *sshtest.Server, login *sshtest.Shell) {
		login.Path = shellPath(t, "dash")
		login.Env = append(login.Env, "SSH_CLIENT=10.0.0.9 1 22", "BASH_ENV="+filepath.Join(login.Dir, ".bashrc"), "ENV="+filepath.Join(login.Dir, ".bashrc"))
	})
	if err := os.WriteFile(filepath.Join(m.dir, ".bashrc"), []byte("touch read; cat >/dev/null\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	result, err := m.run("echo fine")
	if err != nil || result.Stdout.String() != "fine\n" {
		t.Errorf("%q %v", result.Stdout.String(), err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "read")); err == nil {
		t.Error("a start-up file was read")
	}
}

// What csh, tcsh and fish do inside single quotes: csh expands "!" and ends the word at a newline, fish reads \\ and \'.
func TestCommandLineIsTheSameToEveryShell(t *testing.T) {
	t.Parallel()
	e, err := prepare(Script{Phase: "probe", Body: "echo 'a'\n!", Timeout: time.Minute}, "admin", time.Second, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(e.command, "!\\\n") {
		t.Errorf("the command line has a character that some shell reads differently: %s", e.command)
	}
	words := strings.Split(e.command, "'")
	if len(words) != 5 {
		t.Fatalf("want exactly two quoted words: %s", e.command)
	}
	for _, outside := range []string{words[0], words[2], words[4]} {
		if strings.ContainsAny(outside, "$`\"#&|;()<>{}[]*?~%^") {
			t.Errorf("outside the quotes: %q", outside)
		}
	}
}

func TestAccountsWithoutAUsableShell(t *testing.T) {
	t.Parallel()
	script := func(text string) string {
		path := filepath.Join(t.TempDir(), "shell")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil { // it must be executable
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct {
		shell string
		path  bool // leave only an empty directory on PATH
		words []string
	}{
		"nologin":        {shell: script("echo 'This account is currently not available.'; exit 1"), words: []string{"not available", "exit status 1"}},
		"silent":         {shell: script("exit 0"), words: []string{"does not run commands"}},
		"no bash":        {shell: shellPath(t, "sh"), path: true, words: []string{"bash is not installed"}},
		"no shell there": {shell: "/nonexistent", words: []string{"exit status 127"}},
	} {
		m := newMachine(t, func(_ *sshtest.Server, login *sshtest.Shell) { login.Path = tc.shell })
		if tc.path {
			if err := os.Symlink(shellPath(t, "sh"), filepath.Join(m.bin, "sh")); err != nil {
				t.Fatal(err)
			}
			login := sshtest.Shell{Path: tc.shell, Dir: m.dir, Env: []string{"PATH=" + m.bin}}
			m.Exec = login.Exec
		}
		_, err := m.run("true")
		t.Log(name, err)
		wantFault(t, err, fault.Host, "ShellUnusable", tc.words...)
	}
}

// Section 3 #32: a stream that ends early runs nothing, wherever it ends.
func TestTruncatedScriptRunsNothing(t *testing.T) {
	t.Parallel()
	var cut int
	var login sshtest.Shell
	m := newMachine(t, func(s *sshtest.Server, shell *sshtest.Shell) {
		s.Exec = func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int {
			return login.Exec(ctx, command, io.LimitReader(stdin, int64(cut)), stdout, stderr)
		}
		login = *shell
	})
	body := "touch ran\n" + strings.Repeat("touch ran # and so on\n", 50)
	owner := &Owner{Cluster: "c", Instance: "i", Host: "h", Epoch: 1}
	e, err := prepare(Script{Phase: "install", Body: body, Timeout: time.Minute, Owner: owner}, "root", time.Second, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	c := m.dial(&Dialer{})
	// The last one carries the whole script and nothing after it: "go" never comes.
	for _, cut = range []int{0, 1, len(e.payload) / 3, len(e.payload) - len(body), len(e.payload) - 200, len(e.payload) - 1, len(e.payload)} {
		_, err := c.Run(t.Context(), Script{Phase: "install", Body: body, Timeout: time.Minute, Owner: owner})
		if err == nil {
			t.Errorf("%d bytes: no error", cut)
		}
	}
	if _, err := os.Stat(filepath.Join(m.dir, "ran")); err == nil {
		t.Error("a part of the script ran")
	}
}

// Section 3 #6.
func TestAGigabyteOfOutputTakesNoMemory(t *testing.T) {
	const total = 1 << 30
	m := newMachine(t)
	var peak uint64
	var seen int64
	watch := func(w io.Writer) io.WriteCloser {
		return nopCloser{writerFunc(func(p []byte) (int, error) {
			if seen += int64(len(p)); seen%(64<<20) < int64(len(p)) {
				var stats runtime.MemStats
				runtime.ReadMemStats(&stats)
				peak = max(peak, stats.HeapAlloc)
			}
			return w.Write(p)
		})}
	}
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	result, err := m.run(fmt.Sprintf("echo first; head -c %d /dev/zero; echo; echo last", total), Redact(watch))
	if err != nil {
		t.Fatal(err)
	}
	text := result.Stdout.String()
	if !strings.HasPrefix(text, "first\n") || !strings.HasSuffix(text, "\nlast\n") || !strings.Contains(text, "bytes omitted") {
		t.Errorf("kept %q ... %q", text[:20], text[len(text)-20:])
	}
	if result.Stdout.Total() != total+12 || len(text) > defaultHead+defaultTail+100 {
		t.Errorf("total %d, kept %d", result.Stdout.Total(), len(text))
	}
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 64<<20 { // sizes of one process
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Section 2 of the redaction rule: the filter sees the stream before anything is cut.
func TestRedactionComesBeforeTruncation(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	upper := func(w io.Writer) io.WriteCloser {
		return nopCloser{writerFunc(func(p []byte) (int, error) {
			if _, err := w.Write(bytes.ReplaceAll(p, []byte("secret"), []byte("[x]"))); err != nil {
				return 0, err
			}
			return len(p), nil
		})}
	}
	result, err := m.run("echo secret; echo a secret >&2; exit 1", Redact(upper), KeepOutput(8, 8))
	if strings.Contains(fmt.Sprint(err), "secret") || result.Stdout.String() != "[x]\n" || result.Stderr.String() != "a [x]\n" {
		t.Errorf("%q %q %v", result.Stdout.String(), result.Stderr.String(), err)
	}
}

func TestRunRefusesWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.dial(&Dialer{})
	good := Owner{Cluster: "c", Instance: "i", Host: "h"}
	with := func(change func(*Owner)) *Owner { o := good; change(&o); return &o }
	for name, s := range map[string]Script{
		"phase":          {Phase: "in stall", Timeout: time.Second},
		"timeout":        {Phase: "join"},
		"NUL in body":    {Phase: "join", Body: "a\x00b", Timeout: time.Second},
		"NUL in value":   {Phase: "join", Env: map[string]string{"KPSSH_A": "\x00"}, Timeout: time.Second},
		"PATH":           {Phase: "join", Env: map[string]string{"PATH": "/tmp"}, Timeout: time.Second},
		"BASH_ENV":       {Phase: "join", Env: map[string]string{"BASH_ENV": "/tmp/x"}, Timeout: time.Second},
		"injection":      {Phase: "join", Env: map[string]string{"KPSSH_x;id": ""}, Timeout: time.Second},
		"bare prefix":    {Phase: "join", Env: map[string]string{"KPSSH_": ""}, Timeout: time.Second},
		"the wrapper's":  {Phase: "join", Env: map[string]string{"KPSSH_STATE_DIR": "/tmp"}, Timeout: time.Second},
		"owner's host":   {Phase: "join", Owner: with(func(o *Owner) { o.Host = "../x" }), Timeout: time.Second},
		"no cluster":     {Phase: "join", Owner: with(func(o *Owner) { o.Cluster = "" }), Timeout: time.Second},
		"claim":          {Phase: "join", Owner: with(func(o *Owner) { o.Claim = "a b" }), Timeout: time.Second},
		"negative epoch": {Phase: "join", Owner: with(func(o *Owner) { o.Epoch = -1 }), Timeout: time.Second},
	} {
		_, err := c.Run(t.Context(), s)
		if err == nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		wantFault(t, err, fault.Configuration, "ScriptInvalid")
	}
	if m.Sessions() != 0 {
		t.Error("something was sent")
	}
}

// Section 3 #11: one login, however many phases.
func TestPhasesShareOneConnection(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.dial(&Dialer{})
	for range 3 {
		if _, err := c.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	if m.Connections() != 1 || m.Handshakes() != 1 || m.Logins() != 1 || m.Sessions() != 3 {
		t.Errorf("%d connections, %d handshakes, %d logins, %d sessions", m.Connections(), m.Handshakes(), m.Logins(), m.Sessions())
	}
}
