// Package plugin is the kubectl plugin, `kubectl kpssh`. Its commands work on files; they write what they are told to, and print the rest.
package plugin

import (
	"io"
	"time"

	"github.com/spf13/cobra"
)

// streams are a command's.
type streams struct {
	in       io.Reader
	out, err io.Writer
	// now is the time that expiries count from.
	now func() time.Time
}

// Command is the plugin's command line.
func Command(in io.Reader, out, errOut io.Writer) *cobra.Command {
	s := streams{in: in, out: out, err: errOut, now: time.Now}
	root := &cobra.Command{
		Use:           "kubectl-kpssh",
		Short:         "Work with karpenter-provider-ssh.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl kpssh"},
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.AddCommand(signCommand(s), verifyCommand(s))
	return root
}
