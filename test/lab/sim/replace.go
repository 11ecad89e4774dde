package sim

import (
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// Files of /proc that say what the machine is. There is no way to shadow them without root, so a command that is sent to a
// machine finds a variable in their place.
const (
	memInfoPath = "/proc/meminfo"
	bootIDPath  = "/proc/sys/kernel/random/boot_id"
)

var (
	memInfoVariable = variableFor(memInfoPath)
	bootIDVariable  = variableFor(bootIDPath)
	replacements    = []sshtest.Replacement{
		{Old: bootIDPath, New: `"$` + bootIDVariable + `"`},
		{Old: memInfoPath, New: `"$` + memInfoVariable + `"`},
	}
)

// variableFor makes a name so long that `"$name"` is as long as the path.
func variableFor(path string) string {
	name := "SIM_" + strings.ToUpper(path[strings.LastIndex(path, "/")+1:][:4])
	return name + strings.Repeat("_", len(path)-len(name)-3)
}
