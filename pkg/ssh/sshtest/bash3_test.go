package sshtest

import (
	"slices"
	"testing"
)

func TestNewerThanBash3(t *testing.T) {
	newer := []string{
		"local -A x", "declare -g x", "read -rN 5 x", "read -t 0.5 x", "mapfile -t x", "echo ${x@Q}", "exec {fd}>x", "wait -n", "printf '%(%s)T'",
		"a |& b", "a &>> b", "${x^^}", "${x,,}", "${x[1]^}", "${x:0:-1}", "[[ -v x ]]", "echo ${x[-1]}", "echo $BASHPID",
	}
	older := []string{
		"local -a x", "read -r -d '' -n 5 x", "read -t 60 x", `"${x[@]}"`, "${x//[^[:print:]]/?}", "exit ${2:-75}", "a & b", "a;; b", "[[ $1 == -* ]]", "# local -A",
	}
	for _, line := range newer {
		if !slices.Equal(NewerThanBash3("  "+line), []string{line}) {
			t.Errorf("%q is not found", line)
		}
	}
	for _, line := range older {
		if len(NewerThanBash3(line)) != 0 {
			t.Errorf("%q is no newer", line)
		}
	}
}
