// Command controller is one instance of karpenter-provider-ssh: karpenter core for the SSH machines of one network segment.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // maintenance windows name time zones, and the image holds no files but this program

	"github.com/kpssh/karpenter-provider-ssh/pkg/operator"
)

func main() {
	settings, err := operator.SettingsFromEnv()
	if err == nil {
		err = operator.Run(settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "karpenter-provider-ssh:", err)
		os.Exit(1)
	}
}
