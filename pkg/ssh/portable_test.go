package ssh

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// likeMacOS is a machine whose wrapper finds bash 3.2 and no /proc.
func likeMacOS(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, func(server *sshtest.Server, shell *sshtest.Shell) {
		server.Exec = func(ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer) int {
			stdin = sshtest.RewriteStream(stdin, sshtest.Bash3WithoutProc)
			return shell.Exec(ctx, sshtest.Rewrite(command, sshtest.Bash3WithoutProc), stdin, stdout, stderr)
		}
	})
	return m
}

// The lab's machines run on people's own computers, with what bash and tools there are: the wrapper keeps its word there, but for
// processes that leave their group, their parent and the wrapper all three.
func TestTheWrapperWorksWithBash3AndWithoutProc(t *testing.T) {
	t.Parallel()
	m := likeMacOS(t)
	c := m.dial(&Dialer{})
	owner := mine()
	run := func(ctx context.Context, body string, env map[string]string, timeout time.Duration) (Result, error) {
		return c.Run(ctx, Script{Phase: "join", Body: body, Env: env, Timeout: timeout, Owner: &owner})
	}
	value := "it's\n\"a\\b\" ü$(no)"
	result, err := run(t.Context(), `printf %s "$KPSSH_VALUE"; exit 3`, map[string]string{"KPSSH_VALUE": value}, time.Minute)
	wantFault(t, err, fault.Host, "ScriptFailed")
	if result.ExitCode != 3 || result.Stdout.String() != value {
		t.Errorf("exit %d, %q", result.ExitCode, result.Stdout.String())
	}
	if result, err := m.run("echo \"$#,$-\""); err != nil || !strings.HasPrefix(result.Stdout.String(), "0,") {
		t.Errorf("a script without environment: %q, %v", result.Stdout.String(), err)
	}

	t.Run("time-out", func(t *testing.T) {
		id := uniqueID()
		_, err := run(t.Context(), "sleep "+id+" & setsid sleep "+id+" & sleep "+id, nil, 2*time.Second)
		wantFault(t, err, fault.Host, "ScriptTimeout", "within 2s")
		if n := processes(t, id); n != 0 {
			t.Errorf("%d processes", n)
		}
	})
	t.Run("cancellation", func(t *testing.T) {
		id := uniqueID()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := run(ctx, "echo x > up; exec sleep "+id, nil, time.Hour)
			ended <- err
		}()
		await(t, "the script", func() bool { return m.file("up") != "" })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := processes(t, id); n != 0 {
			t.Errorf("%d processes", n)
		}
	})
	t.Run("the shell is killed", func(t *testing.T) {
		id := uniqueID()
		if _, err := run(t.Context(), "kill -KILL $PPID; sleep "+id, nil, time.Hour); err == nil {
			t.Error("no error")
		}
		await(t, "the processes to die", func() bool { return processes(t, id) == 0 })
		// That connection's next phase finds the lock free, and the machine in order.
		if _, err := run(t.Context(), "true", nil, time.Minute); err != nil {
			t.Error(err)
		}
	})
	t.Run("connection breaks", func(t *testing.T) {
		id := uniqueID()
		ended := make(chan error, 1)
		go func() {
			_, err := run(t.Context(), "echo x > up2; sleep "+id, nil, time.Hour)
			ended <- err
		}()
		await(t, "the script", func() bool { return m.file("up2") != "" })
		m.Drop()
		wantFault(t, <-ended, fault.Network, "ConnectionLost")
		await(t, "the processes to die", func() bool { return processes(t, id) == 0 })
		await(t, "the wrapper to end", func() bool { return holders(m.state()+"/lock") == 0 })
	})
}

func TestTheWrapperHasNothingThatBash3CannotParse(t *testing.T) {
	// Never reached without /proc, or where there is a way around.
	known := []string{
		`elif { mapfile -d '' -t vars <"$dir/environ"; } 2>/dev/null; then`,
		`k_self=${BASHPID-}`,
		`local take='IFS= read -rN "$1" k_env <&3 && IFS= read -rN "$2" k_body <&3'`,
		receive,
	}
	if found := sshtest.NewerThanBash3(supervisor + "\n" + launch + "\n" + receive); !slices.Equal(found, known) {
		t.Errorf("newer than bash 3.2:\n%s\nwant only:\n%s", strings.Join(found, "\n"), strings.Join(known, "\n"))
	}
}
