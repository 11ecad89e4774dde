package verified

import (
	"errors"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// ReasonScriptIsTemplate: what is signed is sent as it is, so a template would reach the machine unrendered.
const ReasonScriptIsTemplate = "ScriptIsTemplate"

// Proof is what shows that a phase's script may run: a signature over the script, or a manifest and the signature over that.
type Proof struct {
	Signature                   string
	Manifest, ManifestSignature string
	// Signer is the fingerprint of the key that signed.
	Signer string
}

// CheckScript finds a phase's proof in a profile and checks it as the shim will: nothing is sent to a machine that it would refuse. A manifest goes
// before a bare signature. Faults, all the configuration's: SignatureMissing, SignatureInvalid, SignerUnknown, ScriptIsTemplate, ManifestInvalid,
// ManifestExpired.
func CheckScript(profile string, spec *v1beta1.SSHJoinProfileSpec, phase string, signers Signers, now time.Time) (Proof, error) {
	script, signature, manifest := parts(spec, phase)
	proof, err := check(profile, spec.Version, phase, script, signature, manifest, signers, now)
	if err != nil {
		err = about(err, phase, profile)
	}
	return proof, err
}

func check(profile, version, phase, script, signature string, manifest *v1beta1.SignedManifest, signers Signers, now time.Time) (Proof, error) {
	if strings.Contains(script, "{{") {
		return Proof{}, fault.New(fault.Configuration, ReasonScriptIsTemplate, nil, "it is a template, and what is signed runs as it is: take its values from the environment (KPSSH_...)")
	}
	if manifest == nil {
		signer, err := signers.Verify([]byte(script), signature, ScriptNamespace, now)
		return Proof{Signature: signature, Signer: signer}, err
	}
	signer, err := signers.Verify([]byte(manifest.Manifest), manifest.Signature, ManifestNamespace, now)
	if err != nil {
		return Proof{}, err
	}
	parsed, err := ParseManifest(manifest.Manifest)
	if err != nil {
		return Proof{}, err
	}
	return Proof{Manifest: manifest.Manifest, ManifestSignature: manifest.Signature, Signer: signer}, parsed.Check(profile, version, phase, script, now)
}

// about says which script an error is about.
func about(err error, phase, profile string) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	told := *f
	told.Message = "the " + phase + " script of SSHJoinProfile " + profile + ": " + f.Message
	return &told
}

// parts are a phase's script and what was signed for it.
func parts(spec *v1beta1.SSHJoinProfileSpec, phase string) (script, signature string, manifest *v1beta1.SignedManifest) {
	switch phase {
	case "install":
		return spec.Scripts.Install, spec.Signatures.Install, spec.Manifests.Install
	case "join":
		return spec.Scripts.Join, spec.Signatures.Join, spec.Manifests.Join
	case phaseLeave:
		return spec.Scripts.Leave, spec.Signatures.Leave, spec.Manifests.Leave
	case "uninstall":
		return spec.Scripts.Uninstall, spec.Signatures.Uninstall, spec.Manifests.Uninstall
	}
	return "", "", nil
}
