package probe

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// script is what runs on the machine; it takes KPSSH_KUBELET_UNITS, names of systemd units with blanks between.
//
//go:embed probe.sh
var script string

// factPrefix starts every line of the script's output that is a fact.
const factPrefix = "kpssh."

// facts is what a machine says about itself.
type facts struct {
	cpu    resource.Quantity
	memory resource.Quantity
	// arch as Kubernetes spells it.
	arch string
	// clock is the machine's, in whole seconds; zero if it was not told.
	clock time.Time
	// boot changes with every boot; empty where the kernel does not tell.
	boot string
	// owner is the owner file's content on one line; empty if there is none.
	owner string
	// units are the kubelet's, in the order in which they were asked for.
	units []unit
}

// unit is a systemd unit that runs a kubelet.
type unit struct {
	name string
	// active is systemd's ActiveState, or `absent` where there is no systemd.
	active string
	// file is systemd's UnitFileState; empty if there is no such unit.
	file string
}

// running tells whether the unit's kubelet runs, or is about to. A kubelet that crashes in a loop is `activating` most of the time.
func (u unit) running() bool {
	return slices.Contains([]string{"active", "activating", "reloading", "refreshing", "deactivating"}, u.active)
}

// enabled tells whether the unit's kubelet would start at the next boot.
func (u unit) enabled() bool { return u.file == "enabled" || u.file == "enabled-runtime" }

func (u unit) String() string {
	switch {
	case u.running() && u.enabled():
		return u.name + " is " + u.active + " and enabled"
	case u.enabled():
		return u.name + " is enabled"
	}
	return u.name + " is " + u.active
}

// kubelet is the unit that makes, or would make, this machine a node by itself.
func (f facts) kubelet() (unit, bool) {
	for _, u := range f.units {
		if u.running() {
			return u, true
		}
	}
	for _, u := range f.units {
		if u.enabled() {
			return u, true
		}
	}
	return unit{}, false
}

// architectures spells the kernel's names as Kubernetes does; others are passed on as they are.
var architectures = map[string]string{"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

var (
	archPattern  = regexp.MustCompile(`^[a-z0-9_]{1,32}$`)
	bootPattern  = regexp.MustCompile(`^[0-9a-f-]{0,64}$`)
	ownerPattern = regexp.MustCompile(`^[\x20-\x7e]{0,1000}$`)
	statePattern = regexp.MustCompile(`^([a-z]{1,32})/([a-z-]{0,32})$`)
)

// parseFacts reads the script's output. It is strict: every fact must be there exactly once and make sense, because a host with
// wrong facts would be offered as something it is not. Lines that do not look like facts are ignored.
func parseFacts(stdout string, units []string) (facts, error) {
	values := map[string]string{}
	for line := range strings.SplitSeq(stdout, "\n") {
		if !strings.HasPrefix(line, factPrefix) {
			continue
		}
		key, value, found := strings.Cut(strings.TrimPrefix(line, factPrefix), "=")
		if !found {
			return facts{}, fmt.Errorf("line %q is not %skey=value", excerpt(line), factPrefix)
		}
		if _, twice := values[key]; twice {
			return facts{}, fmt.Errorf("%s%s was said twice", factPrefix, excerpt(key))
		}
		values[key] = value
	}

	var read reader = values
	f := facts{
		cpu:    *resource.NewQuantity(read.number("cpu", 1, 1<<20), resource.DecimalSI),
		memory: *resource.NewQuantity(read.number("memory", 1, 1<<40)*1024, resource.BinarySI),
		clock:  time.Unix(read.number("time", 0, 1<<40), 0),
		arch:   read.text("arch", archPattern),
		boot:   read.text("boot", bootPattern),
		owner:  strings.TrimSpace(read.text("owner", ownerPattern)),
	}
	if name, known := architectures[f.arch]; known {
		f.arch = name
	}
	if _, told := read["shim"]; told {
		read.number("shim", 2, 1<<10) // the version that a shim speaks; the transport knows
	}
	for index, name := range units {
		state := statePattern.FindStringSubmatch(read.text(fmt.Sprintf("unit.%d", index), statePattern))
		if state != nil {
			f.units = append(f.units, unit{name: name, active: state[1], file: state[2]})
		}
	}
	return f, read.err()
}

// kubeletUnit is the unit that shims of the existing provider look at.
const kubeletUnit = "kubelet.service"

// parseOldFacts reads what a shim of the existing provider tells: the CPU count, the memory in kB, the machine's name, and whether the kubelet is
// active, as words. It tells neither clock nor boot, owner or what is enabled.
func parseOldFacts(stdout string, units []string) (facts, error) {
	words := strings.Fields(stdout)
	if len(words) < 3 {
		return facts{}, fmt.Errorf("the shim told %d facts, and there are three at least", len(words))
	}
	read := reader{"cpu": words[0], "memory": words[1], "arch": words[2]}
	f := facts{
		cpu:    *resource.NewQuantity(read.number("cpu", 1, 1<<20), resource.DecimalSI),
		memory: *resource.NewQuantity(read.number("memory", 1, 1<<40)*1024, resource.BinarySI),
		arch:   read.text("arch", archPattern),
	}
	if name, known := architectures[f.arch]; known {
		f.arch = name
	}
	for _, name := range units {
		u := unit{name: name, active: "absent"}
		if name == kubeletUnit {
			u.active = "inactive"
			if len(words) > 3 && words[3] == "active" {
				u.active = "active"
			}
		}
		f.units = append(f.units, u)
	}
	return f, read.err()
}

// reader takes facts out of what was said; what is missing, odd or left over it keeps as an error.
type reader map[string]string

const oddity = "\x00" // no fact's key

func (r reader) text(key string, pattern *regexp.Regexp) string {
	value, found := r[key]
	delete(r, key)
	switch {
	case !found:
		r.odd("%s%s is missing", factPrefix, key)
	case !pattern.MatchString(value):
		r.odd("%s%s is %q", factPrefix, key, excerpt(value))
	default:
		return value
	}
	return ""
}

var numberPattern = regexp.MustCompile(`^[0-9]{1,18}$`)

func (r reader) number(key string, least, most int64) int64 {
	value := r.text(key, numberPattern)
	if value == "" {
		return 0
	}
	number, err := strconv.ParseInt(value, 10, 64)
	if err != nil || number < least || number > most {
		r.odd("%s%s is %s", factPrefix, key, value)
		return 0
	}
	return number
}

func (r reader) odd(format string, args ...any) {
	if _, found := r[oddity]; !found {
		r[oddity] = fmt.Sprintf(format, args...)
	}
}

func (r reader) err() error {
	if odd, found := r[oddity]; found {
		return fmt.Errorf("%s", odd)
	}
	for key := range r {
		return fmt.Errorf("%s%s is no fact that was asked for", factPrefix, excerpt(key))
	}
	return nil
}

// excerpt keeps a hostile machine from filling a status with its output.
func excerpt(s string) string {
	if runes := []rune(s); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return s
}
