package ssh

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// stderrTail is how many bytes of a failed script's last words its error carries.
const stderrTail = 800

// isLast tells whether nothing of the run follows this marker.
func isLast(mark string) bool {
	for _, last := range []string{markExit, markStopped, markStuck, markBusy, markOwned, markStale, markBroken} {
		if strings.HasPrefix(mark, last) {
			return true
		}
	}
	return false
}

// judge turns a run's last marker into its error.
func (r *run) judge(ctx context.Context, end string, result Result) (Result, error) {
	at, phase := r.conn.target, r.script.Phase
	if r.answered() {
		return r.judgeStatus(*r.status, result)
	}
	word, rest, _ := strings.Cut(end, " ")
	switch word + " " {
	case markExit:
		code, err := strconv.Atoi(rest)
		if err != nil {
			return result, r.broken(StageRun)
		}
		if result.ExitCode = code; code == 0 {
			return result, nil
		}
		return result, fault.New(fault.Host, "ScriptFailed", nil, "%s script on %s failed with exit code %d%s", phase, at, code, lastWords(result))
	case markStopped, markStuck:
		return result, r.killed(ctx, word+" ", rest, result)
	case markBusy:
		return result, fault.New(fault.Host, "HostBusy", nil,
			"%s on %s did not start: the machine's lock is still held by %s after %s; it is tried again", phase, at, rest, r.limits.Lock)
	case markOwned:
		return result, fault.New(fault.Host, "HostOwnedElsewhere", &OwnedElsewhere{Owner: rest},
			"%s on %s did not start: the machine says that it belongs to another cluster or SSHHost; "+
				"run its leave from there, or, if that owner is gone, allow the take-over by quoting it", phase, at)
	case markStale:
		stored, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return result, r.broken(StageRun)
		}
		return result, fault.New(fault.Cluster, "StaleEpoch", &StaleEpoch{Stored: stored},
			"%s on %s did not start: it is for epoch %d of the host's claims, and a later claim has begun", phase, at, r.script.Owner.Epoch)
	case markBroken:
		return result, fault.New(fault.Host, "StateUnusable", nil, "%s on %s did not start: %s", phase, at, rest)
	}
	return result, r.broken(StageRun)
}

// killed is the error of a phase that the machine ended.
func (r *run) killed(ctx context.Context, word, why string, result Result) error {
	at, phase := r.conn.target, r.script.Phase
	survivors := ""
	if word == markStuck {
		survivors = "; a process of it cannot be killed (it hangs in the kernel): reboot the machine"
	}
	switch {
	case why == "timeout":
		return fault.New(fault.Host, "ScriptTimeout", nil, "%s script on %s did not end within %s and was killed%s%s",
			phase, at, r.script.Timeout, survivors, lastWords(result))
	case ctx.Err() != nil:
		return stopped(ctx, at, StageRun, "RunTimeout")
	default:
		return fault.New(fault.Network, "ConnectionLost", nil, "%s script on %s was killed because the machine heard nothing from this side%s",
			phase, at, survivors)
	}
}

// late is the error of a stage that took too long without the machine's having said why.
func (r *run) late(stage Stage) error {
	at := r.conn.target
	switch {
	case stage == StageFirstByte && r.sudo:
		return fault.New(fault.Network, "FirstByteTimeout", errStageTimeout, "%s: sudo gave no answer within %s%s", at, r.limits.FirstByte, r.said())
	case stage == StageFirstByte:
		return fault.New(fault.Network, "FirstByteTimeout", errStageTimeout,
			"%s: %s did not come within %s: the session opened, but the account's login shell hangs%s", at, stage, r.limits.FirstByte, r.said())
	case !r.started:
		return fault.New(fault.Network, "RunTimeout", errStageTimeout, "%s: the machine did not say whether its lock is free", at)
	default:
		return fault.New(fault.Network, "RunTimeout", errStageTimeout,
			"%s: the machine did not end the %s script after %s, nor say anything", at, r.script.Phase, r.script.Timeout)
	}
}

// broken is the error of a run whose channel closed, or whose command ended, without a last marker.
func (r *run) broken(stage Stage) error {
	at := r.conn.target
	switch {
	case r.status == nil:
		return r.conn.lost(stage)
	case r.errand.shim > 0 && !r.begun:
		return r.shimFault(*r.status)
	case r.begun:
		return fault.New(fault.Host, "ScriptFailed", nil,
			"%s script on %s: the shell around it was killed (SSH exit status %d): look for the kernel's out-of-memory killer", r.script.Phase, at, *r.status)
	case r.sudo:
		return r.sudoFault()
	default:
		return fault.New(fault.Host, "ShellUnusable", nil,
			"%s: the login shell of user %s does not run commands (exit status %d)%s: give the account a shell, such as /bin/bash",
			at, at.user(), *r.status, r.said())
	}
}

// unusable is the error of a launcher that found something missing.
func (r *run) unusable(mark string) error {
	at := r.conn.target
	if mark == markNoSudo {
		return fault.New(fault.Host, "SudoMissing", nil, "%s: user %s is not root, and sudo is not installed: install it, or log in as root", at, at.user())
	}
	return fault.New(fault.Host, "ShellUnusable", nil, "%s: bash is not installed (or not on PATH): install it", at)
}

var (
	wantsTTY = regexp.MustCompile(`(?i)\btty\b`)
	// askpass is what old versions mention next to "no tty present" when what they want is a password.
	askpass   = regexp.MustCompile(`(?i)askpass`)
	isDenied  = regexp.MustCompile(`(?i)not allowed to execute|nicht erlaubt|darf .* nicht|sudoers`)
	noCommand = regexp.MustCompile(`(?i)bash: command not found`)
)

// sudoFault tells why sudo -n refused. The launcher asks for English; a sudo that answers in another language mostly wants a password.
func (r *run) sudoFault() error {
	at, said := r.conn.target, r.heard()
	user := at.user()
	switch {
	case noCommand.MatchString(said):
		return r.unusable(markNoBash)
	case wantsTTY.MatchString(said) && !askpass.MatchString(said):
		return fault.New(fault.Host, "SudoRequiresTTY", nil,
			"%s: sudo wants a terminal%s: add `Defaults:%s !requiretty` to the machine's sudoers", at, r.said(), user)
	case isDenied.MatchString(said):
		return fault.New(fault.Host, "SudoDenied", nil,
			"%s: sudo does not let user %s run bash as root%s: add `%s ALL=(root) NOPASSWD: ALL` to the machine's sudoers", at, user, r.said(), user)
	default:
		return fault.New(fault.Host, "SudoPasswordRequired", nil,
			"%s: sudo wants a password of user %s%s: add `%s ALL=(root) NOPASSWD: ALL` to the machine's sudoers", at, user, r.said(), user)
	}
}

// heard is what the machine said on stderr before the script; where nothing tells them apart, with it.
func (r *run) heard() string {
	if r.plain != "" {
		return r.plain
	}
	return r.stderr.noise()
}

// said quotes what the machine said before the script, stderr first.
func (r *run) said() string {
	text := r.heard()
	if text == "" {
		text = r.stdout.noise()
	}
	if text == "" {
		return ""
	}
	return fmt.Sprintf("; it said: %q", Output{head: text, total: int64(len(text))}.Tail(stderrTail))
}

// lastWords is the end of stderr, or of stdout when that is empty.
func lastWords(result Result) string {
	text := result.Stderr.Tail(stderrTail)
	if text == "" {
		text = result.Stdout.Tail(stderrTail)
	}
	if text == "" {
		return " and said nothing"
	}
	return ": " + text
}
