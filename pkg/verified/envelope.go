package verified

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Reasons for which an envelope cannot be made; both are faults of the configuration.
const (
	ReasonValueMultiline   = "ValueMultiline"
	ReasonEnvelopeTooLarge = "EnvelopeTooLarge"
)

// Limits of an envelope, in bytes.
const (
	maxScript   = 1 << 20 // 262144 characters, of four bytes at most
	maxParams   = 1 << 20
	maxEnvelope = 4 << 20
)

// Envelope is what goes to the shim's standard input: lines of `key: value`.
//
// Version 1, which the existing provider's shim reads too, ends with the end of the input and knows parameters of one line. Version 2 ends with the
// line `end:`, after which the input stays open: it is the supervisor's then. Its parameters may hold anything, and it may carry a manifest and a fence.
type Envelope struct {
	// Version is 1 or 2.
	Version int
	Phase   string
	// Params are exported to the script. Names are KPSSH_ and letters, digits and underscores.
	Params map[string]string
	// Script and Signature: the armored signature over the script, in ScriptNamespace. Both empty for the phase probe.
	Script, Signature string
	// Manifest and ManifestSignature, in ManifestNamespace, take Signature's place, which is empty then. Version 2 only.
	Manifest, ManifestSignature string
	// Fence is for the supervisor: names and values of one line each. Version 2 only.
	Fence map[string]string
}

var (
	paramName = regexp.MustCompile(`^KPSSH_[A-Za-z0-9_]+$`)
	fenceName = regexp.MustCompile(`^[a-z_]+$`)
	phases    = append([]string{"probe"}, Phases...)
)

// keys of the lines.
const (
	keyVersion     = "kpssh-envelope"
	keyPhase       = "phase"
	keyParams      = "params-b64"
	keySignature   = "sig-b64"
	keyScript      = "script-b64"
	keyManifest    = "manifest-b64"
	keyManifestSig = "manifest-sig-b64"
	keyFence       = "fence-b64"
	keyEnd         = "end"
)

// Encode gives the envelope's text. Faults, the configuration's: ValueMultiline if version 1 cannot carry a value, EnvelopeTooLarge; ScriptInvalid for a
// name that no shim takes. No text of a fault holds a value.
func (e Envelope) Encode() (string, error) {
	if e.Version > 1 && e.Signature != "" && e.Manifest != "" {
		return "", fmt.Errorf("%s phase: there are both a signature and a manifest", e.Phase)
	}
	params, err := e.params()
	if err != nil {
		return "", err
	}
	fence, err := e.fence()
	if err != nil {
		return "", err
	}
	for _, part := range []struct {
		name       string
		size, most int
	}{{"the script", len(e.Script), maxScript}, {"what is passed to the script", len(params), maxParams}} {
		if part.size > part.most {
			return "", fault.New(fault.Configuration, ReasonEnvelopeTooLarge, nil, "%s phase: %s has %d bytes, and the shim takes %d", e.Phase, part.name, part.size, part.most)
		}
	}
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, value) }
	encoded := func(key, value string) {
		if value != "" {
			line(key, base64.StdEncoding.EncodeToString([]byte(value)))
		}
	}
	line(keyVersion, fmt.Sprint(e.Version))
	line(keyPhase, e.Phase)
	encoded(keyParams, params)
	encoded(keySignature, e.Signature)
	if e.Version > 1 {
		encoded(keyManifest, e.Manifest)
		encoded(keyManifestSig, e.ManifestSignature)
	}
	encoded(keyScript, e.Script)
	if e.Version > 1 {
		encoded(keyFence, fence)
		b.WriteString(keyEnd + ":\n")
	}
	if b.Len() > maxEnvelope {
		return "", fault.New(fault.Configuration, ReasonEnvelopeTooLarge, nil, "%s phase: script, signatures and parameters together have %d bytes, and the shim takes %d", e.Phase, b.Len(), maxEnvelope)
	}
	return b.String(), nil
}

// params are the parameters' lines, sorted: NAME=value, in version 2 with the value in base64.
func (e Envelope) params() (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.Params)) {
		value := e.Params[name]
		switch {
		case !paramName.MatchString(name):
			return "", fault.New(fault.Configuration, "ScriptInvalid", nil, "%s phase: variable name %q is not allowed: names begin with KPSSH_ and continue with letters, digits and _", e.Phase, printable(name))
		case e.Version > 1:
			value = base64.StdEncoding.EncodeToString([]byte(value))
		case strings.ContainsAny(value, "\n\r\x00"):
			return "", fault.New(fault.Configuration, ReasonValueMultiline, nil,
				"%s phase: the value of %s has more than one line, which the shim on the machine cannot take: install the present shim there", e.Phase, name)
		}
		b.WriteString(name + "=" + value + "\n")
	}
	return b.String(), nil
}

func (e Envelope) fence() (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.Fence)) {
		if !fenceName.MatchString(name) || strings.ContainsAny(e.Fence[name], "\n\r\x00") {
			return "", fault.New(fault.Configuration, "ScriptInvalid", nil, "%s phase: %s cannot be passed to the supervisor", e.Phase, printable(name))
		}
		b.WriteString(name + "=" + e.Fence[name] + "\n")
	}
	return b.String(), nil
}

// Decode reads an envelope as the shim does, or refuses it as the shim does.
func Decode(text string) (Envelope, error) {
	if len(text) > maxEnvelope {
		return Envelope{}, fmt.Errorf("it has %d bytes", len(text))
	}
	lines, err := keyed(text)
	if err != nil {
		return Envelope{}, err
	}
	e := Envelope{Phase: lines[keyPhase]}
	switch lines[keyVersion] {
	case "1":
		e.Version = 1
	case "2":
		e.Version = 2
	default:
		return e, fmt.Errorf("its version is %q", printable(lines[keyVersion]))
	}
	if !slices.Contains(phases, e.Phase) {
		return e, fmt.Errorf("its phase is %q", printable(e.Phase))
	}
	decoded := map[string]string{}
	for _, key := range []string{keyParams, keySignature, keyScript, keyManifest, keyManifestSig, keyFence} {
		value, err := base64.StdEncoding.Strict().DecodeString(lines[key])
		if err != nil {
			return e, fmt.Errorf("%s is no base64", key)
		}
		decoded[key] = string(value)
	}
	e.Signature, e.Script, e.Manifest, e.ManifestSignature = decoded[keySignature], decoded[keyScript], decoded[keyManifest], decoded[keyManifestSig]
	if e.Params, err = assignments(decoded[keyParams], paramName, e.Version > 1); err != nil {
		return e, fmt.Errorf("%s: %w", keyParams, err)
	}
	if e.Fence, err = assignments(decoded[keyFence], fenceName, false); err != nil {
		return e, fmt.Errorf("%s: %w", keyFence, err)
	}
	return e, e.oneProof(lines)
}

// oneProof refuses what leaves open which proof counts, or is half of one.
func (e Envelope) oneProof(lines map[string]string) error {
	_, signed := lines[keySignature]
	_, manifest := lines[keyManifest]
	_, manifestSigned := lines[keyManifestSig]
	switch {
	case signed && manifest:
		return errors.New("it has both a signature and a manifest")
	case manifest != manifestSigned:
		return errors.New("its manifest and the manifest's signature do not come together")
	}
	return nil
}

// keyed splits an envelope into its lines. Each key comes once; what only version 2 has is refused in version 1.
func keyed(text string) (map[string]string, error) {
	both := []string{keyVersion, keyPhase, keyParams, keySignature, keyScript}
	second := []string{keyManifest, keyManifestSig, keyFence, keyEnd}
	lines, ended := map[string]string{}, false
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch _, twice := lines[key]; {
		case ended:
			return nil, errors.New("it goes on after its end")
		case !ok || !slices.Contains(append(both, second...), key):
			return nil, fmt.Errorf("a line of it begins with %q", printable(key))
		case twice:
			return nil, fmt.Errorf("it has %s twice", key)
		}
		lines[key] = strings.TrimPrefix(value, " ")
		ended = key == keyEnd && line == keyEnd+":\n"
	}
	if ended != (lines[keyVersion] == "2") {
		return nil, errors.New("its end is not that of its version")
	}
	for _, key := range second {
		if _, there := lines[key]; there && !ended {
			return nil, fmt.Errorf("version 1 has no %s", key)
		}
	}
	return lines, nil
}

// assignments reads lines of NAME=value. No error holds a value.
func assignments(text string, name *regexp.Regexp, encoded bool) (map[string]string, error) {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || !name.MatchString(key) {
			return nil, fmt.Errorf("the name %q is not allowed", printable(key))
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%s comes twice", key)
		}
		if encoded {
			decoded, err := base64.StdEncoding.Strict().DecodeString(value)
			if err != nil {
				return nil, fmt.Errorf("the value of %s is no base64", key)
			}
			value = string(decoded)
		}
		all[key] = value
	}
	return all, nil
}
