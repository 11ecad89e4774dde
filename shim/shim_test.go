package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestTheShimIsWhatMakeGenerateWrites(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "kpssh-shim")
	if said, err := exec.Command("../.ci/steps/shim.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != Script {
		t.Errorf("shim/kpssh-shim is out of date: run make generate and commit (%v)", err)
	}
}

func TestSignedScriptsRun(t *testing.T) {
	t.Parallel()
	inEveryShell(t, func(t *testing.T, m *machine) {
		awkward := "it's $(touch no) \"a\\b\" `c` ü"
		script := "set -euo pipefail\nprintf '%s|' \"$KPSSH_VALUE\" \"$KPSSH_EMPTY\" >got; umask >mask; cat >>got; echo said; echo complained >&2\n"
		v1 := m.signed(script)
		v1.params = []string{"KPSSH_EMPTY=", "KPSSH_VALUE=" + awkward}
		a := m.send(v1.text())
		if a.code != 0 || a.stdout != "said\n" || a.stderr != "complained\n" || m.read("work/got") != awkward+"||" {
			t.Errorf("version 1: %+v, %q", a, m.read("work/got"))
		}
		if mask := m.read("work/mask"); mask != "0022\n" {
			t.Errorf("the script's umask is %q", mask)
		}
		v2 := v1
		v2.version, v2.fence = "2", fence(nil)
		// Section 3 #28: a value with line ends, at its end too, arrives as it was sent.
		v2.params = []string{"KPSSH_VALUE=" + awkward + "\n\nmore\n\n", "KPSSH_EMPTY="}
		a = m.send(v2.text())
		if a.code != 0 || a.word() != "exit 0" || m.read("work/got") != awkward+"\n\nmore\n\n||" {
			t.Errorf("version 2: %+v, %q", a, m.read("work/got"))
		}
		if owner := m.read("state/owner"); owner != "cluster=c\ninstance=i\nhost=h\nclaim=n\nepoch=3\n" {
			t.Errorf("owner %q", owner)
		}
		a = m.send(m.withManifest("echo by manifest\n").text())
		if a.code != 0 || !strings.Contains(a.stdout, "\nby manifest\n") {
			t.Errorf("manifest: %+v", a)
		}
	})
}

// Section 2 #58: what runs is the signed bytes and nothing else, so strictness is the script's own.
func TestNothingIsAddedToASignedScript(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	for _, e := range []envelope{m.signed("false; echo \"$-|$#|${unset-x}\"; exit 0"), m.withManifest("false; echo \"$-|$#|${unset-x}\"; exit 0")} {
		if a := m.send(e.text()); a.code != 0 || !strings.Contains(a.stdout, "hB|0|x\n") {
			t.Errorf("%+v", a)
		}
		_ = os.Remove(m.path("state/owner"))
	}
}

// Section 2 #4.
func TestHostileNamesNeverReachTheScript(t *testing.T) {
	t.Parallel()
	inShells(t, []string{"sh"}, func(t *testing.T, m *machine) {
		m.write("hostile", "echo x >"+m.path("marker")+"\n")
		signed := m.signed("echo x >ran")
		for _, name := range []string{
			"BASH_ENV", "ENV", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "IFS", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND",
			"KPSSH_", "KPSSH_x;id", "KPSSH_x y", "KPSSH_$(id)", "KPSSH_`id`", "KPSSH_é", "KPSSH_x\ty", "kpssh_x", " KPSSH_X", "", "KPSSH-X",
			"KPSSH_RUN", "KPSSH_STATE_DIR", "k_host", "dir",
		} {
			for _, version := range []string{"1", "2"} {
				e := signed
				e.version = version
				if version == "2" {
					e.fence = fence(nil)
				}
				e.params = []string{"KPSSH_GOOD=1", name + "=" + m.path("hostile")}
				m.refused(m.send(e.text()), 3, "kpssh-shim: ")
			}
			if m.read("marker") != "" {
				t.Fatalf("%s was heard", name)
			}
		}
		e := signed
		e.params = []string{"secret words"}
		if a := m.send(e.text()); a.code != 3 || strings.Contains(a.stderr, "secret") {
			t.Errorf("a line without a name: %+v", a)
		}
		e.params = []string{"KPSSH_A=1", "KPSSH_A=2"}
		m.refused(m.send(e.text()), 3, "more than once")
	})
}

// The names that must not reach bash by a parameter must not do so by the client's environment either.
func TestTheEnvironmentSaysNothingToInterpreters(t *testing.T) {
	t.Parallel()
	inEveryShell(t, func(t *testing.T, m *machine) {
		m.write("hostile", "echo x >"+m.path("marker")+"\n")
		e := m.signed("true; env >got")
		e.params = []string{"KPSSH_A=1"}
		a := m.send(e.text(), "BASH_ENV="+m.path("hostile"), "ENV="+m.path("hostile"), "BASH_FUNC_true%%=() { echo x >"+m.path("marker")+"; }",
			"PS4=x", "SHELLOPTS=xtrace", "PYTHONPATH=/x", "PERL5OPT=-x", "KPSSH_NAME=theirs", "KPSSH_A=theirs", "k_host=x", "HTTPS_PROXY=kept", "MANY=a\nKPSSH_FAKE=x")
		if a.code != 0 || m.read("marker") != "" {
			t.Errorf("%+v, marker %q", a, m.read("marker"))
		}
		got := "\n" + m.read("work/got")
		for _, name := range []string{"BASH_ENV", "ENV", "BASH_FUNC_true%%", "PS4", "SHELLOPTS", "PYTHONPATH", "PERL5OPT", "KPSSH_NAME", "k_host", "TMPDIR", "KPSSH_SHIM_CONF"} {
			if strings.Contains(got, "\n"+name+"=") {
				t.Errorf("%s reaches the script", name)
			}
		}
		for _, line := range []string{"HTTPS_PROXY=kept", "KPSSH_A=1", "LC_ALL=C"} {
			if !strings.Contains(got, "\n"+line+"\n") {
				t.Errorf("%s does not reach the script", line)
			}
		}
	})
}

// Section 2 #5: the shim's own statuses are told from the script's.
func TestTheScriptsStatusNeverLooksLikeTheShims(t *testing.T) {
	t.Parallel()
	inShells(t, []string{"sh"}, func(t *testing.T, m *machine) {
		for _, code := range []int{1, 2, 3, 4, 5, 10, 75, 255} {
			v1 := m.signed("exit " + strconv.Itoa(code))
			if a := m.send(v1.text()); a.code != 10 || !strings.Contains(a.stderr, "exit status "+strconv.Itoa(code)+"\n") {
				t.Errorf("version 1, exit %d: %+v", code, a)
			}
			v2 := v1
			v2.version, v2.fence = "2", fence(map[string]string{"host": "h" + strconv.Itoa(code)})
			if a := m.send(v2.text()); a.code != 10 || a.word() != "exit "+strconv.Itoa(code) {
				t.Errorf("version 2, exit %d: %+v", code, a)
			}
			_ = os.Remove(m.path("state/owner"))
		}
	})
}

// Section 2 #6: what was forgotten on the machine is named.
func TestMissingAllowedSignersIsNamed(t *testing.T) {
	t.Parallel()
	inEveryShell(t, func(t *testing.T, m *machine) {
		wire := m.signed("echo x >ran").text()
		if err := os.Remove(m.path("etc/allowed_signers")); err != nil {
			t.Fatal(err)
		}
		m.refused(m.send(wire), 2, m.path("etc/allowed_signers")+" does not exist")
		m.write("etc/allowed_signers", "nobody "+m.publicKey("trusted"))
		m.refused(m.send(wire), 2, "signature rejected", "signer kpssh of "+m.path("etc/allowed_signers"))
		m.write("etc/allowed_signers", "kpssh nonsense\n")
		m.refused(m.send(wire), 2, "signature rejected")
		m.write("etc/allowed_signers", `kpssh namespaces="git" `+m.publicKey("trusted"))
		m.refused(m.send(wire), 2, "signature rejected", "namespace")
		m.write("etc/allowed_signers", `kpssh valid-before="20200101" `+m.publicKey("trusted"))
		m.refused(m.send(wire), 2, "signature rejected")
	})
}

func TestWhatWasNotSignedDoesNotRun(t *testing.T) {
	t.Parallel()
	inShells(t, []string{"sh"}, func(t *testing.T, m *machine) {
		script := "echo x >ran\n"
		for name, tc := range map[string]struct {
			change func(*envelope)
			words  []string
		}{
			"unsigned":             {func(e *envelope) { e.sig = "" }, []string{"not signed"}},
			"tampered":             {func(e *envelope) { e.script += "#" }, []string{"signature rejected"}},
			"rogue signer":         {func(e *envelope) { e.sig = m.sign("rogue", "kpssh", script) }, []string{"signature rejected"}},
			"another namespace":    {func(e *envelope) { e.sig = m.sign("trusted", "git", script) }, []string{"signature rejected"}},
			"a manifest's":         {func(e *envelope) { e.sig = m.sign("trusted", "kpssh-manifest", script) }, []string{"signature rejected"}},
			"no signature at all":  {func(e *envelope) { e.sig = "nonsense" }, []string{"signature rejected"}},
			"signature of another": {func(e *envelope) { e.sig = m.sign("trusted", "kpssh", "true") }, []string{"signature rejected"}},
		} {
			for _, version := range []string{"1", "2"} {
				e := m.signed(script)
				e.version = version
				if version == "2" {
					e.fence = fence(nil)
				}
				tc.change(&e)
				t.Log(name)
				m.refused(m.send(e.text()), 2, tc.words...)
			}
		}
	})
}

// Section 3 #46: a manifest ties a script to a profile, a version, a phase and a time.
func TestManifestsBindWhatTheySay(t *testing.T) {
	t.Parallel()
	inEveryShell(t, func(t *testing.T, m *machine) {
		for name, tc := range map[string]struct {
			change func(*manifest)
			after  func(*envelope)
			words  string
		}{
			"wrong phase":                 {change: func(f *manifest) { f.phase = "join" }, words: "is for join, not for install"},
			"sent as another phase":       {after: func(e *envelope) { e.phase = "leave" }, words: "is for install, not for leave"},
			"replayed for another script": {after: func(e *envelope) { e.script += "#" }, words: "another script"},
			"expired":                     {change: func(f *manifest) { f.expires = "2020-01-01T00:00:00Z" }, words: "kubeadm@7 has expired on 2020-01-01"},
			"rogue signer":                {change: func(f *manifest) { f.signer = "rogue" }, words: "signature rejected"},
			"unsigned":                    {change: func(f *manifest) { f.signer = "" }, words: "not signed"},
			"signed as a script":          {change: func(f *manifest) { f.namespace = "kpssh" }, words: "signature rejected"},
			"tampered":                    {after: func(e *envelope) { e.manifest = strings.Replace(e.manifest, "never", "2999-01-01T00:00:00Z", 1) }, words: "signature rejected"},
			"of a later version":          {change: func(f *manifest) { f.version = "2" }, words: "of version"},
			"no profile":                  {change: func(f *manifest) { f.profile = "" }, words: "none of version 1"},
			"time without zone":           {change: func(f *manifest) { f.expires = "2999-01-01T00:00:00" }, words: "no time"},
			"a line more":                 {change: func(f *manifest) { f.expires = "never\nexpires: never" }, words: "none of version 1"},
			"a line before":               {change: func(f *manifest) { f.version = "1\nprofile: other" }, words: "none of version 1"},
		} {
			e := m.withManifest("echo x >ran", func(f *manifest) {
				if tc.change != nil {
					tc.change(f)
				}
			})
			if tc.after != nil {
				tc.after(&e)
			}
			t.Log(name)
			m.refused(m.send(e.text()), 2, tc.words)
		}
		valid := m.withManifest("echo valid", func(f *manifest) { f.expires = "2999-01-01T00:00:00Z" })
		if a := m.send(valid.text()); a.code != 0 || !strings.Contains(a.stdout, "valid") {
			t.Errorf("not yet expired: %+v", a)
		}
		// A machine that cannot leave any more is worse than one that leaves by an old script.
		leave := m.withManifest("echo left", func(f *manifest) { f.phase, f.expires = "leave", "2020-01-01T00:00:00Z" })
		leave.phase = "leave"
		if a := m.send(leave.text()); a.code != 0 || !strings.Contains(a.stdout, "left") || !strings.Contains(a.stderr, "has expired") || m.read("state/owner") != "" {
			t.Errorf("expired leave: %+v", a)
		}
	})
}

func TestManifestsCanBeRequired(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	v1, v2 := m.signed("echo x >ran"), m.signed("echo x >ran")
	v2.version, v2.fence = "2", fence(nil)
	for name, file := range map[string][2]string{"file": {"etc/require-manifest", ""}, "setting": {"etc/shim.conf", "# ours\n\nKPSSH_REQUIRE_MANIFEST=1"}} {
		t.Log(name)
		m.write(file[0], file[1])
		m.refused(m.send(v1.text()), 2, "without a signed manifest")
		m.refused(m.send(v2.text()), 2, "without a signed manifest")
		if a := m.send(m.withManifest("true").text()); a.code != 0 {
			t.Errorf("%+v", a)
		}
		if err := os.Remove(m.path(file[0])); err != nil {
			t.Fatal(err)
		}
	}
	// A misspelt setting is not one that nobody keeps.
	for _, line := range []string{"KPSSH_REQUIRE_MANIFST=1", "KPSSH_REQUIRE_MANIFEST=yes", "require-manifest", "KPSSH_DEADLINE=1h", "KPSSH_DEADLINE=007"} {
		m.write("etc/shim.conf", line+"\n")
		name, _, _ := strings.Cut(line, "=")
		m.refused(m.send(v1.text()), 1, name)
	}
}

func TestMalformedEnvelopes(t *testing.T) {
	t.Parallel()
	inShells(t, []string{"sh"}, func(t *testing.T, m *machine) {
		one, two := m.signed("echo x >ran").text(), m.withManifest("echo x >ran").text()
		both := m.withManifest("echo x >ran")
		both.sig = "x"
		swap := func(wire, old, new string) string { return strings.Replace(wire, old, new, 1) }
		fenced := func(key, value string) string {
			e := m.withManifest("echo x >ran")
			e.fence = fence(map[string]string{key: value})
			return e.text()
		}
		for name, tc := range map[string]struct {
			wire string
			code int
		}{
			"nothing":                {"", 4},
			"no version":             {swap(one, "kpssh-envelope: 1\n", ""), 4},
			"version 3":              {swap(one, "kpssh-envelope: 1", "kpssh-envelope: 3"), 4},
			"no phase":               {swap(one, "phase: install\n", ""), 5},
			"unknown phase":          {swap(one, "phase: install", "phase: reboot"), 5},
			"phase with more":        {swap(one, "phase: install", "phase: install;id"), 5},
			"two phases":             {swap(one, "phase: install", "phase: install\nphase: leave"), 4},
			"no script":              {one[:strings.Index(one, "script-b64")], 4},
			"unknown key":            {one + "surprise: x\n", 4},
			"no key":                 {one + "surprise\n", 4},
			"key of version 2":       {one + "fence-b64: eA==\n", 4},
			"base64":                 {swap(one, "script-b64: ", "script-b64: *"), 4},
			"base64, cut":            {one[:len(one)-3] + "\n", 4},
			"binary":                 {one + "\x00\n", 4},
			"carriage returns":       {strings.ReplaceAll(one, "\n", "\r\n"), 4},
			"end in version 1":       {one + "end:\n", 4},
			"no end":                 {strings.TrimSuffix(two, "end:\n"), 4},
			"end in the middle":      {two + "\n", 4},
			"signature and manifest": {both.text(), 4},
			"no fence":               {strings.Join(without(two, "fence-b64"), "\n"), 4},
			"fence: nonce":           {fenced("nonce", "x"), 4},
			"fence: token":           {fenced("token", "-"), 4},
			// Bash would evaluate it where it calculates.
			"fence: arithmetic": {fenced("epoch", "a[$(touch ran)]"), 4},
			"fence: octal":      {fenced("epoch", "08"), 4},
			"fence: path":       {fenced("host", "../x"), 4},
			"fence: no host":    {fenced("host", ""), 4},
			"fence: quote":      {fenced("cluster", "'; touch ran; '"), 4},
			"fence: twice":      {fenced("limit", "1\nlimit=2"), 4},
			"fence: takeover":   {fenced("takeover", "\x01"), 4},
		} {
			t.Log(name)
			m.refused(m.send(tc.wire), tc.code)
		}
		if a := m.send(fenced("takeover", "it's; $(touch ran) ours")); a.code != 0 || m.read("work/ran") != "x\n" {
			t.Errorf("a quoted take-over: %+v", a)
		}
	})
}

// without drops one key's line.
func without(wire, key string) []string {
	var kept []string
	for line := range strings.SplitSeq(wire, "\n") {
		if !strings.HasPrefix(line, key) {
			kept = append(kept, line)
		}
	}
	return kept
}

func TestEnvelopesAreBounded(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "sh")
	script := "true\n" + strings.Repeat("#", 2<<20)
	if a := m.send(m.signed(script).text()); a.code != 0 {
		t.Errorf("2 MiB: %+v", a)
	}
	// It is not even read to its end: there is none.
	endless := strings.Repeat("#", 5<<20)
	m.refused(m.send("kpssh-envelope: 2\nscript-b64: "+endless+"\nend:\n"), 4, "over 4194304 bytes")
}
