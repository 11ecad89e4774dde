package verified

import (
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// What the shim would refuse never leaves: a signature that is missing, rogue or of another text, a template, a manifest of something else.
func TestCheckScript(t *testing.T) {
	good, rogue := anEd25519(t), anEd25519(t)
	signers := trust(t, lineOf(good))
	manifest := func(m Manifest) *v1beta1.SignedManifest {
		return &v1beta1.SignedManifest{Manifest: m.String(), Signature: mustSign(t, good, m.String(), ManifestNamespace)}
	}
	valid := NewManifest("p", "1", "join", script, noon.Add(time.Hour))
	for name, row := range map[string]struct {
		edit   func(*v1beta1.SSHJoinProfileSpec)
		reason string
	}{
		"a signed script": {func(s *v1beta1.SSHJoinProfileSpec) {}, ""},
		"a manifest":      {func(s *v1beta1.SSHJoinProfileSpec) { s.Manifests.Join, s.Signatures.Join = manifest(valid), "" }, ""},
		"a manifest goes before a signature": {func(s *v1beta1.SSHJoinProfileSpec) {
			s.Manifests.Join = manifest(NewManifest("q", "1", "join", script, noon))
		}, ReasonManifestMismatch},
		"no script":                {func(s *v1beta1.SSHJoinProfileSpec) { s.Scripts.Join = "" }, ReasonScriptMissing},
		"unsigned":                 {func(s *v1beta1.SSHJoinProfileSpec) { s.Signatures.Join = "" }, ReasonSignatureMissing},
		"signed for another phase": {func(s *v1beta1.SSHJoinProfileSpec) { s.Signatures.Join = s.Signatures.Leave }, ReasonSignatureInvalid},
		"edited":                   {func(s *v1beta1.SSHJoinProfileSpec) { s.Scripts.Join += "rm -rf /\n" }, ReasonSignatureInvalid},
		"signed by a rogue":        {func(s *v1beta1.SSHJoinProfileSpec) { s.Signatures.Join = mustSign(t, rogue, script, ScriptNamespace) }, ReasonSignerUnknown},
		"a template": {func(s *v1beta1.SSHJoinProfileSpec) {
			s.Scripts.Join = "echo {{ .NodeName }}\n"
			s.Signatures.Join = mustSign(t, good, s.Scripts.Join, ScriptNamespace)
		}, ReasonScriptIsTemplate},
		"an expired manifest": {func(s *v1beta1.SSHJoinProfileSpec) {
			s.Manifests.Join = manifest(NewManifest("p", "1", "join", script, noon))
		}, ReasonManifestExpired},
		"an older version's": {func(s *v1beta1.SSHJoinProfileSpec) { s.Version, s.Manifests.Join = "2", manifest(valid) }, ReasonManifestMismatch},
		"a manifest that is no one": {func(s *v1beta1.SSHJoinProfileSpec) {
			s.Manifests.Join = &v1beta1.SignedManifest{Manifest: "hello", Signature: mustSign(t, good, "hello", ManifestNamespace)}
		}, ReasonManifestMalformed},
		"a script's signature over a manifest": {func(s *v1beta1.SSHJoinProfileSpec) {
			s.Manifests.Join = &v1beta1.SignedManifest{Manifest: valid.String(), Signature: mustSign(t, good, valid.String(), ScriptNamespace)}
		}, ReasonSignatureNamespace},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: v1beta1.Scripts{Join: script, Leave: script + "# leave\n"}}
			spec.Signatures.Join, spec.Signatures.Leave = mustSign(t, good, script, ScriptNamespace), mustSign(t, good, spec.Scripts.Leave, ScriptNamespace)
			row.edit(spec)
			proof, err := CheckScript("p", spec, "join", signers, noon)
			wants(t, err, row.reason)
			if err != nil && !strings.Contains(err.Error(), "join script of SSHJoinProfile p") {
				t.Errorf("the error does not say which script: %v", err)
			}
			if err == nil && (proof.Signer == "" || (proof.Manifest == "") == (proof.Signature == "")) {
				t.Errorf("the proof is %+v", proof)
			}
		})
	}
}
