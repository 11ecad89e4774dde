//go:build linux && e2e

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// guarded are the kinds that only an object's owner may write (S6).
var guarded = map[schema.GroupResource]bool{
	{Group: "karpenter.sh", Resource: "nodepools"}:     true,
	{Group: "karpenter.sh", Resource: "nodeclaims"}:    true,
	{Resource: "nodes"}:                                true,
	{Group: v1beta1.Group, Resource: "sshnodeclasses"}: true,
	{Group: v1beta1.Group, Resource: "sshhosts"}:       true,
}

// owners remembers which instance owns what, from watches and from nothing that a controller says: the audit log has names only, and
// most objects are gone when it is read. In this suite nothing changes hands.
type owners struct {
	mu      sync.Mutex
	classes map[string]string       // to instances
	objects map[lab.AuditKey]string // of NodePools, NodeClaims and Nodes, to classes
	nodes   map[string]string       // to the pool namespaces of their provider IDs, until they have a class
}

func newOwners() *owners {
	return &owners{classes: map[string]string{}, objects: map[lab.AuditKey]string{}, nodes: map[string]string{}}
}

func (o *owners) see(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1beta1.SSHNodeClass:
		o.classes[object.Name] = object.Spec.Instance
	case *karpv1.NodePool:
		o.objects[lab.AuditKey{Resource: "nodepools", Name: object.Name}] = object.Spec.Template.Spec.NodeClassRef.Name
	case *karpv1.NodeClaim:
		o.objects[lab.AuditKey{Resource: "nodeclaims", Name: object.Name}] = object.Spec.NodeClassRef.Name
	case *corev1.Node:
		if class, ok := object.Labels[v1beta1.Group+"/sshnodeclass"]; ok {
			o.objects[lab.AuditKey{Resource: "nodes", Name: object.Name}] = class
		}
		if rest, ok := strings.CutPrefix(object.Spec.ProviderID, v1beta1.ProviderIDScheme); ok {
			o.nodes[object.Name], _, _ = strings.Cut(rest, "/")
		}
	}
}

// of is the instance that owns what a request is about; empty if that is nobody's, or not known.
func (o *owners) of(e lab.AuditEvent) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := e.Key()
	switch {
	case key.Resource == "sshhosts":
		return instanceOf(key.Namespace)
	case key.Resource == "sshnodeclasses":
		return o.classes[key.Name]
	case e.Verb == "create" && e.Claim != nil && e.Claim.Spec.NodeClassRef != nil: // the API server makes up the name
		return o.classes[e.Claim.Spec.NodeClassRef.Name]
	}
	if class, ok := o.objects[key]; ok {
		return o.classes[class]
	}
	return instanceOf(o.nodes[key.Name])
}

// instanceOf a namespace is the one whose release, and whose hosts, are there.
func instanceOf(namespace string) string {
	for _, i := range installations {
		if i.namespace == namespace {
			return i.instance
		}
	}
	return ""
}

// planted is the user agent of writes by which the suite shows that it would find a foreign one.
const planted = "planted"

// writes are what instances wrote of guarded kinds since a moment, whatever the API server answered: how many times on objects of their
// own, and each time on others.
func (w *world) writes(since time.Time) (own map[string]int, foreign []lab.AuditEvent) {
	GinkgoHelper()
	audit, err := w.cp.ReadAudit()
	Expect(err).NotTo(HaveOccurred())
	own = map[string]int{}
	for _, e := range audit {
		if e.Time.Before(since) || !e.Write() || !guarded[schema.GroupResource{Group: e.Object.Group, Resource: e.Object.Resource}] {
			continue
		}
		account, is := strings.CutSuffix(strings.TrimPrefix(e.User.Username, "system:serviceaccount:"), ":"+serviceAccount)
		switch writer := instanceOf(account); {
		case !is || writer == "":
		case w.owners.of(e) == writer:
			own[writer]++
		default:
			foreign = append(foreign, e)
		}
	}
	return own, foreign
}

func tell(e lab.AuditEvent) string {
	return fmt.Sprintf("%s %s: %s %s (%d)", e.Time.Format(time.RFC3339Nano), e.User.Username, e.Verb, e.URI, e.Response.Code)
}

// expectNoForeignWrites is S6 over the whole suite.
func (w *world) expectNoForeignWrites() {
	GinkgoHelper()
	own, foreign := w.writes(time.Time{})
	var found []string
	for _, e := range foreign {
		if e.UserAgent != planted {
			found = append(found, tell(e))
		}
	}
	say("audit log: writes on own objects by instance: %v; on foreign ones: %d", own, len(found))
	Expect(found).To(BeEmpty(), "S6: instances wrote what belongs to another")
	Expect(own[single.instance]).To(BeNumerically(">", 0), "the audit log does not show what happened")
}
