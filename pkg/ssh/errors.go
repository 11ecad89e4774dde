package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// errStageTimeout is the cause of a stage that took too long.
var errStageTimeout = errors.New("time is up")

// OwnedElsewhere is the cause of the fault Host/HostOwnedElsewhere.
type OwnedElsewhere struct {
	// Owner as the machine names it, in the form of Owner.String: what Owner.TakeOver must quote.
	Owner string
}

func (e *OwnedElsewhere) Error() string { return "owned by " + e.Owner }

// StaleEpoch is the cause of the fault Cluster/StaleEpoch.
type StaleEpoch struct {
	// Stored is the epoch that the machine has seen.
	Stored int64
}

func (e *StaleEpoch) Error() string { return fmt.Sprintf("the machine has seen epoch %d", e.Stored) }

// stopped turns the end of ctx into an error: a cancellation stays one, a deadline is a time-out of the stage.
func stopped(ctx context.Context, t Target, stage Stage, reason string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.New(fault.Network, reason, ctx.Err(), "%s: %s did not end in time", t, stage)
	}
	return fmt.Errorf("%s: %s cancelled: %w", t, stage, context.Cause(ctx))
}

func dialFault(ctx context.Context, t Target, err error) error {
	var dns *net.DNSError
	switch {
	case ctx.Err() != nil:
		return stopped(ctx, t, StageTCP, "DialTimeout")
	case errors.Is(err, errStageTimeout), isTimeout(err):
		return fault.New(fault.Network, "DialTimeout", err,
			"%s: no answer to TCP connect: check that the machine is up, and that routes and firewalls let this instance reach the port", t)
	case errors.As(err, &dns):
		return fault.New(fault.Network, "DialFailed", err, "%s: the address does not resolve", t)
	default:
		return fault.New(fault.Network, "DialFailed", err, "%s: TCP connect failed: check that the SSH server listens there", t)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// handshakeFault says what went wrong between TCP and a usable connection. Errors of recognition pass through for Dial.
func handshakeFault(ctx context.Context, t Target, stages *watch, methods []string, err error) error {
	stage, expired := stages.state()
	var wrong *refused
	var none *gossh.AlgorithmNegotiationError
	switch {
	case errors.As(err, &wrong):
		return err
	case ctx.Err() != nil:
		return stopped(ctx, t, stage, timeoutReason(stage))
	case expired && stage == StageAuthentication:
		return fault.New(fault.Network, timeoutReason(stage), errStageTimeout,
			"%s: the SSH server did not finish authentication: look at its log (PAM, DNS look-ups of the client)", t)
	case expired:
		return fault.New(fault.Network, timeoutReason(stage), errStageTimeout,
			"%s: TCP connects, but the handshake stalls: check that an SSH server listens on the port and is not overloaded", t)
	case errors.As(err, &none):
		return fault.New(fault.Host, "NoCommonAlgorithm", err, "%s: handshake: no common %s algorithm; the machine offers %s, this side %s: allow one of these in %s of its sshd_config",
			t, none.What, list(none.RequestedAlgorithms), list(none.SupportedAlgorithms), sshdOption(none.What))
	case stage == StageAuthentication && refusedLogin(err) && t.Key.certified():
		return fault.New(fault.Host, "AuthenticationFailed", err,
			"%s: authentication: the machine does not accept the certificate of the key %s for user %s (it allows: %s): see whether TrustedUserCAKeys of its sshd_config holds the authority, and what AuthorizedPrincipalsFile asks for",
			t, t.Key, t.user(), list(methods))
	case stage == StageAuthentication && refusedLogin(err):
		return fault.New(fault.Host, "AuthenticationFailed", err,
			"%s: authentication: the machine does not accept the key %s for user %s (it allows: %s): add its public key to the user's authorized_keys",
			t, t.Key, t.user(), list(methods))
	case stage == StageAuthentication:
		return fault.New(fault.Network, "ConnectionLost", err, "%s: the connection broke during authentication", t)
	default:
		return fault.New(fault.Network, "HandshakeFailed", err,
			"%s: the handshake broke off: check that an SSH server listens on the port and takes new connections (MaxStartups)", t)
	}
}

func timeoutReason(stage Stage) string {
	if stage == StageAuthentication {
		return "AuthenticationTimeout"
	}
	return "HandshakeTimeout"
}

// refusedLogin tells a refusal from a broken connection. x/crypto types neither.
func refusedLogin(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unable to authenticate") || strings.Contains(text, "ssh: disconnect, reason 2:") ||
		strings.Contains(text, "ssh: disconnect, reason 14:") || strings.Contains(text, "too many authentication") ||
		strings.Contains(text, "no common algorithm for public key")
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// sshdOption names the setting that governs a negotiation.
func sshdOption(what string) string {
	switch {
	case what == "key exchange":
		return "KexAlgorithms"
	case what == "host key":
		return "HostKeyAlgorithms (and HostKey)"
	case strings.Contains(what, "cipher"):
		return "Ciphers"
	case strings.Contains(what, "MAC"):
		return "MACs"
	default:
		return "Compression"
	}
}
