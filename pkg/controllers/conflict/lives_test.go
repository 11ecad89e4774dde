package conflict

import (
	"maps"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// L2: an instance is dead once its Lease did not change here for 40 seconds. What times the Lease carries does not matter, so that a
// machine whose clock is wrong is neither dead nor alive for it.
func TestLivesAreJudgedByWhatIsSeenHere(t *testing.T) {
	l := newLives("seg-a")
	now := noon
	look := func(after time.Duration, beat string) Life {
		now = now.Add(after)
		l.observe(now, map[string]string{"seg-a": "", "seg-b": beat})
		return l.of("seg-b", now)
	}
	for i, step := range []struct {
		after time.Duration
		beat  string
		want  Life
	}{
		{0, "x 1", Unsure}, // it may be left over from long ago
		{15 * time.Second, "x 1", Unsure},
		{15 * time.Second, "x 2", Alive},
		{39 * time.Second, "x 2", Alive},
		{time.Second, "x 2", Dead},
		{time.Hour, "x 1", Alive}, // back, with a clock that goes backwards
		{15 * time.Second, "", Unsure},
		{39 * time.Second, "", Unsure},
		{time.Second, "", Dead},
		{time.Second, "y 3", Alive},
	} {
		if got := look(step.after, step.beat); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if l.of("seg-a", now) != Alive {
		t.Error("an instance took itself for dead")
	}
	if next := l.next(now.Add(30*time.Second), 15*time.Second); next != 10*time.Second {
		t.Errorf("the next look is after %s, and not when its time is over", next)
	}
	l.observe(now, map[string]string{})
	if len(l.pulses) != 0 {
		t.Error("an instance that is gone with its classes is still kept")
	}
}

func TestWhoseLeaseItIs(t *testing.T) {
	for name, row := range map[string]struct {
		lease, label, want string
	}{
		"an instance's":                           {"kpssh-seg-a", "seg-a", "seg-a"},
		"one from before there was a label":       {"kpssh-seg-a", "", "seg-a"},
		"the turn of disruptions":                 {"kpssh-disruption", "", ""},
		"an instance that is called like that":    {"kpssh-disruption", "disruption", "disruption"},
		"somebody else's":                         {"karpenter-leader-election", "", ""},
		"one whose name and label do not agree":   {"kpssh-seg-a", "seg-b", ""},
		"one with the label and another's prefix": {"other-seg-a", "seg-a", ""},
	} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: row.lease}}
		if row.label != "" {
			lease.Labels = map[string]string{v1beta1.InstanceLabel: row.label}
		}
		if got := instanceOf(lease); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// Alert InstanceDown: an instance that is gone is missed if it did not give its Lease back, or owns a class, and not before it is sure; one
// that was taken away in good order is not, or its alert would never end.
func TestOnlyInstancesThatAreMissedAreReportedDead(t *testing.T) {
	s := world(func(s *Snapshot) {
		s.Instances = []Instance{{Name: "seg-a", Held: true}, {Name: "seg-b"}, {Name: "crashed", Held: true}, {Name: "removed"}, {Name: "new", Held: true}}
		s.Lives = map[string]Life{"seg-a": Alive, "seg-b": Dead, "crashed": Dead, "removed": Dead, "new": Unsure}
	})
	if got, want := s.missed(), map[string]bool{"seg-a": true, "seg-b": false, "crashed": false}; !maps.Equal(got, want) {
		t.Errorf("missed: %v, want %v", got, want)
	}
}

// C4: from its creation to the metric and the event, a class of an instance that is not there takes less than a minute: one survey that sees it
// first, and the time after which it counts.
func TestAnUnownedClassIsKnownWithinAMinute(t *testing.T) {
	longest := time.Duration(float64(interval)*(1+jitter)) + deadAfter
	if longest >= time.Minute {
		t.Errorf("it may take %s", longest)
	}
}
