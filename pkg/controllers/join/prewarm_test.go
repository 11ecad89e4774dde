package join

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

// prewarmer makes the lab's class ask for prewarming.
func (l *lab) prewarmer() *Prewarmer {
	l.t.Helper()
	class := l.class()
	class.Spec.Prewarm = &v1beta1.Prewarm{MaxConcurrent: 2}
	if err := l.api.Update(l.t.Context(), class); err != nil {
		l.t.Fatal(err)
	}
	return NewPrewarmer(l.ctl)
}

func (l *lab) class() *v1beta1.SSHNodeClass {
	l.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: "nc-a"}, class); err != nil {
		l.t.Fatal(err)
	}
	return class
}

// until reconciles class and host until the Prewarmed condition has a reason.
func (l *lab) until(p *Prewarmer, reason string) status.Condition {
	l.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		result, err := p.Reconcile(l.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "nc-a"}})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, c := range l.class().Status.Conditions {
			if c.Type == v1beta1.ConditionPrewarmed && c.Reason == reason {
				return c
			}
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("waited in vain for %s: class %+v, host %+v, %s", reason, l.class().Status, l.host().Status, l.eventText())
		}
		l.drive(func() bool { return true })
		select {
		case <-l.ctl.woken:
		case <-time.After(50 * time.Millisecond):
			if result.RequeueAfter > 0 && result.RequeueAfter < prewarmRecheck {
				l.clock.Step(result.RequeueAfter)
			}
		}
	}
}

// After prewarming, a join runs no install, and the host was free all the time.
func TestPrewarmedHostJoinsWithoutInstall(t *testing.T) {
	l := newLab(t, scripts)
	p := l.prewarmer()
	l.until(p, v1beta1.ReasonPrewarmed)
	h := l.host()
	if free, why := host.Claimable(h); !free || h.Status.InstalledProfile != "p@1" || h.Status.InstalledRevision == "" || h.Status.Operation != nil {
		t.Fatalf("%s: %+v", why, h.Status)
	}
	l.wantLog("install")
	if !l.profileHeld() {
		t.Error("a profile that was prewarmed is not held")
	}
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("install", "join:n")
}

func (l *lab) profileHeld() bool { return l.ctl.Holds.Holding(l.profile()) }

// A claim that takes a host while it is prewarmed stops that, and installs itself: never do two installs run at once.
func TestClaimTakesOverAPrewarm(t *testing.T) {
	slow := scripts
	slow.Install = `if mkdir "$KPSSH_VAR_DIR/once"; then echo prewarm >> "$KPSSH_VAR_DIR/log"; sleep 600; echo survived >> "$KPSSH_VAR_DIR/log"; else echo install >> "$KPSSH_VAR_DIR/log"; fi`
	l := newLab(t, slow)
	p := l.prewarmer()
	l.until(p, v1beta1.ReasonPrewarming)
	for len(l.log()) == 0 {
		l.drive(func() bool { return true })
		<-time.After(10 * time.Millisecond)
	}
	l.claim("n")
	h := l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("prewarm", "install", "join:n")
	if h.Status.Failures != nil {
		t.Errorf("the host is blamed: %+v", h.Status.Failures)
	}
}

// A machine that a prewarm fails on is parked as after a join, and the class says how far it has come.
func TestPrewarmThatFailsParksTheHost(t *testing.T) {
	failing := scripts
	failing.Install = `echo "no space left" >&2; exit 7`
	l := newLab(t, failing)
	p := l.prewarmer()
	l.until(p, v1beta1.ReasonPrewarming)
	l.settle("parked", isState(v1beta1.HostUnhealthy))
	if f := l.host().Status.Failures; f == nil || len(f.Recent) != 1 || f.Recent[0].Operation != v1beta1.OperationInstall {
		t.Errorf("failures %+v", f)
	}
}

// A configuration that nothing can be installed from stops, and no machine is touched.
func TestPrewarmStopsForTheConfigurationsFault(t *testing.T) {
	broken := scripts
	broken.Install = "echo {{ .Vars.NotGiven }}"
	l := newLab(t, broken)
	if c := l.until(l.prewarmer(), v1beta1.ReasonPrewarmStopped); !strings.Contains(c.Message, "NotGiven") {
		t.Error(c.Message)
	}
	if l.host().Status.Operation != nil || l.server.Handshakes() != 0 {
		t.Error("the machine was touched")
	}
}

// What a process before this one was installing is cleared, and begun anew.
func TestPrewarmThatWasCutShortIsCleared(t *testing.T) {
	l := newLab(t, scripts)
	if _, err := l.inv.Update(t.Context(), "h", func(h *v1beta1.SSHHost) error {
		host.MarkPrewarming(h, 1, start.Add(time.Minute), start)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.settle("cleared", func(h *v1beta1.SSHHost) bool { return h.Status.Operation == nil })
	l.until(l.prewarmer(), v1beta1.ReasonPrewarmed)
	l.wantLog("install")
}
