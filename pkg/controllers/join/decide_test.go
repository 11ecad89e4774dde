package join

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

type edit func(*v1beta1.SSHHost)

func in(state v1beta1.HostState, edits ...edit) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Name: "h", Namespace: "kp-a"}}
	h.Status.State = state
	for _, e := range edits {
		e(h)
	}
	return h
}

func claimed(h *v1beta1.SSHHost) {
	h.Status.ClaimRef = &v1beta1.ClaimReference{Name: "n", UID: "u"}
}

func held(h *v1beta1.SSHHost) { h.Finalizers = []string{v1beta1.HostFinalizer} }

func deleted(h *v1beta1.SSHHost) { h.DeletionTimestamp = new(metav1.NewTime(start)) }

func token(h *v1beta1.SSHHost) { h.Status.BootstrapTokenID = "abcdef" }

func registeredNode(h *v1beta1.SSHHost) { host.MarkRegistered(h, "n", start) }

func leavePending(h *v1beta1.SSHHost) {
	host.SetCondition(h, start, v1beta1.ConditionLeavePending, metav1.ConditionTrue, v1beta1.ReasonLeaveFailed, "")
}

func TestDecide(t *testing.T) {
	for name, row := range map[string]struct {
		facts Facts
		want  Step
	}{
		// Nobody's claim.
		"a free host is left alone":                                      {Facts{Host: in(v1beta1.HostAvailable)}, StepNothing},
		"a free host lets its SSHHost go":                                {Facts{Host: in(v1beta1.HostAvailable, held)}, StepUnhold},
		"a free host that is being deleted lets its SSHHost go":          {Facts{Host: in(v1beta1.HostAvailable, held, deleted)}, StepUnhold},
		"a host that has yet to leave holds its SSHHost":                 {Facts{Host: in(v1beta1.HostUnhealthy, held, leavePending)}, StepNothing},
		"a leaving host without a claim leaves (a zombie, or left over)": {Facts{Host: in(v1beta1.HostLeaving)}, StepLeave},
		"section 3 #19: Claimed without a claim is healed":               {Facts{Host: in(v1beta1.HostClaimed)}, StepHeal},
		"section 3 #19: InUse without a claim is healed":                 {Facts{Host: in(v1beta1.HostInUse)}, StepHeal},
		"a claim in a state that holds none is healed":                   {Facts{Host: in(v1beta1.HostAvailable, claimed)}, StepHeal},
		// Joining.
		"a claim first holds the SSHHost":                                       {Facts{Host: in(v1beta1.HostClaimed, claimed)}, StepHold},
		"then brings the machine up":                                            {Facts{Host: in(v1beta1.HostClaimed, claimed, held)}, StepBringUp},
		"also again after a crash in the join":                                  {Facts{Host: in(v1beta1.HostClaimed, claimed, held, token)}, StepBringUp},
		"section 2 #13: a Node that is there before the join collects no token": {Facts{Host: in(v1beta1.HostClaimed, claimed, held, token), Registered: true}, StepBringUp},
		"a joined host awaits its Node":                                         {Facts{Host: in(v1beta1.HostInUse, claimed, held, token)}, StepAwaitNode},
		"and drops the token when it is there":                                  {Facts{Host: in(v1beta1.HostInUse, claimed, held, token), Registered: true}, StepAwaitNode},
		"and then rests":                                                        {Facts{Host: in(v1beta1.HostInUse, claimed, held, registeredNode), Registered: true}, StepNothing},
		"an identity that an agent chose is taken over before anything rests on it": {
			Facts{Host: in(v1beta1.HostInUse, claimed, held), Adoption: adoption{wanted: true, pending: true}, Waited: time.Hour}, StepAdopt},
		"a NodeClaim that is behind its host's identity follows": {
			Facts{Host: in(v1beta1.HostInUse, claimed, held, registeredNode), Registered: true, Adoption: adoption{pending: true}}, StepAdopt},
		"a Node that does not come fails the join":       {Facts{Host: in(v1beta1.HostInUse, claimed, held, token), Waited: registrationTimeout}, StepGiveUp},
		"a Node that went later is karpenter's business": {Facts{Host: in(v1beta1.HostInUse, claimed, held, registeredNode), Waited: time.Hour}, StepAwaitNode},
		// Ending.
		"section 3 #40: a NodeClaim deleted in mid-install ends the claim":              {Facts{Host: in(v1beta1.HostClaimed, claimed, held), Claim: Deleting}, StepEndClaim},
		"a NodeClaim deleted in use is drained by karpenter":                            {Facts{Host: in(v1beta1.HostInUse, claimed, held), Claim: Deleting}, StepNothing},
		"section 2 #57, section 3 #18: a NodeClaim that is gone ends the claim at once": {Facts{Host: in(v1beta1.HostInUse, claimed, held), Claim: Gone}, StepEndClaim},
		"so does one that is gone in mid-join":                                          {Facts{Host: in(v1beta1.HostClaimed, claimed, held, token), Claim: Gone}, StepEndClaim},
		"a claim that ended before the join frees the host":                             {Facts{Host: in(v1beta1.HostLeaving, claimed, held), Claim: Gone}, StepRelease},
		"a claim that ended after it leaves":                                            {Facts{Host: in(v1beta1.HostLeaving, claimed, held, token), Claim: Gone}, StepLeave},
		"leaving does not wait for the NodeClaim":                                       {Facts{Host: in(v1beta1.HostLeaving, claimed, held, registeredNode)}, StepLeave},
		"D15: a deleted SSHHost in use is drained first":                                {Facts{Host: in(v1beta1.HostInUse, claimed, held, deleted), Registered: true}, StepDrain},
		"D15: and does not drain twice":                                                 {Facts{Host: in(v1beta1.HostInUse, claimed, held, deleted), Claim: Deleting}, StepNothing},
	} {
		if got := decide(row.facts); got != row.want {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
}

func TestJudgeJoin(t *testing.T) {
	for name, row := range map[string]struct {
		blame    fault.Blame
		reason   string
		hostOnly bool
		before   bool
		attempts int32
		since    time.Duration
		again    bool
		state    v1beta1.HostState
		failed   bool
	}{
		"the cluster's fault is retried for ever and blames no host":    {blame: fault.Cluster, attempts: 99, since: time.Hour, again: true},
		"a network fault is tried again":                                {blame: fault.Network, attempts: 1, again: true},
		"a network fault parks the host in the end":                     {blame: fault.Network, attempts: 3, state: v1beta1.HostUnhealthy, failed: true},
		"a script that failed parks the host at once":                   {blame: fault.Host, reason: "ScriptFailed", attempts: 1, state: v1beta1.HostUnhealthy, failed: true},
		"a busy machine is tried again":                                 {blame: fault.Host, reason: reasonHostBusy, attempts: 5, since: time.Minute, again: true},
		"D12: a busy package manager gets the same host again":          {blame: fault.Host, reason: reasonPackageManagerBusy, attempts: 9, since: 5 * time.Minute, again: true},
		"but not a machine that never gets done":                        {blame: fault.Host, reason: reasonHostBusy, attempts: 9, since: busyPatience, state: v1beta1.HostUnhealthy, failed: true},
		"D12: but not for ever":                                         {blame: fault.Host, reason: reasonPackageManagerBusy, attempts: 30, since: temporaryPatience, state: v1beta1.HostUnhealthy, failed: true},
		"section 2 #29: a bad class or profile waits for a person":      {blame: fault.Configuration, attempts: 9, since: time.Minute, again: true},
		"section 2 #29: and then frees the host, which is not to blame": {blame: fault.Configuration, attempts: 9, since: configurationPatience, state: v1beta1.HostAvailable},
		"issue 5 #6: a jump host that is down is tried again":           {blame: fault.Network, before: true, hostOnly: true, attempts: 2, again: true},
		"issue 5 #6: and is never held against the host":                {blame: fault.Network, before: true, hostOnly: true, attempts: 3, state: v1beta1.HostAvailable},
		"issue 5: an expired certificate is not held against the host":  {blame: fault.Configuration, before: true, hostOnly: true, attempts: 1, state: v1beta1.HostAvailable},
		"a busy jump host is waited for":                                {blame: fault.Cluster, before: true, hostOnly: true, attempts: 99, again: true},
		"a key Secret that is missing parks its host only":              {blame: fault.Configuration, hostOnly: true, attempts: 1, state: v1beta1.HostUnhealthy, failed: true},
	} {
		f := fault.New(row.blame, row.reason, nil, "it failed")
		f.Before = row.before
		got := judgeJoin(f, row.hostOnly, row.attempts, row.since)
		if got.again != row.again || (!got.again && (got.release.State != row.state || got.release.Failed != row.failed || got.release.Blocked != row.before)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// D14: the end of a claim never waits for a machine beyond a bound, whatever it fails with, unless the cluster is at fault.
func TestGiveUpLeave(t *testing.T) {
	for name, row := range map[string]struct {
		blame    fault.Blame
		reason   string
		attempts int32
		since    time.Duration
		want     bool
	}{
		"the first failure":      {fault.Network, "R", 1, 0, false},
		"the third":              {fault.Network, "R", leaveAttempts, 0, true},
		"a slow one":             {fault.Host, "R", 1, leavePatience, true},
		"a machine that is busy": {fault.Host, reasonHostBusy, 5, time.Minute, false},
		"one that stays busy":    {fault.Host, reasonHostBusy, 5, busyPatience, true},
		"the cluster is retried": {fault.Cluster, "R", 50, time.Hour, false},
	} {
		if got := giveUpLeave(fault.New(row.blame, row.reason, nil, "m"), row.attempts, row.since); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

func TestPauseGrowsToABound(t *testing.T) {
	for attempt, want := range map[int32]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: maxPause, 40: maxPause} {
		if got := pause(attempt); got != want {
			t.Errorf("attempt %d: %s, want %s", attempt, got, want)
		}
	}
}

// Section 2 #15, #16: what a join or a release has to write is for the claim that it acts for. Once the host serves another, or the same NodeClaim
// again, nothing is written, however late it comes; and the error is no conflict, which would be tried again.
func TestLateWritesNeverReachAnotherClaim(t *testing.T) {
	for name, successor := range map[string]func(*v1beta1.SSHHost){
		"another NodeClaim holds the host":           func(h *v1beta1.SSHHost) { h.Status.ClaimRef.Name, h.Status.ClaimRef.UID = "m", "uid-m" },
		"a NodeClaim of the same name holds it":      func(h *v1beta1.SSHHost) { h.Status.ClaimRef.UID = "uid-of-a-successor" },
		"the same NodeClaim holds it anew":           func(h *v1beta1.SSHHost) { h.Status.ClaimEpoch++ },
		"nobody holds it":                            func(h *v1beta1.SSHHost) { h.Status.ClaimRef, h.Status.State = nil, v1beta1.HostAvailable },
		"the claim has ended and the machine leaves": func(h *v1beta1.SSHHost) { h.Status.State = v1beta1.HostLeaving; h.Status.BootstrapTokenID = "abcdef" },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, scripts)
			l.claim("n")
			late := l.host()
			if _, err := l.inv.Update(t.Context(), "h", func(h *v1beta1.SSHHost) error { successor(h); return nil }); err != nil {
				t.Fatal(err)
			}
			before := l.host()
			err := l.ctl.record(t.Context(), late, func(h *v1beta1.SSHHost, _ time.Time) { h.Status.ProviderID = "kpssh://written/late" })
			if !errors.Is(err, host.ErrFenced) || apierrors.IsConflict(err) {
				t.Errorf("a step of the join: got %v, want ErrFenced", err)
			}
			if _, err := l.ctl.release(t.Context(), Facts{Host: late}); !errors.Is(err, host.ErrFenced) || apierrors.IsConflict(err) {
				t.Errorf("the release: got %v, want ErrFenced", err)
			}
			if after := l.host(); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("the host was written: %+v", after.Status)
			}
		})
	}
}
