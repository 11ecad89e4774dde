// Command withoutturns is cmd/controller without turns of disruption: the control of the test that turns keep two instances from
// consolidating onto each other.
package main

import (
	"fmt"
	"os"

	"github.com/kpssh/karpenter-provider-ssh/pkg/operator"
)

func main() {
	settings, err := operator.SettingsFromEnv()
	if err == nil {
		settings.WithoutTurns = true
		err = operator.Run(settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "withoutturns:", err)
		os.Exit(1)
	}
}
