package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// classLabel is karpenter core's mark of a Node's class, spelled out here as a user meets it.
const classLabel = "karpenter.dklesev.github.io/sshnodeclass"

// owned are the resources of which every object has an owner.
var owned = map[schema.GroupResource]bool{
	{Group: "karpenter.sh", Resource: "nodepools"}:     true,
	{Group: "karpenter.sh", Resource: "nodeclaims"}:    true,
	{Group: "", Resource: "nodes"}:                     true,
	{Group: v1beta1.Group, Resource: "sshnodeclasses"}: true,
	{Group: v1beta1.Group, Resource: "sshhosts"}:       true,
}

func keyOf(resource, name string) lab.AuditKey { return lab.AuditKey{Resource: resource, Name: name} }

// verdict on the writes of all instances.
type verdict struct {
	own     map[string]int // by instance
	foreign []foreignWrite
}

type foreignWrite struct {
	instance string
	text     string
}

// but are the foreign writes of all instances but one.
func (v verdict) but(instance string) []string {
	var texts []string
	for _, w := range v.foreign {
		if w.instance != instance {
			texts = append(texts, w.text)
		}
	}
	return texts
}

func (v verdict) String() string {
	var counts []string
	for _, instance := range slices.Sorted(maps.Keys(v.own)) {
		counts = append(counts, fmt.Sprintf("%s %d", instance, v.own[instance]))
	}
	return fmt.Sprintf("writes on own objects: %s; on foreign ones: %d", strings.Join(counts, ", "), len(v.foreign))
}

// judge is S6: every request of an instance that asks for a change of an owned kind, whatever the verb, the subresource and the answer,
// is about an object of its own. A write that names no object (a deletion of many) is never.
func (o *owners) judge(audit []lab.AuditEvent) verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := verdict{own: map[string]int{}}
	for _, e := range audit {
		instance, is := strings.CutPrefix(e.User.Username, userPrefix)
		instance, _, _ = strings.Cut(instance, ":") // a replica's own user
		if !is || !e.Write() || !owned[schema.GroupResource{Group: e.Object.Group, Resource: e.Object.Resource}] {
			continue
		}
		holders := o.of(e)
		if slices.Contains(holders, instance) {
			v.own[instance]++
			continue
		}
		v.foreign = append(v.foreign, foreignWrite{instance, fmt.Sprintf("%s %s: %s %s (%d), owned by %q",
			e.Time.Format(time.RFC3339Nano), instance, e.Verb, e.URI, e.Response.Code, holders)})
	}
	return v
}

// planted is an instance that owns nothing and whose writes are the test's.
const planted = "planted"

// The test of the test: whatever way an instance writes a foreign object, and whether the API server lets it or not, the audit shows it.
func TestForeignWritesAreFound(t *testing.T) {
	owner := shared.newInstance(t, "plain", "kp-plain")
	s := &scenario{instance: owner, t: t, name: "plain"}
	t.Cleanup(func() { s.purge(s.ctx()) })
	config, err := s.cp.ClientConfig(userPrefix+planted, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	intruder, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ref := &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: "plain"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain", Labels: map[string]string{classLabel: "plain", karpv1.NodePoolLabelKey: "plain"}}}
	unlabelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain-new"}, Spec: corev1.NodeSpec{ProviderID: v1beta1.ProviderIDScheme + "kp-plain/plain-new"}}
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "plain", Labels: map[string]string{karpv1.NodePoolLabelKey: "plain"}},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: ref, Requirements: []karpv1.NodeSelectorRequirementWithMinValues{}},
	}
	host := &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kp-plain", Name: "plain", Labels: map[string]string{hostLabel: "plain"}},
		Spec:       v1beta1.SSHHostSpec{Address: "192.0.2.1", SSHKeySecretRef: v1beta1.SecretReference{Name: "plain"}, Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")}},
	}
	for _, o := range []client.Object{s.class("plain"), s.pool("plain"), claim, node, unlabelled, host} {
		s.create(o)
	}
	t.Cleanup(func() { s.remove(unlabelled) })
	empty := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	ctx := t.Context()
	for _, each := range []struct {
		what  string
		write func() error
	}{
		{"patch nodepools/plain", func() error { return intruder.Patch(ctx, s.pool("plain"), empty) }},
		{"patch nodepools/plain/status", func() error { return intruder.Status().Patch(ctx, s.pool("plain"), empty) }},
		{"patch nodeclaims/plain", func() error { return intruder.Patch(ctx, claim.DeepCopy(), empty) }},
		{"create nodeclaims", func() error {
			c := claim.DeepCopy()
			c.Name, c.GenerateName, c.ResourceVersion = "", "plain-", ""
			return intruder.Create(ctx, c)
		}},
		{"patch nodes/plain", func() error { return intruder.Patch(ctx, node.DeepCopy(), empty) }},
		{"patch nodes/plain-new", func() error { return intruder.Patch(ctx, unlabelled.DeepCopy(), empty) }},
		{"patch sshnodeclasses/plain/status", func() error { return intruder.Status().Patch(ctx, s.class("plain"), empty) }},
		{"update sshhosts/plain", func() error {
			h := host.DeepCopy()
			h.Finalizers = []string{"a/b"}
			return intruder.Update(ctx, h)
		}},
		{"delete nodeclaims/plain", func() error { return intruder.Delete(ctx, claim.DeepCopy()) }},
		{"deletecollection nodes", func() error { return intruder.DeleteAllOf(ctx, &corev1.Node{}, client.MatchingLabels{"no": "body"}) }},
		{"patch sshhosts/absent", func() error {
			h := host.DeepCopy()
			h.Name = "absent"
			return client.IgnoreNotFound(intruder.Patch(ctx, h, empty))
		}},
	} {
		what, write := each.what, each.write
		began := time.Now()
		if err := write(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.eventually(10*time.Second, what+" is found", func() (bool, string) {
			found := s.foreignSince(began)
			return len(found) == 1 && found[0].instance == planted && strings.Contains(found[0].text, strings.Split(what, " ")[0]+" "), fmt.Sprint(found)
		})
	}
	// An event about a foreign object is no write of it, nor is a Lease.
	began := time.Now()
	if err := intruder.Create(ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "plain"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "plain", Namespace: "default"}}); err != nil {
		t.Error(err)
	}
	if found := s.foreignSince(began); len(found) > 0 {
		t.Errorf("an event counts as a write: %v", found)
	}
}

// foreignSince are the foreign writes of all instances since a moment.
func (s *scenario) foreignSince(began time.Time) []foreignWrite {
	s.t.Helper()
	return s.judgeSince(began).foreign
}

func (s *scenario) judgeSince(began time.Time) verdict {
	s.t.Helper()
	return s.owners.judge(s.auditSince(began))
}

func (s *scenario) auditSince(began time.Time) []lab.AuditEvent {
	s.t.Helper()
	audit, err := s.cp.ReadAudit()
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(audit, func(e lab.AuditEvent) bool { return e.Time.Before(began) })
}
