package verified

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

func TestEnvelopesAreReadAsTheyWereWritten(t *testing.T) {
	for name, e := range map[string]Envelope{
		"a probe":          {Version: 1, Phase: "probe"},
		"a probe, fenced":  {Version: 2, Phase: "probe", Fence: map[string]string{"limit": "3000", "empty": ""}},
		"a script":         {Version: 1, Phase: "join", Params: map[string]string{"KPSSH_B": "", "KPSSH_A": "a=b 'c'"}, Script: script, Signature: "sig"},
		"several lines":    {Version: 2, Phase: "join", Params: map[string]string{"KPSSH_A": "one\ntwo\r\n\x00"}, Script: script, Signature: "sig"},
		"with a manifest":  {Version: 2, Phase: "leave", Script: script, Manifest: "m", ManifestSignature: "s"},
		"a script of none": {Version: 2, Phase: "uninstall"},
	} {
		text, err := e.Encode()
		wants(t, err, "")
		got, err := Decode(text)
		wants(t, err, "")
		if len(e.Params) == 0 {
			e.Params = map[string]string{}
		}
		if len(e.Fence) == 0 {
			e.Fence = map[string]string{}
		}
		if !reflect.DeepEqual(got, e) {
			t.Errorf("%s: wrote %+v, read %+v", name, e, got)
		}
	}
}

// The form of version 1 is the existing provider's, to the byte.
func TestVersionOneIsWhatOldShimsRead(t *testing.T) {
	got, err := Envelope{Version: 1, Phase: "join", Params: map[string]string{"KPSSH_B": "2", "KPSSH_A": "1"}, Script: "true\n", Signature: "sig\n",
		Manifest: "is not sent", Fence: map[string]string{"nor": "this"}}.Encode()
	wants(t, err, "")
	const want = "kpssh-envelope: 1\nphase: join\nparams-b64: S1BTU0hfQT0xCktQU1NIX0I9Mgo=\nsig-b64: c2lnCg==\nscript-b64: dHJ1ZQo=\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The form of version 2: the order of its lines, each value in base64 within the parameters' base64, and its end.
func TestVersionTwoIsWhatTheShimReads(t *testing.T) {
	got, err := Envelope{Version: 2, Phase: "join", Params: map[string]string{"KPSSH_B": "", "KPSSH_A": "1\n2"}, Script: "true\n", Manifest: "m\n", ManifestSignature: "s\n",
		Fence: map[string]string{"token": "t", "limit": "1"}}.Encode()
	wants(t, err, "")
	const want = "kpssh-envelope: 2\nphase: join\nparams-b64: S1BTU0hfQT1NUW95CktQU1NIX0I9Cg==\nmanifest-b64: bQo=\nmanifest-sig-b64: cwo=\nscript-b64: dHJ1ZQo=\n" +
		"fence-b64: bGltaXQ9MQp0b2tlbj10Cg==\nend:\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := (Envelope{Version: 2, Phase: "join", Script: "true", Signature: "s", Manifest: "m", ManifestSignature: "s"}).Encode(); err == nil {
		t.Error("it carries two proofs")
	}
}

// Section 3 #28: what version 1 cannot carry is the configuration's fault, and no text of a fault holds a value.
func TestWhatAnEnvelopeCannotCarry(t *testing.T) {
	const secret = "hunter2hunter2"
	for name, row := range map[string]struct {
		envelope Envelope
		reason   string
	}{
		"two lines in version 1": {Envelope{Version: 1, Phase: "join", Params: map[string]string{"KPSSH_SECRET_A": secret + "\nmore"}}, ReasonValueMultiline},
		"a long script":          {Envelope{Version: 2, Phase: "join", Script: strings.Repeat("x", maxScript+1)}, ReasonEnvelopeTooLarge},
		"long values":            {Envelope{Version: 2, Phase: "join", Params: map[string]string{"KPSSH_A": strings.Repeat("x", maxParams)}}, ReasonEnvelopeTooLarge},
		"much of everything": {Envelope{Version: 2, Phase: "join", Script: strings.Repeat("x", maxScript), Signature: strings.Repeat("x", maxEnvelope),
			Params: map[string]string{"KPSSH_A": secret}}, ReasonEnvelopeTooLarge},
		"two lines in the fence": {Envelope{Version: 2, Phase: "join", Fence: map[string]string{"a": "b\nc"}}, "ScriptInvalid"},
	} {
		_, err := row.envelope.Encode()
		t.Log(name)
		wants(t, err, row.reason)
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows a value: %v", name, err)
		}
	}
}

// Section 2 #4: a parameter's name can set none of the shell's own variables, on neither side.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"BASH_ENV", "ENV", "LD_PRELOAD", "PATH", "IFS", "SHELLOPTS", "KPSSH_", "KPSSH_x;id", "KPSSH_x y", "KPSSH_é", "kpssh_x", " KPSSH_X", "KPSSH_X=", "KPSSH_X\nENV", "BASH_FUNC_ls%%", ""} {
		for version := range 2 {
			_, err := Envelope{Version: version + 1, Phase: "join", Params: map[string]string{name: "1"}}.Encode()
			t.Logf("%q", name)
			wants(t, err, "ScriptInvalid")
		}
		if _, err := assignments(name+"=1\n", paramName, false); err == nil && name != "KPSSH_X=" {
			t.Errorf("the other side takes %q", name)
		}
	}
}

func TestEnvelopesThatAreNone(t *testing.T) {
	good := map[string]string{"1": "kpssh-envelope: 1\nphase: probe\n", "2": "kpssh-envelope: 2\nphase: probe\nend:\n"}
	for _, text := range good {
		if _, err := Decode(text); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"nothing":                   "",
		"no version":                "phase: probe\n",
		"another version":           strings.Replace(good["1"], "1", "3", 1),
		"another phase":             strings.Replace(good["1"], "probe", "reboot", 1),
		"a key twice":               good["1"] + "phase: probe\n",
		"an unknown key":            good["1"] + "user: root\n",
		"no key":                    good["1"] + "hello\n",
		"version 2 without an end":  strings.Replace(good["2"], "end:\n", "", 1),
		"version 1 with a manifest": good["1"] + "manifest-b64: YQ==\nmanifest-sig-b64: YQ==\n",
		"half a manifest":           strings.Replace(good["2"], "end:", "manifest-b64: YQ==\nend:", 1),
		"two proofs":                strings.Replace(good["2"], "end:", "sig-b64: YQ==\nmanifest-b64: YQ==\nmanifest-sig-b64: YQ==\nend:", 1),
		"more after the end":        good["2"] + "phase: probe\n",
		"an end that says more":     strings.Replace(good["2"], "end:", "end: now", 1),
		"an end without its line":   strings.TrimSuffix(good["2"], "\n"),
		"version 1 with an end":     good["1"] + "end:\n",
		"no base64":                 good["1"] + "script-b64: !\n",
		"a hostile name":            good["1"] + "params-b64: RU5WPTEK\n",
		"too long":                  good["1"] + strings.Repeat("x", maxEnvelope),
	} {
		if _, err := Decode(text); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
}

// Section 2 #5, section 3 #29: each exit code has one meaning, and only the script's and the shim's own failures are the machine's.
func TestExitCodes(t *testing.T) {
	if Judge(ExitOK, "") != nil {
		t.Error("success is a fault")
	}
	for code, want := range map[int]string{
		1: "host ShimInternal", 2: "configuration ShimSignatureRejected", 3: "configuration ShimParamRejected", 4: "configuration ShimEnvelopeRejected",
		5: "configuration ShimPhaseUnknown", 10: "host ScriptFailed", 126: "host ShimMissing", 127: "host ShimMissing", 137: "host ShimInternal",
	} {
		f := Judge(code, "what it said")
		if got := string(f.Blame) + " " + f.Reason; got != want || !strings.Contains(f.Message, "what it said") {
			t.Errorf("%d: got %s %q, want %s", code, got, f.Message, want)
		}
		if reason, blame := Blame(code); reason != f.Reason || blame != f.Blame {
			t.Errorf("%d: %s %s, and %s %s", code, reason, blame, f.Reason, f.Blame)
		}
	}
	if reason, blame := Blame(ExitOK); reason != "" || blame != "" {
		t.Errorf("success is %s's %s", blame, reason)
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, e := range []Envelope{
		{Version: 1, Phase: "probe"},
		{Version: 1, Phase: "join", Params: map[string]string{"KPSSH_A": "b"}, Script: script, Signature: "sig"},
		{Version: 2, Phase: "leave", Params: map[string]string{"KPSSH_A": "b\nc"}, Script: script, Manifest: "m", ManifestSignature: "s", Fence: map[string]string{"k": "v"}},
	} {
		text, err := e.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Decode(text)
		if err != nil {
			return
		}
		again, err := e.Encode()
		if err != nil {
			if fault.Of(err).Reason == ReasonEnvelopeTooLarge || fault.Of(err).Reason == ReasonValueMultiline || e.Version == 1 {
				return
			}
			t.Fatalf("read, and cannot be written: %v", err)
		}
		same, err := Decode(again)
		if err != nil || !maps.Equal(same.Params, e.Params) || same.Script != e.Script || same.Phase != e.Phase {
			t.Fatalf("%+v was written and read as %+v: %v", e, same, err)
		}
	})
}
