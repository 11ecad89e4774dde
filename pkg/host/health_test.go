package host_test

import (
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// life plays what happens to a host, a minute apart: F a join that the machine is to blame for, N one that the network is, C one that nobody's
// machine is, S a join that went well, L a leave that failed, and a digit so many hours.
func life(h *v1beta1.SSHHost, what string) (now time.Time) {
	now = start
	for _, each := range what {
		now = now.Add(time.Minute)
		park := host.Release{State: v1beta1.HostUnhealthy, Reason: "ScriptFailed", Message: "no space left", Failed: true}
		switch each {
		case 'F':
			h.Status.State = v1beta1.HostClaimed
			park.Blamed = true
			host.MarkReleased(h, park, now)
		case 'N':
			h.Status.State = v1beta1.HostClaimed
			host.MarkReleased(h, park, now)
		case 'C':
			h.Status.State = v1beta1.HostClaimed
			host.MarkReleased(h, host.Release{State: v1beta1.HostAvailable}, now)
		case 'L':
			h.Status.State = v1beta1.HostLeaving
			host.MarkReleased(h, host.Release{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeaveFailed, LeavePending: true, Blamed: true}, now)
		case 'S':
			h.Status.State = v1beta1.HostInUse
			host.MarkRegistered(h, "n", now)
		default:
			now = now.Add(time.Duration(each-'0') * time.Hour)
		}
	}
	return now
}

// Section 3 #12, B3: a host that keeps failing is offered last, then quarantined, and let back gradually.
func TestHealthIsWhatAHostDidBefore(t *testing.T) {
	for name, row := range map[string]struct {
		life   string
		want   host.Health
		until  time.Duration // of the quarantine, from the last event
		recent int
	}{
		"nothing":                                    {life: "", want: host.Sound},
		"one failure":                                {life: "F", want: host.Doubtful, recent: 1},
		"two failures":                               {life: "FF", want: host.Doubtful, recent: 2},
		"three failures":                             {life: "FFF", want: host.Quarantined, until: 10 * time.Minute, recent: 3},
		"three failures, of leaves too":              {life: "FLF", want: host.Quarantined, until: 10 * time.Minute, recent: 3},
		"three failures, but over a day":             {life: "F9F9F", want: host.Doubtful, recent: 1},
		"the network's do not count":                 {life: "NNNNNN", want: host.Doubtful},
		"nor the configuration's":                    {life: "CCCCCC", want: host.Sound},
		"nor do they save it":                        {life: "FNFNCF", want: host.Quarantined, until: 10 * time.Minute, recent: 3},
		"the quarantine is over":                     {life: "FFF1", want: host.OnTrial, recent: 3},
		"one failure on trial":                       {life: "FFF1F", want: host.Quarantined, until: 30 * time.Minute, recent: 4},
		"the third quarantine":                       {life: "FFF1F1F", want: host.Quarantined, until: 2 * time.Hour, recent: 5},
		"the fourth":                                 {life: "FFF1F1F3F", want: host.Quarantined, until: 8 * time.Hour, recent: 5},
		"no quarantine is longer than a day":         {life: "FFF1F1F3F9F99 9F999F", want: host.Quarantined, until: 24 * time.Hour, recent: 1},
		"one success after one failure":              {life: "FS", want: host.Sound},
		"one success after two forgives the newest":  {life: "FFS", want: host.Doubtful, recent: 1},
		"what keeps failing now and then is noticed": {life: "FFSFF", want: host.Quarantined, until: 10 * time.Minute, recent: 3},
		"one success on trial is not enough":         {life: "FFF1S", want: host.OnTrial, recent: 1},
		"a failure after it is one on trial":         {life: "FFF1SF", want: host.Quarantined, until: 30 * time.Minute, recent: 2},
		"two successes in a row clear":               {life: "FFF1SS", want: host.Sound},
		"two that are not in a row do not":           {life: "FFF1SF1S", want: host.OnTrial, recent: 1},
	} {
		h := machine("h")
		now := life(h, strings.ReplaceAll(row.life, " ", ""))
		f := h.Status.Failures
		if got := host.HealthOf(f, now); got != row.want {
			t.Errorf("%s: health %d, want %d: %+v", name, got, row.want, f)
			continue
		}
		if f == nil {
			continue
		}
		if len(f.Recent) != row.recent {
			t.Errorf("%s: %d failures remembered, want %d: %+v", name, len(f.Recent), row.recent, f.Recent)
		}
		if row.until != 0 && (f.QuarantinedUntil.Sub(now) != row.until || f.NotBefore.Before(f.QuarantinedUntil)) {
			t.Errorf("%s: in quarantine until %s, offered from %s; want %s from %s", name, f.QuarantinedUntil, f.NotBefore, row.until, now)
		}
	}
}

// Section 3 #12: a host in quarantine says why, until when, and how to end it; one that must leave first says that instead.
func TestQuarantineIsSaid(t *testing.T) {
	h := machine("h")
	life(h, "FFF")
	ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady)
	if h.Status.State != v1beta1.HostUnhealthy || ready.Reason != v1beta1.ReasonQuarantined || h.Status.LastProbeError != ready.Message {
		t.Fatalf("%s, %+v", h.Status.State, ready)
	}
	for _, says := range []string{"until 2026-11-01T12:13:00Z", "3 failures", "Join ScriptFailed at 2026-11-01T12:01:00Z", v1beta1.ClearFailuresAnnotation, "no space left"} {
		if !strings.Contains(ready.Message, says) {
			t.Errorf("the message does not say %q: %s", says, ready.Message)
		}
	}
	h = machine("h")
	life(h, "FFL")
	if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); ready.Reason != v1beta1.ReasonLeaveFailed || !host.LeavePending(h) {
		t.Errorf("%+v", ready)
	}
}

// Section 3 #12: a host on trial is offered after those that failed, and is offered.
func TestHostsOnTrialAreOfferedLast(t *testing.T) {
	trial, failed := machine("trial"), machine("failed")
	life(trial, "FFF")
	life(failed, "9F")
	for _, h := range []*v1beta1.SSHHost{trial, failed} {
		h.Status.State = v1beta1.HostAvailable
		if ok, why := host.Claimable(h); !ok {
			t.Error(why)
		}
	}
	hosts := []*v1beta1.SSHHost{trial, failed}
	host.Order(hosts, "")
	if hosts[1] != trial {
		t.Error("a host that failed once is offered after one on trial")
	}
}

// Section 3 #12: a person who has mended a machine says so, once, or edits the spec.
func TestAPersonForgives(t *testing.T) {
	annotate := func(value string) func(*v1beta1.SSHHost) {
		return func(h *v1beta1.SSHHost) {
			metav1.SetMetaDataAnnotation(&h.ObjectMeta, v1beta1.ClearFailuresAnnotation, value)
		}
	}
	for name, row := range map[string]struct {
		edit func(*v1beta1.SSHHost)
		want bool
	}{
		"nobody":                    {func(*v1beta1.SSHHost) {}, false},
		"an annotation":             {annotate("2026-11-01"), true},
		"the same again":            {func(h *v1beta1.SSHHost) { h.Status.FailuresCleared = "2026-11-01"; annotate("2026-11-01")(h) }, false},
		"another value":             {func(h *v1beta1.SSHHost) { h.Status.FailuresCleared = "2026-11-01"; annotate("2026-11-02")(h) }, true},
		"an empty one says nothing": {annotate(""), false},
		"a long one":                {annotate(strings.Repeat("é", 200)), true},
		"a new spec":                {func(h *v1beta1.SSHHost) { h.Generation++ }, true},
		"metadata only":             {func(h *v1beta1.SSHHost) { controllerutil.AddFinalizer(h, "x/y") }, false},
	} {
		h := machine("h", func(h *v1beta1.SSHHost) { h.Generation = 3 })
		life(h, "FFF")
		row.edit(h)
		if got := host.Forgive(h); got != row.want || got != (h.Status.Failures == nil) {
			t.Errorf("%s: forgiven %v, want %v", name, got, row.want)
		}
		life(h, "FFF")
		if host.Forgive(h) {
			t.Errorf("%s: it forgives what came later, too", name)
		}
	}
}

// What failed is remembered as what it was, although the claim has ended meanwhile: karpenter makes the host of a NodeClaim leave that is deleted for it.
func TestAFailureIsRememberedAsWhatItWas(t *testing.T) {
	for name, row := range map[string]struct {
		state v1beta1.HostState
		runs  v1beta1.OperationType
		told  v1beta1.OperationType
		want  v1beta1.OperationType
	}{
		"an install":                      {v1beta1.HostClaimed, v1beta1.OperationInstall, "", v1beta1.OperationInstall},
		"a join":                          {v1beta1.HostClaimed, v1beta1.OperationJoin, "", v1beta1.OperationJoin},
		"a Node that did not come":        {v1beta1.HostInUse, "", "", v1beta1.OperationJoin},
		"a leave":                         {v1beta1.HostLeaving, v1beta1.OperationLeave, "", v1beta1.OperationLeave},
		"an install whose claim is ended": {v1beta1.HostLeaving, "", v1beta1.OperationInstall, v1beta1.OperationInstall},
	} {
		h := &v1beta1.SSHHost{Status: v1beta1.SSHHostStatus{State: row.state}}
		if row.runs != "" {
			h.Status.Operation = &v1beta1.HostOperation{Type: row.runs}
		}
		host.MarkReleased(h, host.Release{State: v1beta1.HostUnhealthy, Reason: "ScriptFailed", Failed: true, Blamed: true, Operation: row.told}, start)
		if recent := h.Status.Failures.Recent; len(recent) != 1 || recent[0].Operation != row.want {
			t.Errorf("%s: remembered %+v, want %s", name, recent, row.want)
		}
	}
}
