// Package plugin is the kubectl plugin, `kubectl kpssh`. Its commands work on files; they write what they are told to, and print the rest.
package plugin

import (
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// surroundings are what the commands know of the world, so that tests can give them another one.
type surroundings struct {
	in       io.Reader
	out, err io.Writer
	now      func() time.Time
	env      func(string) string
	// ask asks a person for something that must not be seen.
	ask func(prompt string) ([]byte, error)
}

// Command is the plugin's command line.
func Command(in io.Reader, out, errOut io.Writer) *cobra.Command {
	return command(surroundings{in: in, out: out, err: errOut, now: time.Now, env: os.Getenv, ask: askOnTerminal})
}

func command(s surroundings) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-kpssh",
		Short:         "Work with machines that join the cluster over SSH",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl kpssh"},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.AddCommand(signCommand(s), verifyCommand(s))
	return root
}
