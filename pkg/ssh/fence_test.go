package ssh

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

func mine() Owner {
	return Owner{Cluster: "cluster-a", Instance: "default", Host: "host-1", Claim: "claim-1", Epoch: 3}
}

// phase runs a mutating phase that does nothing but say so.
func phase(ctx context.Context, c *Conn, name, body string, o Owner) error {
	_, err := c.Run(ctx, Script{Phase: name, Body: body, Timeout: time.Minute, Owner: &o})
	return err
}

func TestOwnerFileLivesFromFirstTouchToLeave(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.dial(&Dialer{})
	want := "cluster=cluster-a\ninstance=default\nhost=host-1\nclaim=claim-1\nepoch=3\n"
	if err := phase(t.Context(), c, "install", "cat $KPSSH_STATE_DIR/owner $KPSSH_STATE_DIR/run > during", mine()); err != nil {
		t.Fatal(err)
	}
	if during := m.file("during"); !strings.HasPrefix(during, want) || !strings.HasSuffix(during, " install\n") {
		t.Errorf("during the phase: %q", during)
	}
	if got := m.file("state/owner"); got != want {
		t.Errorf("owner %q", got)
	}
	if m.file("state/run") != "" {
		t.Error("the run file survives its run")
	}
	if info, err := os.Stat(m.state()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("state directory %v %v", info, err)
	}
	if err := phase(t.Context(), c, "leave", "exit 1", mine()); err == nil || m.file("state/owner") != want {
		t.Error("a leave that failed has removed the owner")
	}
	if err := phase(t.Context(), c, "leave", "true", mine()); err != nil || m.file("state/owner") != "" {
		t.Errorf("a leave that succeeded keeps the owner (%v)", err)
	}
	if got := m.file("state/epoch.host-1"); got != "3\n" {
		t.Errorf("epoch %q", got)
	}
}

func TestAnotherOwnerIsRefusedUntilQuoted(t *testing.T) {
	t.Parallel()
	stale := "cluster=old instance=edge host=host-9 claim=claim-9"
	ownerFile := "cluster=old\ninstance=edge\nhost=host-9\nclaim=claim-9\nepoch=7\n"
	for name, tc := range map[string]struct {
		file     string
		owner    func(*Owner)
		phase    string
		found    string // empty: allowed
		takeOver string
	}{
		"absent":                   {phase: "join"},
		"absent, leave":            {phase: "leave"},
		"own":                      {file: "cluster=cluster-a\ninstance=default\nhost=host-1\nclaim=claim-0\n", phase: "join"},
		"own, other instance name": {file: "cluster=cluster-a\ninstance=old\nhost=host-1\n", phase: "join"},
		"another cluster":          {file: ownerFile, phase: "join", found: stale},
		"another host object":      {file: "cluster=cluster-a\nhost=host-2\n", phase: "install", found: "cluster=cluster-a instance= host=host-2 claim="},
		"leave for another":        {file: ownerFile, phase: "leave", found: stale},
		"quoted":                   {file: ownerFile, phase: "join", takeOver: stale},
		"quoted with white space":  {file: ownerFile, phase: "join", takeOver: " " + stale + "\n"},
		"quoted in part":           {file: ownerFile, phase: "join", takeOver: "cluster=old", found: stale},
		"quotes somebody else":     {file: ownerFile, phase: "join", takeOver: "cluster=x instance=edge host=host-9 claim=claim-9", found: stale},
		"a pattern":                {file: ownerFile, phase: "join", takeOver: "*", found: stale},
		"empty after power loss":   {file: "", phase: "join"},
		"nonsense":                 {file: "$(touch no)\x01\n", phase: "join", found: "cluster= instance= host= claim="},
		"control characters":       {file: "cluster=a\x1b[2Jb\nhost=h\n", phase: "join", found: "cluster=a?[2Jb instance= host=h claim="},
	} {
		m := newMachine(t)
		if name != "absent" {
			if err := os.MkdirAll(m.state(), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.state(), "owner"), []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o := mine()
		o.TakeOver = tc.takeOver
		err := phase(t.Context(), m.dial(&Dialer{}), tc.phase, "touch ran", o)
		_, statErr := os.Stat(filepath.Join(m.dir, "ran"))
		if ran := statErr == nil; ran != (tc.found == "") {
			t.Errorf("%s: ran is %v (%v)", name, ran, err)
		}
		if tc.found == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := m.file("state/owner"); tc.phase == "join" && !strings.Contains(got, "claim=claim-1") {
				t.Errorf("%s: owner is %q", name, got)
			}
			continue
		}
		wantFault(t, err, fault.Host, "HostOwnedElsewhere", tc.found)
		var owned *OwnedElsewhere
		if !errors.As(err, &owned) || owned.Owner != tc.found {
			t.Errorf("%s: cause %+v", name, owned)
		}
		if m.file("state/owner") != tc.file {
			t.Errorf("%s: the owner file was changed", name)
		}
	}
}

// A controller that was cut off must not act for a claim that has ended.
func TestOlderEpochIsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.dial(&Dialer{})
	at := func(epoch int64) Owner { o := mine(); o.Epoch = epoch; return o }
	for _, epoch := range []int64{3, 3, 5} {
		if err := phase(t.Context(), c, "join", "echo ran >> ran", at(epoch)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"install", "join", "leave"} {
		err := phase(t.Context(), c, name, "echo ran >> ran", at(4))
		wantFault(t, err, fault.Cluster, "StaleEpoch", "epoch 4")
		var stale *StaleEpoch
		if !errors.As(err, &stale) || stale.Stored != 5 {
			t.Errorf("cause %+v", stale)
		}
	}
	// The memory outlives the membership.
	if err := phase(t.Context(), c, "leave", "true", at(5)); err != nil {
		t.Fatal(err)
	}
	wantFault(t, phase(t.Context(), c, "join", "echo ran >> ran", at(4)), fault.Cluster, "StaleEpoch")
	if got := strings.Count(m.file("ran"), "ran"); got != 3 {
		t.Errorf("ran %d times", got)
	}
	// Another SSHHost's count is its own.
	other := at(1)
	other.Host = "host-2"
	if err := phase(t.Context(), c, "join", "true", other); err != nil {
		t.Error(err)
	}
}

// S3 of the design: phases never overlap on one machine, whoever sends them.
func TestPhasesOnOneMachineNeverOverlap(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	body := "mkdir busy && sleep 0.2 && rmdir busy && echo done >> log"
	results := make(chan error, 4)
	for range cap(results) {
		c := m.dial(&Dialer{})
		go func() { results <- phase(t.Context(), c, "join", body, mine()) }()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(m.file("log"), "done"); got != cap(results) {
		t.Errorf("%d phases ran to their end", got)
	}
}

func TestHeldLockIsHostBusy(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	first, second := m.dial(&Dialer{}), m.dial(&Dialer{Timeouts: Timeouts{Lock: time.Second}})
	ended := make(chan error, 1)
	go func() {
		ended <- phase(t.Context(), first, "install", "echo x > started; until [[ -e enough ]]; do sleep 0.05; done", mine())
	}()
	await(t, "the first phase", func() bool { return m.file("started") != "" })
	wantFault(t, phase(t.Context(), second, "join", "touch ran", mine()), fault.Host, "HostBusy", "install")
	// A phase that only reads needs no lock.
	if _, err := second.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "ran")); err == nil {
		t.Error("the phase ran without the lock")
	}
}

// A client that was cut off while it waited for the lock must find, when it is free, that its phase does not start.
func TestPhaseWhoseClientIsGoneNeverStarts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	first, second := m.dial(&Dialer{}), m.dial(&Dialer{})
	ended := make(chan error, 1)
	go func() {
		ended <- phase(t.Context(), first, "install", "echo x > started; until [[ -e enough ]]; do sleep 0.05; done", mine())
	}()
	await(t, "the first phase", func() bool { return m.file("started") != "" })
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- phase(ctx, second, "join", "touch ran", mine()) }()
	lock := filepath.Join(m.state(), "lock")
	await(t, "the second phase at the lock", func() bool { return processes(t, "flock\x00-w\x0030\x009") > 0 && holders(lock) > 1 })
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await(t, "the second shell to end", func() bool { return holders(lock) == 0 })
	if _, err := os.Stat(filepath.Join(m.dir, "ran")); err == nil {
		t.Error("it started")
	}
}

// holders counts the processes that have a file open.
func holders(path string) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	seen := map[string]bool{}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == path {
			seen[strings.Split(link, "/")[2]] = true
		}
	}
	return len(seen)
}

func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if err := os.WriteFile(m.state(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantFault(t, phase(t.Context(), m.dial(&Dialer{}), "join", "touch ran", mine()), fault.Host, "StateUnusable", m.state())
	if _, err := os.Stat(filepath.Join(m.dir, "ran")); err == nil {
		t.Error("it ran")
	}
}
