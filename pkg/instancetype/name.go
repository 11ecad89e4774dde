package instancetype

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"
)

// names gives every shape its instance type name. The smallest shape of a host class carries the bare class name, which is what
// manifests written for one type per class ask for; the others carry Shape.Name. shapes must be sorted and distinct.
func names(shapes []Shape) map[Shape]string {
	named, taken := make(map[Shape]string, len(shapes)), make(map[string]bool, len(shapes))
	for _, s := range shapes {
		if !taken[s.HostClass] {
			named[s], taken[s.HostClass] = s.HostClass, true
		}
	}
	for _, s := range shapes {
		if _, bare := named[s]; bare {
			continue
		}
		name := s.Name()
		if taken[name] { // a host class of that very name, or 1 chance in 4 billion
			name = s.name(32)
		}
		named[s], taken[name] = name, true
	}
	return named
}

// Name is the instance type name of a shape that is not the smallest of its host class, such as `big-arm64-8c-32gi-4e5d36a8`: a
// valid label value that depends on nothing but the shape.
func (s Shape) Name() string { return s.name(8) }

func (s Shape) name(digits int) string {
	cpu := strconv.FormatInt(s.CPU, 10) + "m"
	if s.CPU%1000 == 0 {
		cpu = strconv.FormatInt(s.CPU/1000, 10) + "c"
	}
	memory := strconv.FormatInt(s.Memory>>20, 10) + "mi"
	if s.Memory >= 1<<30 {
		memory = strconv.FormatInt(s.Memory>>30, 10) + "gi"
	}
	// The digest covers what the readable part rounds or leaves out.
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %d %d %q", s.HostClass, s.Arch, s.CPU, s.Memory, s.EphemeralStorage, s.Pods, s.Extra))
	suffix := "-" + s.Arch + "-" + cpu + "-" + memory + "-" + hex.EncodeToString(sum[:])[:digits]
	if room := validation.LabelValueMaxLength - len(suffix); room < 1 {
		return "x" + suffix[len(suffix)-digits-1:]
	} else if len(s.HostClass) > room {
		return s.HostClass[:room] + suffix
	}
	return s.HostClass + suffix
}
