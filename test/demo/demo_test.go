package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

func at(begin time.Time, seconds float64, hosts ...host) *snapshot {
	return &snapshot{at: begin.Add(time.Duration(seconds * float64(time.Second))), hosts: hosts}
}

func TestWithoutATerminalEveryChangeIsOneLine(t *testing.T) {
	var out bytes.Buffer
	begin := time.Now()
	screen := &screen{out: &out, begin: begin}
	screen.show(at(begin, 1, host{name: "m01", state: "Available"}))
	screen.show(at(begin, 2, host{name: "m01", state: "Available"}))
	screen.show(at(begin, 3, host{name: "m01", state: "Claimed", operation: "Join", trouble: "sudo asks for a password"}))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	want := []string{
		"1.0s m01 host - → Available",
		"3.0s m01 host Available → Claimed",
		"3.0s m01 does - → Join",
		"3.0s m01 trouble sudo asks for a password",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestOnATerminalTheTableIsRedrawnInPlace(t *testing.T) {
	var out bytes.Buffer
	begin := time.Now()
	screen := &screen{out: &out, live: true, begin: begin, width: func() int { return 20 }}
	screen.show(at(begin, 1, host{name: "m01", state: "Available", claim: "a-very-long-name"}))
	height := strings.Count(out.String(), "\n")
	for line := range strings.SplitSeq(out.String(), "\n") {
		if len(line) > 20 {
			t.Errorf("a line of %d columns wraps: %q", len(line), line)
		}
	}
	out.Reset()
	screen.show(at(begin, 2, host{name: "m01", state: "Claimed"}))
	if up := "\x1b[4A\x1b[J"; height != 4 || !strings.HasPrefix(out.String(), up) {
		t.Errorf("a table of %d lines, then %q", height, out.String())
	}
	out.Reset()
	screen.say("done")
	if got := out.String(); !strings.HasPrefix(got, "\x1b[4A\x1b[J") || !strings.HasSuffix(got, "done\n") {
		t.Errorf("a line that stays did not take the table's place: %q", got)
	}
}

func TestTimesCountFromTheActTheyBelongTo(t *testing.T) {
	begin := time.Now()
	times := newTimes()
	times.note(at(begin, 0, host{name: "m", state: string(v1beta1.HostInUse)})) // before anything began
	times.act, times.running, times.began[up] = up, true, begin
	times.note(at(begin, 1, host{name: "m", state: string(v1beta1.HostClaimed)}))
	times.note(at(begin, 2, host{name: "m", state: string(v1beta1.HostInUse), node: "Ready"}))
	times.note(at(begin, 3, host{name: "m", state: string(v1beta1.HostInUse), node: "Ready", running: 1}))
	times.act, times.began[down] = down, begin.Add(10*time.Second)
	times.note(at(begin, 11, host{name: "m", state: string(v1beta1.HostLeaving)}))
	times.note(at(begin, 13, host{name: "m", state: string(v1beta1.HostAvailable)}))
	for milestone, want := range map[string]time.Duration{
		claimed: time.Second, joined: 2 * time.Second, nodeReady: 2 * time.Second, podRuns: 3 * time.Second,
		leaving: time.Second, returned: 3 * time.Second,
	} {
		if got := times.machines["m"][milestone]; got != want {
			t.Errorf("%s after %s, want %s", milestone, got, want)
		}
	}
}

// The examples are what the demo shows; it must not fall behind them.
func TestTheExamplesCanBeAdapted(t *testing.T) {
	hosts, err := example[v1beta1.SSHHost]("host.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if h.Namespace != poolNamespace || h.Spec.SSHKeySecretRef.Name != hosts[0].Spec.SSHKeySecretRef.Name {
			t.Errorf("host %s: namespace %s, Secret %s", h.Name, h.Namespace, h.Spec.SSHKeySecretRef.Name)
		}
	}
	classes, err := example[v1beta1.SSHNodeClass]("nodeclass.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(classes) != 1 || classes[0].Spec.JoinProfileRef.Name == "" {
		t.Errorf("%d classes, profile %q", len(classes), classes[0].Spec.JoinProfileRef.Name)
	}
	pools, err := readExample("nodepool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i := range pools {
		if err := hasten(&pools[i]); err != nil {
			t.Error(err)
		}
	}
}
