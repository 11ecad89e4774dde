package verified

import "github.com/kpssh/karpenter-provider-ssh/pkg/fault"

// Exit codes of the shim. The script's own never is one of them: the shim exits with ExitScriptFailed then, and logs the script's (section 2 #5).
const (
	ExitOK                = 0
	ExitInternal          = 1
	ExitSignatureRejected = 2
	ExitParamRejected     = 3
	ExitEnvelopeMalformed = 4
	ExitPhaseUnknown      = 5
	ExitScriptFailed      = 10
)

// Reasons that the shim's exit codes stand for.
const (
	ReasonShimRefused  = "ShimRefused"
	ReasonShimMismatch = "ShimMismatch"
	ReasonShimInternal = "ShimInternal"
	ReasonShimMissing  = "ShimMissing"
)

// Judge gives the fault that an exit code of the shim stands for; nil for ExitOK. What the shim refuses was configured wrongly, here or on the machine, and
// is not the machine's failure (section 3 #29). detail is what the shim said, redacted and bounded.
func Judge(code int, detail string) *fault.Error {
	told := ""
	if detail != "" {
		told = ": " + detail
	}
	configuration := func(reason, format string, args ...any) *fault.Error {
		f := fault.New(fault.Configuration, reason, nil, format, args...)
		f.Message += told
		return f
	}
	switch code {
	case ExitOK:
		return nil
	case ExitSignatureRejected:
		return configuration(ReasonShimRefused, "the shim on the machine refuses the script's signature: its /etc/kpssh/allowed_signers and the host's spec.trustedSigners must name the same keys")
	case ExitParamRejected, ExitEnvelopeMalformed, ExitPhaseUnknown:
		return configuration(ReasonShimMismatch, "the shim on the machine does not understand what it was sent (exit code %d): install the shim of this release there", code)
	case ExitScriptFailed:
		return fault.New(fault.Host, "ScriptFailed", nil, "the script failed%s", told)
	case 126, 127:
		return fault.New(fault.Host, ReasonShimMissing, nil, "the shim is not on the machine, or is no executable: install it, or correct spec.shimCommand%s", told)
	}
	return fault.New(fault.Host, ReasonShimInternal, nil, "the shim on the machine failed (exit code %d)%s", code, told)
}
