package verified

import "github.com/kpssh/karpenter-provider-ssh/pkg/fault"

// Exit codes of the shim. The script's own never is one of them: the shim exits with ExitScriptFailed then, and says the script's (section 2 #5).
const (
	ExitOK                = 0
	ExitInternal          = 1
	ExitSignatureRejected = 2
	ExitParamRejected     = 3
	ExitEnvelopeMalformed = 4
	ExitPhaseUnknown      = 5
	ExitScriptFailed      = 10
	// ExitNotExecutable and ExitNotFound are the login shell's, where there is no shim.
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Reasons that the shim's exit codes stand for.
const (
	ReasonShimSignatureRejected = "ShimSignatureRejected"
	ReasonShimParamRejected     = "ShimParamRejected"
	ReasonShimEnvelopeRejected  = "ShimEnvelopeRejected"
	ReasonShimPhaseUnknown      = "ShimPhaseUnknown"
	ReasonShimInternal          = "ShimInternal"
	ReasonShimMissing           = "ShimMissing"
	ReasonScriptFailed          = "ScriptFailed"
)

type verdict struct {
	blame        fault.Blame
	reason, text string
}

const otherShim = "install the shim of this release there"

// verdicts: what the shim refuses was configured wrongly, here or on the machine, and is not the machine's failure (section 3 #29).
var verdicts = map[int]verdict{
	ExitInternal: {fault.Host, ReasonShimInternal, "the shim on the machine could not do its work"},
	ExitSignatureRejected: {fault.Configuration, ReasonShimSignatureRejected,
		"the shim on the machine refuses the script's signature: its /etc/kpssh/allowed_signers and the host's spec.trustedSigners must name the same keys"},
	ExitParamRejected:     {fault.Configuration, ReasonShimParamRejected, "the shim on the machine refuses a variable's name: " + otherShim},
	ExitEnvelopeMalformed: {fault.Configuration, ReasonShimEnvelopeRejected, "the shim on the machine does not understand what it was sent: " + otherShim},
	ExitPhaseUnknown:      {fault.Configuration, ReasonShimPhaseUnknown, "the shim on the machine does not know this phase: " + otherShim},
	ExitScriptFailed:      {fault.Host, ReasonScriptFailed, "the script failed"},
	ExitNotExecutable:     {fault.Host, ReasonShimMissing, "the shim on the machine is not executable"},
	ExitNotFound:          {fault.Host, ReasonShimMissing, "the shim is not on the machine: install it, or correct spec.shimCommand"},
}

// Blame is the reason and the party that an exit code of the shim stands for; both empty for ExitOK. A code that no shim has is the machine's
// ShimInternal: something killed the shim, or it is none.
func Blame(code int) (reason string, blame fault.Blame) {
	v := judge(code)
	return v.reason, v.blame
}

// Judge gives the fault that an exit code of the shim stands for; nil for ExitOK. detail is what the shim said, redacted and bounded.
func Judge(code int, detail string) *fault.Error {
	if code == ExitOK {
		return nil
	}
	v := judge(code)
	if detail != "" {
		detail = ": " + detail
	}
	return fault.New(v.blame, v.reason, nil, "%s (exit code %d)%s", v.text, code, detail)
}

func judge(code int) verdict {
	if v, known := verdicts[code]; known || code == ExitOK {
		return v
	}
	return verdicts[ExitInternal]
}
