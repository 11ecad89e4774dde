package ssh

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// D10: what sudo says, in the words of real versions, also where it answers in German in spite of being asked in English.
func TestSudoProblemsAreNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		says   string // printed to stderr by sudo, which then fails; empty: no sudo at all
		reason string
	}{
		"missing":                {reason: "SudoMissing"},
		"password":               {says: "sudo: a password is required", reason: "SudoPasswordRequired"},
		"password, older":        {says: "sudo: no tty present and no askpass program specified", reason: "SudoPasswordRequired"},
		"password, newer":        {says: "sudo: a terminal is required to read the password; either use the -S option to read from standard input or configure an askpass helper", reason: "SudoPasswordRequired"},
		"password, German":       {says: "sudo: Ein Passwort ist notwendig", reason: "SudoPasswordRequired"},
		"password, rust":         {says: "sudo: interactive authentication is required", reason: "SudoPasswordRequired"},
		"requiretty":             {says: "sudo: sorry, you must have a tty to run sudo", reason: "SudoRequiresTTY"},
		"requiretty, German":     {says: "sudo: Entschuldigung, Sie benötigen ein TTY, um sudo auszuführen", reason: "SudoRequiresTTY"},
		"not in sudoers":         {says: "admin is not in the sudoers file.", reason: "SudoDenied"},
		"not allowed":            {says: "Sorry, user admin is not allowed to execute '/usr/bin/bash -c x' as root on host.", reason: "SudoDenied"},
		"not allowed, German":    {says: "Leider darf der Benutzer admin »/usr/bin/bash« als root auf host nicht ausführen.", reason: "SudoDenied"},
		"bash missing for root":  {says: "sudo: bash: command not found", reason: "ShellUnusable"},
		"lecture, then password": {says: "We trust you have received the usual lecture.\nsudo: a password is required", reason: "SudoPasswordRequired"},
	} {
		m := newMachine(t)
		notRoot(m)
		if tc.says != "" {
			program(m, "sudo", `[ "$1" = -n ] || exit 99; [ "$LC_ALL" = C ] || echo "asked in $LC_ALL" >&2; cat >&2 <<'E'`+"\n"+tc.says+"\nE\nexit 1")
		} else {
			// A PATH with everything but sudo.
			for _, tool := range []string{"sh", "bash"} {
				if err := os.Symlink(shellPath(t, tool), filepath.Join(m.bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			onlyBin(m)
		}
		target := m.target()
		target.User = "admin"
		conn, err := (&Dialer{}).Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Run(t.Context(), Script{Phase: "probe", Body: "touch ran", Timeout: 1e9})
		_ = conn.Close()
		t.Log(name, err)
		wantFault(t, err, fault.Host, tc.reason, "admin@")
		if _, err := os.Stat(filepath.Join(m.dir, "ran")); err == nil {
			t.Errorf("%s: it ran", name)
		}
	}
}

func TestSudoIsUsedExactlyWhenNeeded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		user    string
		uid     string
		through string
	}{
		"root":                  {user: "root", uid: "1000"}, // a simulated machine's root is an ordinary user
		"admin":                 {user: "admin", uid: "1000", through: "sudo\n"},
		"another name of uid 0": {user: "toor", uid: "0"},
	} {
		m := newMachine(t)
		program(m, "id", "echo "+tc.uid)
		program(m, "sudo", `echo sudo > through; [ "$1" = -n ] || exit 9; shift; unset LC_ALL LANG; exec "$@"`)
		target := m.target()
		target.User = tc.user
		conn, err := (&Dialer{}).Dial(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		result, err := conn.Run(t.Context(), Script{Phase: "probe", Body: `echo "grün $LANG"`, Timeout: 60e9})
		if err != nil || result.Stdout.String() != "grün C\n" || m.file("through") != tc.through {
			t.Errorf("%s: %q, through %q, %v", name, result.Stdout.String(), m.file("through"), err)
		}
		_ = conn.Close()
	}
}
