package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// sound is a profile without findings.
func sound() *v1beta1.SSHJoinProfile {
	p := &v1beta1.SSHJoinProfile{}
	p.Name = "sound"
	p.Spec.Version = "1"
	p.Spec.Scripts = v1beta1.Scripts{
		Install: "set -euo pipefail\napt-get -o DPkg::Lock::Timeout=300 install -y containerd\n",
		Join:    "set -euo pipefail\nsystemctl enable --now kubelet.service\nkubelet --register-with-taints=\"$KPSSH_TAINTS\"\n",
		Leave:   "set -euo pipefail\nsystemctl disable --now kubelet 2>/dev/null\n",
	}
	return p
}

func TestLintFindsWhatHurtOthers(t *testing.T) {
	if findings := Lint(sound()); len(findings) > 0 {
		t.Fatalf("a sound profile: %v", findings)
	}
	install := func(line string) func(*v1beta1.Scripts) {
		return func(s *v1beta1.Scripts) { s.Install += line + "\n" }
	}
	join := func(line string) func(*v1beta1.Scripts) { return func(s *v1beta1.Scripts) { s.Join += line + "\n" } }
	leave := func(line string) func(*v1beta1.Scripts) { return func(s *v1beta1.Scripts) { s.Leave += line + "\n" } }
	for _, test := range []struct {
		name string
		edit func(*v1beta1.Scripts)
		rule string // empty: no finding
	}{
		{"section 2 #1: set -x", join("set -x"), RuleTraced},
		{"set -eux", join("  set -eux -o pipefail"), RuleTraced},
		{"set -e -x", join("set -e -x"), RuleTraced},
		{"xtrace by name", join("set -o xtrace"), RuleTraced},
		{"bash -x", join("bash -x /tmp/script"), RuleTraced},
		{"trace in a comment", join("# never set -x here"), ""},
		{"trace off", join("set +x"), ""},
		{"section 2 #58: not strict", func(s *v1beta1.Scripts) { s.Leave = "systemctl disable kubelet" }, RuleNotStrict},
		{"section 3 #43: pkill", leave("pkill -f containerd-shim"), RuleKillsByName},
		{"killall", leave("killall kubelet"), RuleKillsByName},
		{"section 3 #43: others' networks", leave("rm -rf /etc/cni/net.d/*"), RuleDeletesOthersCNI},
		{"others' networks, the folder", leave("rm -rf /etc/cni/net.d"), RuleDeletesOthersCNI},
		{"own network", leave("rm -f /etc/cni/net.d/90-mine.conflist"), ""},
		{"D12: apt without waiting", func(s *v1beta1.Scripts) { s.Install = "set -euo pipefail\napt-get install -y runc" }, RulePackageLock},
		{"E7: no unregistered taint", func(s *v1beta1.Scripts) { s.Join = "set -euo pipefail\nsystemctl enable kubelet" }, RuleUnregisteredTaint},
		{"E7: by template", func(s *v1beta1.Scripts) {
			s.Join = "set -euo pipefail\nkubelet --register-with-taints={{ .RegisterWithTaints }}"
		}, ""},
		{"section 2 #45: a unit stays enabled", install("systemctl enable containerd"), RuleUnitStaysEnabled},
		{"a unit stays enabled, over two lines", join("systemctl --quiet enable --now \\\n  crio.service"), RuleUnitStaysEnabled},
		{"nothing is disabled", func(s *v1beta1.Scripts) { s.Leave = "set -euo pipefail\nsystemctl stop kubelet" }, RuleUnitStaysEnabled},
		{"masked will do", func(s *v1beta1.Scripts) { s.Leave = "set -euo pipefail\nsystemctl mask --now kubelet.service" }, ""},
		{"section 2 #31: leave depends on a var", leave(`rm "$KPSSH_VAR_dir/x"`), RuleLeaveNeedsInputs},
		{"leave may use addresses", leave(`echo "$KPSSH_NODE_ADDRESS"`), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := sound()
			test.edit(&p.Spec.Scripts)
			found := false
			for _, finding := range Lint(p) {
				found = found || finding.Rule == test.rule
				if test.rule == "" {
					t.Errorf("unexpected: %s", finding)
				}
			}
			if test.rule != "" && !found {
				t.Errorf("%s not found, but %v", test.rule, Lint(p))
			}
		})
	}
}

// examples are the profiles that we ship, by file name.
func examples(t *testing.T) map[string]*v1beta1.SSHJoinProfile {
	t.Helper()
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	profiles := map[string]*v1beta1.SSHJoinProfile{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(raw), "\n---\n") {
			p := &v1beta1.SSHJoinProfile{}
			if !strings.Contains(document, "\nkind: SSHJoinProfile\n") {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(document), p); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			profiles[filepath.Base(file)] = p
		}
	}
	return profiles
}

func TestShippedProfilesAreValidAndWithoutFindings(t *testing.T) {
	shipped := examples(t)
	if shipped["profile-tls-bootstrap.yaml"] == nil {
		t.Fatal("examples/profile-tls-bootstrap.yaml holds no profile")
	}
	for file, p := range shipped {
		if err := Validate(p); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, finding := range Lint(p) {
			t.Errorf("%s: %s", file, finding)
		}
		for phase, text := range map[string]string{"install": p.Spec.Scripts.Install, "join": p.Spec.Scripts.Join, "leave": p.Spec.Scripts.Leave, "uninstall": p.Spec.Scripts.Uninstall} {
			if strings.Contains(text, "{{") {
				t.Errorf("%s, %s: a template cannot be signed; use the environment", file, phase)
			}
		}
	}
}
