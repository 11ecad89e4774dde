package ssh

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// Versions of the envelope. A shim that speaks the second fences the machine as a wrapper of Raw mode does; one of the existing provider,
// which speaks the first only, knows no lock, no owner, no deadline and no cancellation.
const (
	shimOld     = 1
	shimPresent = 2
)

// refusal is the cause of a fault that a shim's exit status stands for, when the phase has not begun.
type refusal struct{ code int }

func (e *refusal) Error() string { return "exit status " + strconv.Itoa(e.code) }

// runVerified runs a phase through the machine's shim.
func (c *Conn) runVerified(ctx context.Context, s Script, opts []Option) (Result, error) {
	known, _ := c.dialer.shims.Load(c.shimKey(s))
	if known == shimPresent {
		return c.fenced(ctx, s, opts)
	}
	// One of the existing provider may have been replaced since, so it is asked each time: that changes nothing, and costs no login.
	facts, err := c.sendEnvelope(ctx, Script{Phase: phaseProbe, Timeout: shimProbeTimeout, Verified: s.Verified}, shimOld, opts)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	words := strings.Fields(facts.Stdout.String())
	if len(words) < 3 {
		return Result{ExitCode: -1}, fault.New(fault.Host, verified.ReasonShimMissing, nil,
			"%s: what spec.shimCommand starts there is no shim: it ended well, and told %d facts of the machine instead of three", c.target, len(words))
	}
	if slices.Contains(words, shimFact) {
		c.dialer.shims.Store(c.shimKey(s), shimPresent)
		return c.fenced(ctx, s, opts)
	}
	if s.Phase == phaseProbe {
		return facts, nil
	}
	return c.sendEnvelope(ctx, s, shimOld, opts)
}

// fenced runs a phase through a shim that speaks version 2. If the phase does not even begin, the shim may not be the one that it was.
func (c *Conn) fenced(ctx context.Context, s Script, opts []Option) (Result, error) {
	result, err := c.sendEnvelope(ctx, s, shimPresent, opts)
	var refused *refusal
	if errors.As(err, &refused) || fault.Is(err, fault.Network) {
		c.dialer.shims.Delete(c.shimKey(s))
	}
	return result, err
}

const (
	// shimFact is what a shim that speaks version 2 tells beside its facts. It cannot be asked by an envelope of version 2: one that does not know it
	// waits for the end of the input.
	shimFact = "kpssh.shim=2"
	// shimProbeTimeout bounds the question which version a shim speaks.
	shimProbeTimeout = 30 * time.Second
)

// shimKey is which shim a script goes to. A machine that was set up anew has another host key.
func (c *Conn) shimKey(s Script) string {
	return c.target.identity() + " " + c.HostKeyFingerprint() + " " + s.Verified.Command
}

func (c *Conn) sendEnvelope(ctx context.Context, s Script, version int, opts []Option) (Result, error) {
	none := Result{ExitCode: -1}
	if version == shimOld && s.Phase != phaseProbe && s.Verified.Proof.Manifest != "" {
		return none, fault.New(fault.Configuration, verified.ReasonShimEnvelopeRejected, nil,
			"%s on %s: the shim there cannot read manifests: install the shim of this release, or sign the script itself", s.Phase, c.target).BeforeMachine()
	}
	e, err := c.envelope(s, version)
	if err != nil {
		return none, err
	}
	return c.send(ctx, s, e, opts)
}

// envelope makes a script ready for a shim.
func (c *Conn) envelope(s Script, version int) (errand, error) {
	nonce, err := randomHex()
	if err != nil {
		return errand{}, err
	}
	token, err := randomHex()
	if err != nil {
		return errand{}, err
	}
	content := verified.Envelope{Version: version, Phase: s.Phase, Params: s.Env}
	if s.Phase != phaseProbe {
		content.Script = s.Body
		content.Signature, content.Manifest, content.ManifestSignature = s.Verified.Proof.Signature, s.Verified.Proof.Manifest, s.Verified.Proof.ManifestSignature
	}
	if version == shimPresent {
		content.Fence = fenceOf(s, nonce, token, c.dialer.Timeouts.withDefaults().Lock, c.silence())
	} else if s.Phase == phaseProbe {
		content.Params = nil // it asks for nothing but its four facts
	}
	payload, err := content.Encode()
	if err != nil {
		return errand{}, err
	}
	command := s.Verified.Command
	if command == "" {
		command = DefaultShim
	}
	return errand{nonce: nonce, command: command, payload: payload, shim: version}, nil
}

// fenceOf is what the supervisor on the machine is told of a run. It is not signed, so the shim takes each value for no more than it looks like.
func fenceOf(s Script, nonce, token string, lockWait, silence time.Duration) map[string]string {
	fence := map[string]string{
		"nonce": nonce, "token": token, "limit": hundredths(s.Timeout), "silence": hundredths(silence), "wait": seconds(lockWait),
	}
	if o := s.Owner; o != nil && s.Phase != phaseProbe {
		fence["cluster"], fence["instance"], fence["host"], fence["claim"] = o.Cluster, o.Instance, o.Host, o.Claim
		fence["epoch"], fence["takeover"] = strconv.FormatInt(o.Epoch, 10), strings.TrimSpace(o.TakeOver)
	}
	return fence
}

// judgeStatus turns the exit status of a shim of version 1 into the run's error.
func (r *run) judgeStatus(status int, result Result) (Result, error) {
	if status == verified.ExitOK {
		result.ExitCode = 0
		return result, nil
	}
	r.plain = strings.TrimPrefix(lastWords(result), ": ")
	return result, r.shimFault(status)
}

// sudoSpoke finds sudo's refusal in what came before a shim began.
var sudoSpoke = regexp.MustCompile(`(?i)\bsudo: |sudoers|not allowed to execute`)

// shimFault is the error of a shim that ended by itself, before its phase began or because that failed. What it says holds nothing that it was sent.
func (r *run) shimFault(status int) error {
	said := r.heard()
	if status == verified.ExitInternal && sudoSpoke.MatchString(said) && !strings.Contains(said, "kpssh-shim: ") {
		return r.sudoFault()
	}
	f := verified.Judge(status, Output{head: said, total: int64(len(said))}.Tail(stderrTail))
	if f == nil { // it ended well, and said nothing of what it did
		return fault.New(fault.Host, verified.ReasonShimMissing, nil, "%s on %s: what spec.shimCommand starts is no shim%s", r.script.Phase, r.conn.target, r.said())
	}
	told := fault.New(f.Blame, f.Reason, &refusal{status}, "%s on %s: %s", r.script.Phase, r.conn.target, f.Message)
	// The machine has refused before anything was done: it is what it was. Another host may be set up better.
	told.Before = f.Blame == fault.Configuration
	return told
}
