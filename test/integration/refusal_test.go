package integration

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A process that must not run says why and what to do, and exits non-zero, before it writes anything.
func TestRefusesToStart(t *testing.T) {
	for name, test := range map[string]struct {
		instance, namespace string
		env                 []string
		says                []string
	}{
		"an instance name that is no DNS label": {"Seg_A", "kp-refused", nil, []string{`"Seg_A"`, "INSTANCE_NAME", "DNS label"}},
		"an instance name with a dot":           {"seg.a", "kp-refused", nil, []string{`"seg.a"`, "INSTANCE_NAME", "DNS label"}},
		"an instance name that is too long":     {strings.Repeat("a", 41), "kp-refused", nil, []string{"41 characters", "INSTANCE_NAME", "at most 40"}},
		"a pool namespace that cannot exist":    {"refused", "Kp/Refused", nil, []string{`"Kp/Refused"`, "POOL_NAMESPACE"}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			i := &instance{world: shared, name: test.instance, namespace: test.namespace, env: test.env}
			t.Cleanup(i.kill)
			// The name is not one that a certificate or a path should carry either.
			kubeconfig, err := i.cp.Kubeconfig(userPrefix+"refused", "system:masters")
			if err != nil {
				t.Fatal(err)
			}
			i.label = "refused"
			i.start(t, kubeconfig)
			select {
			case <-i.done():
			case <-time.After(time.Minute):
				t.Fatalf("it runs:\n%s", i.last.LogTail(20))
			}
			var exit *exec.ExitError
			if !errors.As(i.last.Err(), &exit) || exit.ExitCode() != 1 {
				t.Errorf("it ended with %v, want exit code 1", i.last.Err())
			}
			words := i.last.LogTail(20)
			for _, part := range test.says {
				if !strings.Contains(words, part) {
					t.Errorf("it does not say %q: %s", part, words)
				}
			}
			s := &scenario{instance: i, t: t}
			for _, e := range s.auditSince(began) {
				if e.User.Username == userPrefix+"refused" && e.Write() && e.Object.Resource != "selfsubjectaccessreviews" {
					t.Errorf("it wrote: %s %s", e.Verb, e.URI)
				}
			}
		})
	}
}
