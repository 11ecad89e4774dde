package nodeclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
)

const pool = "pool"

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a controller over a fake API server.
type world struct {
	*Controller
	t     *testing.T
	clock *clocktesting.FakeClock
	// recorder has the events about classes.
	recorder *events.FakeRecorder
	// writes to SSHNodeClasses, in order.
	writes []string
	// fails makes reads fail: by kind and name.
	fails map[string]error
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(noon), fails: map[string]error{}, recorder: events.NewFakeRecorder(1000)}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.SSHNodeClass{}, &v1beta1.SSHHost{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if err := w.fails[fmt.Sprintf("%T/%s", o, key.Name)]; err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
				w.writes = append(w.writes, "patch "+o.GetName())
				return c.Patch(ctx, o, patch, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				w.writes = append(w.writes, sub+" "+o.GetName())
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
		}).Build()
	inventory := host.NewInventory(pool, c, c, w.clock)
	for _, o := range objects {
		if h, ok := o.(*v1beta1.SSHHost); ok {
			live := &v1beta1.SSHHost{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(h), live); err != nil {
				t.Fatal(err)
			}
			inventory.Observe(live)
		}
	}
	w.Controller = NewController(Options{
		Inventory: inventory, Client: c, Live: c, Clock: w.clock, Discovery: bootstrap.NewDiscovery(c),
		Instance: "default", Recorder: w.recorder,
		Mine: func(class string) bool { return !strings.HasPrefix(class, "foreign") && class != "late" },
	})
	return w
}

func (w *world) reconcile(class string) (reconcile.Result, error) {
	return w.Reconcile(w.t.Context(), request(class))
}

func (w *world) must(class string) reconcile.Result {
	w.t.Helper()
	result, err := w.reconcile(class)
	if err != nil {
		w.t.Fatal(err)
	}
	return result
}

func (w *world) class(name string) *v1beta1.SSHNodeClass {
	w.t.Helper()
	class := &v1beta1.SSHNodeClass{}
	if err := w.Client.Get(w.t.Context(), client.ObjectKey{Name: name}, class); err != nil {
		w.t.Fatal(err)
	}
	return class
}

func aClass(edits ...func(*v1beta1.SSHNodeClass)) *v1beta1.SSHNodeClass {
	class := &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "c1", Generation: 1},
		Spec: v1beta1.SSHNodeClassSpec{
			Instance: "default", JoinProfileRef: v1beta1.ProfileReference{Name: "p1"},
			Cluster: &v1beta1.ClusterSpec{Endpoint: "https://192.0.2.1:6443", CABundle: []byte(authority)},
		},
	}
	for _, edit := range edits {
		edit(class)
	}
	return class
}

func aProfile(edits ...func(*v1beta1.SSHJoinProfile)) *v1beta1.SSHJoinProfile {
	p := &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "p1", Generation: 1, UID: "uid-p1"},
		Spec:       v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: v1beta1.Scripts{Install: "true", Join: "true", Leave: "true"}},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func aHost(name string, free bool, labels map[string]string) *v1beta1.SSHHost {
	h := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: name, Labels: labels}, Spec: v1beta1.SSHHostSpec{Address: "192.0.2.1", Capacity: capacity("4")},
		Status: v1beta1.SSHHostStatus{State: v1beta1.HostUnhealthy, ObservedArch: "amd64"},
	}
	if free {
		h.Status.State = v1beta1.HostAvailable
	}
	return h
}

func capacity(cpu string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi")}
}

func withSecret(class *v1beta1.SSHNodeClass) {
	class.Spec.JoinSecretRef = &v1beta1.SecretReference{Name: "join"}
}

func aSecret(namespace string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "join"}, Data: data}
}

func script(edit func(*v1beta1.Scripts)) func(*v1beta1.SSHJoinProfile) {
	return func(p *v1beta1.SSHJoinProfile) { edit(&p.Spec.Scripts) }
}

func TestReadyNamesWhatIsWrongAndWhatToDo(t *testing.T) {
	h := aHost("h1", true, map[string]string{"rack": "a"})
	for _, tc := range []struct {
		name    string
		class   func(*v1beta1.SSHNodeClass)
		objects []client.Object
		reason  string // empty: Ready
		says    string // part of the message
		hosts   int32
		free    int32
	}{
		{name: "ready", objects: []client.Object{aProfile(), h, aHost("h2", false, nil)}, hosts: 2, free: 1},
		{name: "ready though no host is free now", objects: []client.Object{aProfile(), aHost("h2", false, nil)}, hosts: 1},
		{name: "selector picks", class: func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "a"}}
		}, objects: []client.Object{aProfile(), h, aHost("h2", true, nil)}, hosts: 1, free: 1},
		{name: "empty selector is all (section 3 #50)", class: func(c *v1beta1.SSHNodeClass) { c.Spec.HostSelector = &metav1.LabelSelector{} },
			objects: []client.Object{aProfile(), h, aHost("h2", true, nil)}, hosts: 2, free: 2},
		{name: "selector does not parse", class: func(c *v1beta1.SSHNodeClass) {
			c.Spec.HostSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
		}, objects: []client.Object{aProfile(), h}, reason: v1beta1.ReasonSelectorError, says: "hostSelector"},
		{name: "no host", objects: []client.Object{aProfile()}, reason: v1beta1.ReasonNoHosts, says: "namespace pool"},
		{name: "no profile", objects: []client.Object{h}, reason: v1beta1.ReasonProfileNotFound, says: `"p1"`, hosts: 1, free: 1},
		{name: "profile is being deleted", objects: []client.Object{h, aProfile(func(p *v1beta1.SSHJoinProfile) {
			p.Finalizers, p.DeletionTimestamp = []string{v1beta1.InstalledFinalizer("default")}, new(metav1.NewTime(noon))
		})}, reason: v1beta1.ReasonProfileDeleting, says: "name another one in spec.joinProfileRef", hosts: 1, free: 1},
		{name: "profile does not parse", objects: []client.Object{h, aProfile(script(func(s *v1beta1.Scripts) { s.Join = "{{ .Nope" }))},
			reason: v1beta1.ReasonProfileInvalid, says: "scripts.join", hosts: 1, free: 1},
		{name: "leave uses what a leave is not told (section 2 #31)", objects: []client.Object{h, aProfile(script(func(s *v1beta1.Scripts) { s.Leave = "echo {{ .Vars.zone }}" }))},
			reason: v1beta1.ReasonProfileInvalid, says: "scripts.leave", hosts: 1, free: 1},
		{name: "profile needs a var that the class does not give", objects: []client.Object{h, aProfile(script(func(s *v1beta1.Scripts) { s.Join = "echo {{ .Vars.zone }}" }))},
			reason: v1beta1.ReasonProfileInvalid, says: "vars", hosts: 1, free: 1},
		{name: "and is fine once it does", class: func(c *v1beta1.SSHNodeClass) { c.Spec.Vars = map[string]string{"zone": "a"} },
			objects: []client.Object{h, aProfile(script(func(s *v1beta1.Scripts) { s.Join = "echo {{ .Vars.zone }}" }))}, hosts: 1, free: 1},
		{name: "no join Secret", class: withSecret, objects: []client.Object{aProfile(), h}, reason: v1beta1.ReasonJoinSecretNotFound, says: "pool/join", hosts: 1, free: 1},
		{name: "join Secret of another namespace is none", class: withSecret, objects: []client.Object{aProfile(), h, aSecret("elsewhere", nil)},
			reason: v1beta1.ReasonJoinSecretNotFound, says: "pool/join", hosts: 1, free: 1},
		{name: "join Secret's keys collide (section 2 #32)", class: withSecret,
			objects: []client.Object{aProfile(), h, aSecret(pool, map[string][]byte{"a-b": []byte("hunter2hunter2"), "a.b": []byte("hunter2hunter2")})},
			reason:  v1beta1.ReasonJoinSecretInvalid, says: "a-b", hosts: 1, free: 1},
		{name: "provider IDs that an agent chooses", class: func(c *v1beta1.SSHNodeClass) { c.Spec.ProviderIDSource = v1beta1.ProviderIDAdopt }, objects: []client.Object{aProfile(), h},
			hosts: 1, free: 1},
		{name: "cluster unknown", class: func(c *v1beta1.SSHNodeClass) { c.Spec.Cluster = nil }, objects: []client.Object{aProfile(), h},
			reason: v1beta1.ReasonClusterUnknown, says: "cluster-info", hosts: 1, free: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			class := aClass()
			if tc.class != nil {
				tc.class(class)
			}
			w := newWorld(t, append(tc.objects, class)...)
			result := w.must("c1")
			got := w.class("c1")
			ready := readyOf(got)
			if ready == nil {
				t.Fatal("there is no Ready condition")
			}
			if tc.reason == "" && ready.Status != metav1.ConditionTrue {
				t.Errorf("want Ready, got %s %s", ready.Reason, ready.Message)
			}
			if tc.reason != "" && (ready.Status != metav1.ConditionFalse || ready.Reason != tc.reason || !strings.Contains(ready.Message, tc.says)) {
				t.Errorf("want %s saying %q, got %s %s %q", tc.reason, tc.says, ready.Status, ready.Reason, ready.Message)
			}
			if strings.Contains(ready.Message, "hunter2") {
				t.Error("a Secret's content reached a condition")
			}
			if got.Status.Hosts != tc.hosts || got.Status.Free != tc.free {
				t.Errorf("want %d hosts, %d free; got %d, %d", tc.hosts, tc.free, got.Status.Hosts, got.Status.Free)
			}
			if ready.ObservedGeneration != 1 {
				t.Errorf("observed generation %d", ready.ObservedGeneration)
			}
			if wait := result.RequeueAfter; (wait > 0) != (tc.reason == v1beta1.ReasonClusterUnknown) {
				t.Errorf("looks again after %s", wait)
			}

			// Looking again finds nothing new, and writes nothing.
			w.writes = nil
			w.must("c1")
			if len(w.writes) > 0 {
				t.Errorf("a second look wrote %v", w.writes)
			}
		})
	}
}

// Section 2 #38: a hiccup of the API server says nothing about the class.
func TestTransientErrorsAreRetriedNotReported(t *testing.T) {
	for _, kind := range []string{"*v1beta1.SSHJoinProfile/p1", "*v1.Secret/join", "*v1.ConfigMap/cluster-info"} {
		t.Run(kind, func(t *testing.T) {
			class := aClass(withSecret)
			class.Spec.Cluster.CABundle = nil
			info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": kubeconfig()}}
			w := newWorld(t, class, aProfile(), aHost("h1", true, nil), aSecret(pool, nil), info)
			w.fails[kind] = errors.New("the server is currently unable to handle the request")
			if _, err := w.reconcile("c1"); err == nil {
				t.Fatal("want an error, so that it is tried again")
			}
			if ready := readyOf(w.class("c1")); ready != nil && ready.Status == metav1.ConditionFalse {
				t.Fatalf("the class was reported %s: %s", ready.Reason, ready.Message)
			}
			delete(w.fails, kind)
			w.must("c1")
			if ready := readyOf(w.class("c1")); ready == nil || ready.Status != metav1.ConditionTrue {
				t.Fatalf("want Ready after the hiccup, got %+v", ready)
			}
			w.fails[kind] = errors.New("again")
			w.clock.Step(time.Hour)
			_, _ = w.reconcile("c1")
			if ready := readyOf(w.class("c1")); ready.Status != metav1.ConditionTrue {
				t.Fatal("a Ready class lost its readiness to a hiccup")
			}
		})
	}
}

func TestForeignClassIsNotTouched(t *testing.T) {
	foreign := aClass(func(c *v1beta1.SSHNodeClass) { c.Name = "foreign"; c.Spec.Instance = "other" })
	w := newWorld(t, foreign, aProfile(), aHost("h1", true, nil))
	if result := w.must("foreign"); result.RequeueAfter > 0 || len(w.writes) > 0 || len(w.class("foreign").Finalizers) > 0 {
		t.Fatalf("a foreign class: %+v, wrote %v", result, w.writes)
	}
	if names := w.index.matching(func(string, references) bool { return true }); len(names) > 0 {
		t.Fatalf("hosts wake %v", names)
	}

	w.clock.Step(youth)
	if result := w.must("foreign"); result.RequeueAfter != 0 {
		t.Fatal("a foreign class is polled")
	}
}

// L1, found by seeds: a class of this instance that the set of own classes does not show yet is not touched, and not forgotten either, however
// late the watch that fills the set is. Nothing else would bring the class here again.
func TestAClassThatIsNotKnownYetIsLookedAtAgain(t *testing.T) {
	w := newWorld(t, aClass(func(c *v1beta1.SSHNodeClass) { c.Name = "late"; c.CreationTimestamp = metav1.NewTime(noon) }))
	if result := w.must("late"); result.RequeueAfter != glance || len(w.writes) > 0 {
		t.Fatalf("a young class: %+v, wrote %v", result, w.writes)
	}
	w.clock.Step(youth)
	if result := w.must("late"); result.RequeueAfter != recheck || len(w.writes) > 0 {
		t.Fatalf("after a minute: %+v, wrote %v", result, w.writes)
	}
}

func TestProfileIsParsedOncePerVersion(t *testing.T) {
	w := newWorld(t, aClass(), aProfile(), aHost("h1", true, nil))
	parsed := 0
	w.validated.validate = func(*v1beta1.SSHJoinProfile) error { parsed++; return nil }
	for range 5 {
		w.must("c1")
	}
	if parsed != 1 {
		t.Fatalf("parsed %d times", parsed)
	}
	edited := aProfile()
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(edited), edited); err != nil {
		t.Fatal(err)
	}
	edited.Generation++
	if err := w.Client.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	w.must("c1")
	if parsed != 2 {
		t.Fatalf("an edited profile was parsed %d times", parsed)
	}
}

func TestConflictIsNoError(t *testing.T) {
	w := newWorld(t, aClass(), aProfile(), aHost("h1", true, nil))
	stale := w.class("c1")
	w.must("c1")
	finding := finding{reason: v1beta1.ReasonNoHosts}
	if err := w.write(t.Context(), stale, finding); err == nil {
		t.Fatal("a stale object was written over a newer one")
	}
	if ready := readyOf(w.class("c1")); ready.Status != metav1.ConditionTrue || ready.Type != status.ConditionReady {
		t.Fatalf("got %+v", ready)
	}
}

// Bad input: a host that promises nothing is named where a person looks, and the others serve all the same.
func TestHostsThatCannotBeOfferedAreNamed(t *testing.T) {
	free := func(name, cpu string) *v1beta1.SSHHost {
		h := aHost(name, true, nil)
		h.Spec.Capacity = capacity(cpu)
		return h
	}
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	for name, row := range map[string]struct {
		hosts []*v1beta1.SSHHost
		want  []string
	}{
		"all are fine":             {[]*v1beta1.SSHHost{free("a", "4")}, nil},
		"a capacity of zero":       {[]*v1beta1.SSHHost{free("a", "4"), free("b", "0")}, []string{"b"}},
		"all of it reserved":       {[]*v1beta1.SSHHost{free("a", "50m")}, []string{"a"}},
		"awaiting the first probe": {[]*v1beta1.SSHHost{{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1beta1.SSHHostSpec{Capacity: capacity("4")}}}, nil},
	} {
		var names []string
		for _, r := range unusable(class, row.hosts) {
			names = append(names, r.Host)
			if r.Message == "" {
				t.Errorf("%s: %s is refused without a word", name, r.Host)
			}
		}
		if !slices.Equal(names, row.want) {
			t.Errorf("%s: %v, want %v", name, names, row.want)
		}
	}
	for name, row := range map[string]struct {
		found finding
		ready metav1.ConditionStatus
	}{
		"some": {finding{message: "1 of 2 hosts are not offered"}, metav1.ConditionTrue},
		"all":  {finding{reason: v1beta1.ReasonNoHosts, message: "1 of 1 hosts are not offered"}, metav1.ConditionFalse},
	} {
		told := class.DeepCopy()
		row.found.tell(told, clocktesting.NewFakeClock(noon))
		ready := told.StatusConditions().Get(status.ConditionReady)
		if ready.Status != row.ready || ready.Message != row.found.message {
			t.Errorf("%s: Ready is %s: %s", name, ready.Status, ready.Message)
		}
	}
}
