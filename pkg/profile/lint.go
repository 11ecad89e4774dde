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
	RuleNodeIPUnchecked   = "NodeIPUnchecked"
)

var (
	strict    = regexp.MustCompile(`(?m)^\s*set\s+-\w*(?:e\w*u|u\w*e)\w*\s+(?:-o\s+)?pipefail\b`)
	traced    = regexp.MustCompile(`\bset\s+(-\w+\s+)*-\w*x|\bset\s.*-o\s+xtrace|\bbash\s+(-\w+\s+)*-\w*x|\bset\s.*-o\s+verbose`)
	byName    = regexp.MustCompile(`(?m)(^|[\s;&|(])(pkill|killall)(\s|$)`)
	others    = regexp.MustCompile(`\brm\s.*/etc/cni/net\.d(/\*|/?["']?\s*(;|$|&|\|))`)
	apt       = regexp.MustCompile(`\bapt(-get)?\s+(-\S+\s+)*(install|update|upgrade)\b|\bapt-get\s+-`)
	waits     = regexp.MustCompile(`DPkg::Lock::Timeout`)
	secrets   = regexp.MustCompile(`KPSSH_SECRET_|KPSSH_BOOTSTRAP_TOKEN|\.Secrets\b|\.BootstrapToken\b`)
	taint     = regexp.MustCompile(`KPSSH_TAINTS|\.RegisterWithTaints|karpenter\.sh/unregistered`)
	registers = regexp.MustCompile(`register-with-taints|registerWithTaints|\bnode-taint\b|\btaints:`)
	nodeIP    = regexp.MustCompile(`\bnode-ip\b`)
	addresses = regexp.MustCompile(`KPSSH_(NODE|HOST)_ADDRESS|\.(Node|Host)Address\b`)
	checks    = regexp.MustCompile(`=~|\bcase\s[^\n]*(?i:addr|ip)|\bgrep\b[^\n]*(?i:addr|ip)`)
	enables   = regexp.MustCompile(`(?m)\bsystemctl\s+(?:-\S+\s+)*(?:enable|reenable)\s+([^|&;\n]+)`)
	disables  = regexp.MustCompile(`(?m)\bsystemctl\s+(?:-\S+\s+)*(?:disable|mask)\s+([^|&;\n]+)`)
	variables = regexp.MustCompile(`\bKPSSH_[A-Z0-9_a-z]+`)
	comment   = regexp.MustCompile(`(?m)^\s*#.*$`)
	folded    = regexp.MustCompile(`\\\n\s*`)
)

// Lint finds what profiles commonly get wrong; nil if it has nothing to say. It reads text, so it can be deceived, and it can be wrong:
// Validate is what decides whether a profile is used. The order of findings is the order of the scripts.
func Lint(profile *v1beta1.SSHJoinProfile) []Finding {
	l := linter{spec: &profile.Spec, code: map[Phase]string{}}
	for _, phase := range append(slices.Clone(Phases[:]), uninstall) {
		l.code[phase] = folded.ReplaceAllString(comment.ReplaceAllString(script(l.spec, phase), ""), " ")
		if strings.TrimSpace(l.code[phase]) != "" {
			l.shell(phase)
		}
	}
	l.registration()
	l.afterReboot()
	l.inputsOfLeave()
	return l.findings
}

type linter struct {
	spec *v1beta1.SSHJoinProfileSpec
	// code of the phases, without comments, continued lines joined.
	code     map[Phase]string
	findings []Finding
}

func (l *linter) add(phase Phase, rule, message string) {
	l.findings = append(l.findings, Finding{Phase: phase, Rule: rule, Message: message})
}

// shell is about a script for itself.
func (l *linter) shell(phase Phase) {
	code := l.code[phase]
	if !strict.MatchString(code) {
		message := "begin with `set -euo pipefail`: a person who runs the script by hand, or a signature over it, gets it as it is"
		if signature(l.spec, phase) != "" {
			message = "begin with `set -euo pipefail` and sign it again: a signed script runs as it is, and one that goes on after a failure reports success"
		}
		l.add(phase, RuleNotStrict, message)
	}
	if traced.MatchString(code) && secrets.MatchString(code) {
		l.add(phase, RuleTraced, "do not trace (set -x): the script handles tokens or secrets, and a trace prints them")
	}
	if byName.MatchString(code) {
		l.add(phase, RuleKillsByName, "do not kill by name: other users of the machine have processes of that name; stop units and containers by ID")
	}
	if others.MatchString(code) {
		l.add(phase, RuleDeletesOthersCNI, "do not delete all of /etc/cni/net.d: remove the files that the profile wrote, by name")
	}
	if apt.MatchString(code) && !waits.MatchString(code) {
		l.add(phase, RulePackageLock, "give apt-get -o DPkg::Lock::Timeout=300: after boot another package manager often holds the lock")
	}
}

// registration is about what the Node is when it appears. Configuration that install writes counts.
func (l *linter) registration() {
	code := l.code[Install] + "\n" + l.code[Join]
	if !taint.MatchString(code) || !registers.MatchString(code) {
		l.add(Join, RuleUnregisteredTaint, "register the kubelet with KPSSH_TAINTS (register-with-taints, registerWithTaints, node-taint): "+
			"without karpenter.sh/unregistered pods land before karpenter has set labels and taints")
	}
	if nodeIP.MatchString(code) && addresses.MatchString(code) && !checks.MatchString(code) {
		l.add(Join, RuleNodeIPUnchecked, "give node-ip only when the address is an IP literal: it may be a DNS name, with which a kubelet does not start")
	}
}

// afterReboot is about what makes a machine that left a node again.
func (l *linter) afterReboot() {
	disabled := units(disables, l.code[Leave])
	// A unit in a variable, such as a loop's, is one of those that leave mentions.
	variable := slices.ContainsFunc(disabled, func(name string) bool { return strings.Contains(name, "$") })
	gone := func(unit string) bool {
		return slices.Contains(disabled, unit) || variable && strings.Contains(l.code[Leave], unit)
	}
	var kubelets []string
	for _, unit := range KubeletUnits(l.spec) {
		kubelets = append(kubelets, strings.TrimSuffix(unit, ".service"))
	}
	for _, unit := range kubelets {
		if !gone(unit) {
			l.add(Leave, RuleUnitStaysEnabled, "disable "+unit+", the kubelet's unit by spec.kubeletUnits: otherwise a reboot makes the machine a node again")
		}
	}
	var told []string
	for _, unit := range units(enables, l.code[Install]+"\n"+l.code[Join]) {
		if !gone(unit) && !slices.Contains(slices.Concat(kubelets, told), unit) {
			l.add(Leave, RuleUnitStaysEnabled, "disable "+unit+", which install or join enables: otherwise a reboot starts it on a machine that is no node")
			told = append(told, unit)
		}
	}
}

// inputsOfLeave is about what leave is not told.
func (l *linter) inputsOfLeave() {
	var told []string
	for _, name := range variables.FindAllString(l.code[Leave], -1) {
		if name != "KPSSH_HOST_ADDRESS" && name != "KPSSH_NODE_ADDRESS" && !slices.Contains(told, name) {
			l.add(Leave, RuleLeaveNeedsInputs, name+" is empty or absent in leave; have install or join write what it needs to a file")
			told = append(told, name)
		}
	}
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
