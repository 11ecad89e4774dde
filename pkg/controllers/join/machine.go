package join

import (
	"context"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// dial opens the one connection of an operation.
func (c *Controller) dial(ctx context.Context, h *v1beta1.SSHHost, purpose string) (ssh.Session, error) {
	target, err := c.Credentials.Target(ctx, h)
	if err != nil {
		countDial(ctx, purpose, err)
		return nil, hostOnly{err}
	}
	conn, err := c.Dialer.Connect(ctx, target)
	metrics.Handshakes.WithLabelValues(purpose, outcome(err)).Inc()
	if err != nil {
		countDial(ctx, purpose, err)
		return nil, hostOnly{err}
	}
	return conn, nil
}

// countDial counts a connection that did not come about, unless this side gave it up.
func countDial(ctx context.Context, purpose string, err error) {
	if ctx.Err() == nil {
		f := fault.Of(err)
		metrics.DialErrors.WithLabelValues(purpose, ssh.DialStage(f.Reason), string(f.Blame), f.Reason).Inc()
	}
}

// countFailure counts an attempt that failed.
func countFailure(operation string, f *fault.Error) {
	metrics.Operations.WithLabelValues(operation, metrics.Failure).Inc()
	metrics.OperationFailures.WithLabelValues(operation, string(f.Blame), f.Reason).Inc()
}

// verified is what the shim of a host in Verified mode needs to run a phase; nil for other hosts. A script that the host's signers have not signed
// is the configuration's fault, found out before the machine is asked; it is never sent as it would be in Raw mode.
func (c *Controller) verified(h *v1beta1.SSHHost, revision profile.Revision, phase profile.Phase) (*ssh.Verified, error) {
	if h.Spec.ExecMode != v1beta1.ExecModeVerified {
		return nil, nil
	}
	signers, err := verified.ParseSigners(h.Spec.TrustedSigners)
	if err != nil {
		return nil, hostOnly{err}
	}
	proof, err := verified.CheckScript(revision.Profile, &revision.Spec, string(phase), signers, c.Clock.Now())
	if err != nil {
		return nil, err
	}
	return &ssh.Verified{Command: h.Spec.ShimCommand, Proof: proof}, nil
}

// run runs one phase's script on a machine, fenced by the owner file, its output redacted before anything is cut off.
func (c *Controller) run(ctx context.Context, conn ssh.Session, h *v1beta1.SSHHost, revision profile.Revision, phase profile.Phase, rendered profile.Rendered, redactor *profile.Redactor) error {
	proof, err := c.verified(h, revision, phase)
	if err != nil {
		return err
	}
	started := c.Clock.Now()
	claim := string(claimUID(h))
	if claim == "" && phase == profile.Install {
		claim = ssh.NoClaim
	}
	result, err := conn.Run(ctx, ssh.Script{
		Verified: proof,
		Phase:    string(phase), Body: rendered.Body, Env: rendered.Env, Timeout: rendered.Timeout,
		Owner: &ssh.Owner{
			Cluster: c.ClusterUID, Instance: c.Instance, Host: string(h.UID), Claim: claim, Epoch: c.epoch(h),
			TakeOver: h.Annotations[v1beta1.TakeOverAnnotation],
		},
	}, ssh.Redact(redactor.Writer))
	if result.ExitCode == exitTemporary {
		err = temporary(err, result)
	}
	metrics.PhaseDuration.WithLabelValues(string(phase), outcome(err)).Observe(c.Clock.Since(started).Seconds())
	if err != nil {
		f := fault.Of(err)
		metrics.PhaseFailures.WithLabelValues(string(phase), string(f.Blame), f.Reason).Inc()
	}
	return err
}

// epoch is the newest one of the claim that an operation runs for. One that runs for no claim keeps its own: the newest may be that of a claim
// which has come since, and whose work it must not pass for.
func (c *Controller) epoch(h *v1beta1.SSHHost) int64 {
	if h.Status.ClaimRef == nil && h.Status.State == v1beta1.HostAvailable {
		return h.Status.ClaimEpoch
	}
	return c.recorded(h).Status.ClaimEpoch
}

// exitTemporary is the exit status by which a script says that it may succeed later on the same machine: EX_TEMPFAIL of sysexits.h.
const exitTemporary = 75

// temporary turns a script's failure into one that the host is not parked for.
func temporary(err error, result ssh.Result) error {
	reason := reasonTemporaryFailure
	if strings.Contains(result.Stderr.String(), reasonPackageManagerBusy) {
		reason = reasonPackageManagerBusy
	}
	return fault.New(fault.Host, reason, err, "the script asks to be run again later (exit status %d)", exitTemporary)
}

func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// clip keeps an event's note within what the API accepts.
func clip(text string) string {
	const limit = 900
	if len(text) <= limit {
		return text
	}
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit/2]) + " … " + string(runes[len(runes)-limit/2:])
}
