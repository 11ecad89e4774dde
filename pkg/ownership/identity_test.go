package ownership

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

func TestIdentityMustBeUsableAsNames(t *testing.T) {
	for _, tc := range []struct {
		name   string
		id     Identity
		reason string // empty: valid
	}{
		{"default installation", Identity{"default", "kpssh-system"}, ""},
		{"one letter", Identity{"a", "b"}, ""},
		{"40 characters", Identity{strings.Repeat("x", 40), "b"}, ""},
		{"41 characters", Identity{strings.Repeat("x", 41), "b"}, "InstanceNameInvalid"},
		{"empty instance", Identity{"", "b"}, "InstanceNameInvalid"},
		{"upper case", Identity{"A", "b"}, "InstanceNameInvalid"},
		{"dot", Identity{"a.b", "b"}, "InstanceNameInvalid"},
		{"leading dash", Identity{"-a", "b"}, "InstanceNameInvalid"},
		{"selector syntax", Identity{"a,b=c", "b"}, "InstanceNameInvalid"},
		{"empty namespace", Identity{"a", ""}, "PoolNamespaceInvalid"},
		{"namespace with a slash would spoof a host of another namespace", Identity{"a", "b/c"}, "PoolNamespaceInvalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.id.Validate()
			if tc.reason == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !fault.Is(err, fault.Configuration) || fault.Of(err).Reason != tc.reason {
				t.Errorf("got %v, want a configuration fault %s", err, tc.reason)
			}
		})
	}
}

// Gates are let in by name, once somebody has found out how instances share the cluster under them. One that a later core brings is not.
func TestGatesOfWhichNothingIsKnownAreRefused(t *testing.T) {
	all := options.FeatureGates{NodeRepair: true, ReservedCapacity: true, SpotToSpotConsolidation: true, StaticCapacity: true, CapacityBuffer: true, NodeOverlay: true}
	if err := CheckGates(all); err != nil {
		t.Errorf("refused: %v", err)
	}
	later := struct {
		unread     string
		NodeRepair bool
		Novelty    bool
		Unused     bool
	}{NodeRepair: true, Novelty: true}
	if got := undivided(reflect.ValueOf(later)); !slices.Equal(got, []string{"Novelty"}) {
		t.Errorf("refused %v, want Novelty%s", got, later.unread)
	}
}

func TestSetIsImmutableAndItsSuccessorIsAnnounced(t *testing.T) {
	r := newRegister(nil)
	first := r.snapshot()
	r.change(func(names map[string]struct{}) { names["x"] = struct{}{} })
	select {
	case <-first.Stale():
	default:
		t.Error("the replaced set is not stale")
	}
	second := r.snapshot()
	r.change(func(names map[string]struct{}) { names["x"] = struct{}{} })
	if r.snapshot() != second {
		t.Error("a change that changes nothing made another set: readers would hand over for nothing")
	}
	r.extend(own("y"))
	r.replace(own("z"))
	if first.Has("x") || !second.Has("x") || second.Has("y") {
		t.Error("a snapshot changed")
	}
	if got := r.snapshot().Names(); len(got) != 1 || got[0] != "z" {
		t.Errorf("names %v, want [z]", got)
	}
}
