package verified

import (
	"errors"
	"strings"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Reasons for which a script is none that could be signed.
const (
	// ReasonScriptMissing: the profile has no script for the phase.
	ReasonScriptMissing = "ScriptMissing"
	// ReasonScriptIsTemplate: what is signed is sent as it is, so a template would reach the machine unrendered.
	ReasonScriptIsTemplate = "ScriptIsTemplate"
)

// Phases are those that have scripts, in the order of a machine's life.
var Phases = []string{"install", "join", phaseLeave, "uninstall"}

// Script is a phase's script in a profile; empty if it has none.
func Script(spec *v1beta1.SSHJoinProfileSpec, phase string) string {
	script, _, _ := parts(spec, phase)
	return script
}

// HasManifest tells whether a phase has a manifest.
func HasManifest(spec *v1beta1.SSHJoinProfileSpec, phase string) bool {
	_, _, manifest := parts(spec, phase)
	return manifest != nil
}

// Proof is what shows that a phase's script may run: a signature over the script, or a manifest and the signature over that.
type Proof struct {
	Signature                   string
	Manifest, ManifestSignature string
	// Signer is the fingerprint of the key that signed.
	Signer string
}

// CheckScript finds a phase's proof in a profile and checks it as the shim will: nothing is sent to a machine that it would refuse. A manifest goes
// before a bare signature. Faults, all the configuration's: ScriptMissing, ScriptIsTemplate, those of Signers.Verify, and of a manifest ManifestMalformed,
// ManifestMismatch and ManifestExpired.
func CheckScript(profile string, spec *v1beta1.SSHJoinProfileSpec, phase string, signers Signers, now time.Time) (Proof, error) {
	script, signature, manifest := parts(spec, phase)
	proof, err := check(profile, spec.Version, phase, script, signature, manifest, signers, now)
	if err != nil {
		err = about(err, phase, profile)
	}
	return proof, err
}

func check(profile, version, phase, script, signature string, manifest *v1beta1.SignedManifest, signers Signers, now time.Time) (Proof, error) {
	if err := signable(script); err != nil {
		return Proof{}, err
	}
	if manifest == nil {
		signer, err := signers.Verify([]byte(script), []byte(signature), ScriptNamespace, now)
		if err != nil {
			return Proof{}, err
		}
		return Proof{Signature: signature, Signer: signer}, nil
	}
	signer, err := signers.Verify([]byte(manifest.Manifest), []byte(manifest.Signature), ManifestNamespace, now)
	if err != nil {
		return Proof{}, err
	}
	parsed, err := ParseManifest(manifest.Manifest)
	if err != nil {
		return Proof{}, err
	}
	if err := parsed.Check(Want{Profile: profile, Version: version, Phase: phase, Script: script}, now); err != nil {
		return Proof{}, err
	}
	return Proof{Manifest: manifest.Manifest, ManifestSignature: manifest.Signature, Signer: signer}, nil
}

// signable refuses what cannot run as it is.
func signable(script string) error {
	switch {
	case script == "":
		return fault.New(fault.Configuration, ReasonScriptMissing, nil, "there is none")
	case strings.Contains(script, "{{"):
		return fault.New(fault.Configuration, ReasonScriptIsTemplate, nil,
			"it is a template, and what is signed runs as it is: take its values from the environment (KPSSH_...)")
	}
	return nil
}

// Signable tells whether a script can run in Verified mode once it is signed. Faults, the configuration's: ScriptMissing, ScriptIsTemplate.
func Signable(profile, phase, script string) error {
	if err := signable(script); err != nil {
		return about(err, phase, profile)
	}
	return nil
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
