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
		Join:    "set -euo pipefail\nsystemctl enable --now kubelet.service\nkubelet --register-with-taints=\"$KPSSH_TAINTS\" <<<\"$KPSSH_BOOTSTRAP_TOKEN\"\n",
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
		{"section 2 #1: trace of a join Secret", install("set -x; echo \"$KPSSH_SECRET_CODE\""), RuleTraced},
		{"trace where there is no secret", install("set -x"), ""},
		{"section 2 #58: a signed script that is not strict", func(s *v1beta1.Scripts) { s.Install = "true" }, RuleNotStrict},
		{"E7: a mention is no registration", func(s *v1beta1.Scripts) {
			s.Join = "set -euo pipefail\nsystemctl enable kubelet\necho \"$KPSSH_TAINTS\""
		}, RuleUnregisteredTaint},
		{"E7: k3s' file", func(s *v1beta1.Scripts) { s.Join = "set -euo pipefail\nprintf 'node-taint: [%s]' \"$KPSSH_TAINTS\"" }, ""},
		{"E7: k3s' flag", func(s *v1beta1.Scripts) { s.Join = "set -euo pipefail\nk3s agent --node-taint \"$KPSSH_TAINTS\"" }, ""},
		{"E7: the kubelet's file", func(s *v1beta1.Scripts) {
			s.Join = "set -euo pipefail\nprintf 'registerWithTaints: [%s]' \"$KPSSH_TAINTS\""
		}, ""},
		{"E7: kubeadm's file", func(s *v1beta1.Scripts) { s.Join = "set -euo pipefail\nprintf 'taints: %s' \"$KPSSH_TAINTS\"" }, ""},
		{"E7: nodeadm's flags", func(s *v1beta1.Scripts) {
			s.Join = "set -euo pipefail\nprintf -- '- --register-with-taints=%s' \"$KPSSH_TAINTS\""
		}, ""},
		{"section 2 #50: node-ip of a name", join("kubelet --node-ip=$KPSSH_NODE_ADDRESS"), RuleNodeIPUnchecked},
		{"section 2 #50: node-ip by template", join("kubelet --node-ip={{ .NodeAddress }}"), RuleNodeIPUnchecked},
		{"node-ip of a literal", join("if [[ $KPSSH_NODE_ADDRESS =~ ^[0-9.]+$ ]]; then echo node-ip: $KPSSH_NODE_ADDRESS; fi"), ""},
		{"units in a loop", func(s *v1beta1.Scripts) {
			s.Leave = "set -euo pipefail\nfor unit in kubelet containerd; do systemctl disable --now \"$unit\"; done"
		}, ""},
		{"another unit in a loop", func(s *v1beta1.Scripts) {
			s.Leave = "set -euo pipefail\nfor unit in crio; do systemctl disable --now \"$unit\"; done"
		}, RuleUnitStaysEnabled},
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

// Section 3 #22: leave disables what runs the profile's kubelet, and not what runs another's.
func TestLintKnowsTheKubeletsUnits(t *testing.T) {
	p := sound()
	p.Spec.Scripts.Join = strings.ReplaceAll(p.Spec.Scripts.Join, "kubelet.service", "k3s-agent.service")
	p.Spec.KubeletUnits = []string{"k3s-agent.service"}
	findings := Lint(p)
	if len(findings) != 1 || findings[0].Rule != RuleUnitStaysEnabled || !strings.Contains(findings[0].Message, "k3s-agent") {
		t.Errorf("a leave that disables the wrong unit: %v", findings)
	}
	p.Spec.Scripts.Leave = "set -euo pipefail\nsystemctl disable --now k3s-agent.service\n"
	if findings := Lint(p); len(findings) > 0 {
		t.Errorf("a leave that disables the right unit: %v", findings)
	}
}

// Section 2 #58: nothing adds strictness to a script that is signed.
func TestLintTellsToSignAgain(t *testing.T) {
	p := sound()
	p.Spec.Scripts.Leave = "systemctl disable --now kubelet\n"
	p.Spec.Signatures.Leave = "-----BEGIN SSH SIGNATURE-----"
	findings := Lint(p)
	if len(findings) != 1 || findings[0].Rule != RuleNotStrict || !strings.Contains(findings[0].Message, "sign it again") {
		t.Errorf("findings: %v", findings)
	}
}

// examples are the profiles that we ship, by name.
func examples(t *testing.T) map[string]*v1beta1.SSHJoinProfile {
	t.Helper()
	files, err := filepath.Glob("../../examples/profiles/*.yaml")
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
			if !strings.Contains("\n"+document, "\nkind: SSHJoinProfile\n") {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(document), p); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if filepath.Base(file) != p.Name+".yaml" {
				t.Errorf("%s holds profile %s", file, p.Name)
			}
			profiles[p.Name] = p
		}
	}
	return profiles
}

func TestShippedProfilesAreValidAndWithoutFindings(t *testing.T) {
	shipped := examples(t)
	for _, name := range []string{"tls-bootstrap", "sbc", "kubeadm", "k3s", "rke2", "nodeadm-ssm"} {
		if shipped[name] == nil {
			t.Errorf("examples/profiles/%s.yaml holds no profile", name)
		}
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
