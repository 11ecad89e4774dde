package sshtest

import (
	"regexp"
	"strings"
)

// newerThanBash3 are constructs that bash 3.2 does not parse, or takes for something else.
var newerThanBash3 = regexp.MustCompile(strings.Join([]string{
	`\b(local|declare|typeset) -[a-zA-Z]*[Angu]`, `\b(mapfile|readarray|coproc)\b`, `\bread -[a-zA-Z]*[Ni]`, `\bread .*-t "?[0-9]*\.`,
	`\bwait -[np]`, `\|&`, `&>>`, `;;?&`, `\$\{\w+(\[[^]]*\])?(\^|,|@[A-Za-z]\})`, `\$\{\w+:\d+:-`, `\{[a-z_]+\}[<>]`, `%\(`, `\[\[ -v`,
	`\[-1\]`, `\b(BASHPID|EPOCH\w+|SRANDOM)\b`, `shopt -s (globstar|lastpipe|inherit_errexit)`, `\\u[0-9a-fA-F]`,
}, "|"))

// NewerThanBash3 tells which lines of a script macOS's bash would not understand, without their indentation. It judges by the text, so
// a line that is never reached there is among them.
func NewerThanBash3(script string) []string {
	var found []string
	for line := range strings.SplitSeq(script, "\n") {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") && newerThanBash3.MatchString(line) {
			found = append(found, line)
		}
	}
	return found
}
