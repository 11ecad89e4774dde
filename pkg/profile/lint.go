package profile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// Finding is something about a profile that works and should not be left so.
type Finding struct {
	// Phase whose script it is about; "uninstall" too.
	Phase Phase
	// Rule in CamelCase.
	Rule string
	// Message says what is wrong and what to do.
	Message string
}

// String is `phase: rule: message`.
func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Phase, f.Rule, f.Message) }

// Rules of Lint.
const (
	RuleNotStrict         = "NotStrict"
	RuleTraced            = "Traced"
	RuleKillsByName       = "KillsByName"
	RuleDeletesOthersCNI  = "DeletesOthersNetworks"
	RulePackageLock       = "PackageLockNotAwaited"
	RuleUnregisteredTaint = "UnregisteredTaintMissing"
	RuleUnitStaysEnabled  = "UnitStaysEnabled"
	RuleLeaveNeedsInputs  = "LeaveNeedsInputs"
)

var (
	strict    = regexp.MustCompile(`(?m)^\s*set -euo pipefail\b`)
	traced    = regexp.MustCompile(`\bset\s+(-\w+\s+)*-\w*x|\bset\s.*-o\s+xtrace|\bbash\s+(-\w+\s+)*-\w*x|\bset\s.*-o\s+verbose`)
	byName    = regexp.MustCompile(`\b(pkill|killall)\b`)
	others    = regexp.MustCompile(`\brm\s.*/etc/cni/net\.d(/\*|/?["']?\s*(;|$|&|\|))`)
	apt       = regexp.MustCompile(`\bapt(-get)?\s+(-\S+\s+)*(install|update|upgrade)\b|\bapt-get\s+-`)
	waits     = regexp.MustCompile(`DPkg::Lock::Timeout`)
	taint     = regexp.MustCompile(`KPSSH_TAINTS|\.RegisterWithTaints|karpenter\.sh/unregistered`)
	enables   = regexp.MustCompile(`(?m)\bsystemctl\s+(?:-\S+\s+)*(?:enable|reenable)\s+([^|&;\n]+)`)
	disables  = regexp.MustCompile(`(?m)\bsystemctl\s+(?:-\S+\s+)*(?:disable|mask)\s+([^|&;\n]+)`)
	variables = regexp.MustCompile(`\bKPSSH_[A-Z0-9_a-z]+`)
	comment   = regexp.MustCompile(`(?m)^\s*#.*$`)
	folded    = regexp.MustCompile(`\\\n\s*`)
)

// Lint finds what profiles commonly get wrong. It reads text, so it can be deceived; Validate is what decides. The secret that a
// trace prints is hidden by the Redactor, and still on the machine's own terminals and journals.
func Lint(profile *v1beta1.SSHJoinProfile) []Finding {
	var findings []Finding
	add := func(phase Phase, rule, message string) {
		findings = append(findings, Finding{Phase: phase, Rule: rule, Message: message})
	}
	code := map[Phase]string{}
	for _, phase := range append(slices.Clone(Phases[:]), "uninstall") {
		text := script(&profile.Spec, phase)
		if phase == "uninstall" {
			text = profile.Spec.Scripts.Uninstall
		}
		code[phase] = folded.ReplaceAllString(comment.ReplaceAllString(text, ""), " ")
		if strings.TrimSpace(code[phase]) == "" {
			continue
		}
		if !strict.MatchString(code[phase]) {
			add(phase, RuleNotStrict, "begin with `set -euo pipefail`: signed scripts run as they are, and one that goes on after a failure reports success")
		}
		if traced.MatchString(code[phase]) {
			add(phase, RuleTraced, "do not trace (set -x): it prints tokens and secrets")
		}
		if byName.MatchString(code[phase]) {
			add(phase, RuleKillsByName, "do not kill by name: other users of the machine have processes of that name; stop units and containers by ID")
		}
		if others.MatchString(code[phase]) {
			add(phase, RuleDeletesOthersCNI, "do not delete all of /etc/cni/net.d: remove the files that the profile wrote, by name")
		}
		if apt.MatchString(code[phase]) && !waits.MatchString(code[phase]) {
			add(phase, RulePackageLock, "give apt-get -o DPkg::Lock::Timeout=300: after boot another package manager often holds the lock")
		}
	}
	if !taint.MatchString(code[Join]) {
		add(Join, RuleUnregisteredTaint, "register the kubelet with KPSSH_TAINTS: without karpenter.sh/unregistered pods land before karpenter has set labels and taints")
	}
	for _, unit := range units(enables, code[Install]+"\n"+code[Join]) {
		if !slices.Contains(units(disables, code[Leave]), unit) {
			add(Leave, RuleUnitStaysEnabled, "disable "+unit+", which install or join enables: otherwise a reboot makes the machine a node again")
		}
	}
	if len(units(disables, code[Leave])) == 0 {
		add(Leave, RuleUnitStaysEnabled, "disable the kubelet's unit: otherwise a reboot makes the machine a node again")
	}
	for _, name := range variables.FindAllString(code[Leave], -1) {
		if name != "KPSSH_HOST_ADDRESS" && name != "KPSSH_NODE_ADDRESS" {
			add(Leave, RuleLeaveNeedsInputs, name+" is empty or absent in leave; have install or join write what it needs to a file")
		}
	}
	return findings
}

// units are the names in matches of systemctl, without flags, quotes and the suffix .service.
func units(command *regexp.Regexp, code string) []string {
	var names []string
	for _, match := range command.FindAllStringSubmatch(code, -1) {
		for _, word := range strings.Fields(match[1]) {
			if strings.ContainsAny(word, "><") {
				break
			}
			if name := strings.TrimSuffix(strings.Trim(word, `"'`), ".service"); name != "" && !strings.HasPrefix(name, "-") {
				names = append(names, name)
			}
		}
	}
	return names
}
