package isolation

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
)

// act is one request, or a few.
type act func(context.Context) error

// row is an attack and its twin: the like of it that is right, so that a rule that refuses everything does not pass.
type row struct {
	name    string
	refused act
	// says is what the refusal says, among other things: the object, and why. If several policies refuse, any of them speaks.
	says    []string
	allowed act
}

// S5, S6, H4: what instance seg-a may do ends at its segment, whatever its code does. Nothing is really written but tokens: a dry run passes all of
// authorization and admission.
func TestTheAPIServerConfinesAnInstance(t *testing.T) {
	c := newCluster(t)
	rows := c.attacks()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			err := eventually(t.Context(), func() error {
				if err := r.refused(t.Context()); !apierrors.IsForbidden(err) {
					return fmt.Errorf("not refused: %w", err)
				} else if missing := lacks(err.Error(), r.says); missing != "" {
					return fmt.Errorf("the refusal does not say %q: %w", missing, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	// Now every policy is in force.
	for _, r := range rows {
		if r.allowed == nil {
			continue // its twin is in another row
		}
		t.Run(r.name+"/allowed", func(t *testing.T) {
			if err := r.allowed(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func (c *cluster) attacks() []row {
	patchOf := func(o client.Object, body string) act { return patch(c.instance, o, body) }
	labelled := func(key, value string) string { return `{"metadata":{"labels":{"` + key + `":"` + value + `"}}}` }
	const finalizer, annotation = `{"metadata":{"finalizers":["karpenter.sh/termination"]}}`, `{"metadata":{"annotations":{"x":"y"}}}`
	condition := `{"status":{"conditions":[]}}`
	pool := func(name string) *karpv1.NodePool { return named(&karpv1.NodePool{}, name) }
	claim := func(name string) *karpv1.NodeClaim { return named(&karpv1.NodeClaim{}, name) }
	class := func(name string) *v1beta1.SSHNodeClass { return named(&v1beta1.SSHNodeClass{}, name) }
	profile := named(&v1beta1.SSHJoinProfile{}, "p")
	holders := func(instances ...string) string {
		body := `{"metadata":{"finalizers":[`
		for i, instance := range instances {
			body += strings.Repeat(",", min(i, 1)) + `"` + v1beta1.InstalledFinalizer(instance) + `"`
		}
		return body + "]}}"
	}
	machine := func(name string) *corev1.Node { return named(&corev1.Node{}, name) }
	repoint := func(class string) string {
		return `{"spec":{"template":{"spec":{"nodeClassRef":{"name":"` + class + `"}}}}}`
	}
	read := func(o client.Object) act {
		return func(ctx context.Context) error { return c.instance.Get(ctx, client.ObjectKeyFromObject(o), o) }
	}
	// newClaim is the NodeClaim that karpenter would make for a NodePool, changed.
	newClaim := func(from string, change func(*karpv1.NodeClaim)) act {
		return func(ctx context.Context) error {
			live := pool(from)
			if err := c.admin.Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
				return err
			}
			made := claimOf(live)
			made.Name = "new"
			change(made)
			return c.instance.Create(ctx, made, client.DryRunAll)
		}
	}
	asItComes := func(*karpv1.NodeClaim) {}
	return []row{
		// RBAC: secrets and machines of the other segment.
		{"read a Secret of the other pool", read(secret("pool-b", "b", "", nil)), says(`secrets "b"`, `namespace "pool-b"`), read(secret("pool-a", "a", "", nil))},
		{"list the Secrets of the other pool", c.list("pool-b"), says("secrets", `namespace "pool-b"`), c.list("pool-a")},
		{"read a token in kube-system", read(secret("kube-system", "bootstrap-token-00000a", "", nil)), says(`secrets "bootstrap-token-00000a"`), nil},
		{"list the Secrets of kube-system", c.list("kube-system"), says("secrets", `namespace "kube-system"`), nil},
		{"write the status of a host of the other pool", c.status(host(other), `{"status":{"state":"Available"}}`), says(`"b"`, "sshhosts/status"), c.status(host(own), `{"status":{"state":"Available"}}`)},
		{"write a host of the other pool", patchOf(host(other), finalizer), says(`"b"`, `namespace "pool-b"`), patchOf(host(own), finalizer)},
		{"delete a host of the other pool", remove(c.instance, host(other)), says(`"b"`, `namespace "pool-b"`), nil},
		{"make a host in the other pool", add(c.instance, host(other)), says("sshhosts", `namespace "pool-b"`), nil},
		{"delete an own host", remove(c.instance, host(own)), says(`"a"`), nil},
		{"write the other's lease", patchOf(lease("kpssh-seg-b"), annotation), says(`"kpssh-seg-b"`), patchOf(lease("kpssh-seg-a"), annotation)},
		{"delete the other's lease", remove(c.instance, lease("kpssh-seg-b")), says(`"kpssh-seg-b"`), nil},
		{"make a class", add(c.instance, classOf("seg-a")), says("sshnodeclasses"), nil},
		{"make a NodePool", add(c.instance, nodePool("new", v1beta1.Group, "SSHNodeClass", own)), says("nodepools"), nil},
		{"delete a NodePool", remove(c.instance, pool(other)), says(`"b"`), nil},

		// Leases: RBAC cannot ask for a name on create.
		{"make a lease of another name", add(c.instance, lease("kpssh-seg-c")), says("kpssh-seg-c", "not the lease of instance seg-a"), add(c.instance, lease("kpssh-disruption"))},

		// This provider's kinds.
		{"write the spec of an own host", patchOf(host(own), `{"spec":{"user":"somebody"}}`), says("SSHHost a", "for people to write"), nil},
		{"label an own host", patchOf(host(own), labelled("x", "y")), says("SSHHost a", "for people to write"), nil},
		{"write the other's class", patchOf(class(other), finalizer), says("SSHNodeClass b", "instance seg-b"), patchOf(class(own), finalizer)},
		{"write the status of the other's class", c.status(class(other), condition), says("SSHNodeClass b", "instance seg-b"), c.status(class(own), condition)},
		{"write the spec of an own class", patchOf(class(own), `{"spec":{"zone":"z"}}`), says("SSHNodeClass a", "for people to write"), nil},
		{"delete the other's class", remove(c.instance, class(other)), says(`"b"`), nil},

		// Section 3 #15: profiles are everybody's, and held by each instance for itself.
		{"take the other's finalizer off a profile", patchOf(profile, holders("seg-a")), says("SSHJoinProfile p", "its own finalizer"), patchOf(profile, holders("seg-b", "seg-a"))},
		{"put a finalizer of somebody else on a profile", patchOf(profile, holders("seg-b", "seg-c")), says("SSHJoinProfile p", "its own finalizer"), nil},
		{"have a profile collected as garbage", patchOf(profile, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}`), says("SSHJoinProfile p", "nothing else"), nil},
		{"write the scripts of a profile", patchOf(profile, `{"spec":{"scripts":{"install":"x"}}}`), says("SSHJoinProfile p", "for people to write"), nil},
		{"label a profile", patchOf(profile, labelled("x", "y")), says("SSHJoinProfile p", "for people to write"), nil},
		{"delete a profile", remove(c.instance, profile), says(`"p"`), nil},

		// NodePools.
		{"write the other's NodePool", patchOf(pool(other), annotation), says("NodePool b", "SSHNodeClass b of instance seg-b"), patchOf(pool(own), annotation)},
		{"write the status of the other's NodePool", c.status(pool(other), condition), says("NodePool b", "instance seg-b"), c.status(pool(own), condition)},
		{"write another provider's NodePool", patchOf(pool("aws"), annotation), says("NodePool aws", "EC2NodeClass.karpenter.k8s.aws"), nil},
		{"point an own NodePool at the other's class", patchOf(pool(own), repoint(other)), says("NodePool a"), nil},
		{"point an own NodePool at an unknown class", patchOf(pool(own), repoint("unknown")), says("NodePool a", "its spec is for people"), nil},
		{"say that an own NodePool is the other's", patchOf(pool(own), ownerPatch("seg-b")), says("NodePool a", "no other than itself"), patchOf(pool(own), ownerPatch("seg-a"))},

		// NodeClaims.
		{"write the other's NodeClaim", patchOf(claim(other), annotation), says("NodeClaim b", "SSHNodeClass b of instance seg-b"), patchOf(claim(own), annotation)},
		{"write the status of the other's NodeClaim", c.status(claim(other), condition), says("NodeClaim b", "instance seg-b"), c.status(claim(own), condition)},
		{"delete the other's NodeClaim", remove(c.instance, claim(other)), says("NodeClaim b", "instance seg-b"), remove(c.instance, claim(own))},
		{"take the class label off the other's NodeClaim", patchOf(claim(other), `{"metadata":{"labels":{"`+classLabel+`":null}}}`), says("NodeClaim b", "instance seg-b"), nil},
		{"write another provider's NodeClaim", patchOf(claim("aws"), annotation), says("NodeClaim aws", "EC2NodeClass.karpenter.k8s.aws"), nil},
		{"delete another provider's NodeClaim", remove(c.instance, claim("aws")), says("NodeClaim aws", "another provider"), nil},
		{"make a NodeClaim of the other's NodePool", newClaim(other, asItComes), says("NodeClaim new", "SSHNodeClass b of instance seg-b"), newClaim(own, asItComes)},
		{"make a NodeClaim of the other's class", newClaim(own, ofClass(other)), says("NodeClaim new", "names SSHNodeClass b"), nil},
		{"make a NodeClaim of an unknown class", newClaim(own, ofClass("unknown")), says("NodeClaim new", "unknown", "its NodePool a"), nil},
		{"make a NodeClaim of another own class than its NodePool's", newClaim(own, ofClass("a2")), says("NodeClaim new", "its NodePool a"), nil},
		{"make a NodeClaim that hides its class", newClaim(other, func(n *karpv1.NodeClaim) { delete(n.Labels, classLabel) }), says("NodeClaim new", "lacks the label"), nil},
		{"make a NodeClaim without a NodePool", newClaim(own, func(n *karpv1.NodeClaim) { n.OwnerReferences = nil }), says("NodeClaim new", "NodePool"), nil},
		{"make a NodeClaim of a NodePool that was", newClaim(own, func(n *karpv1.NodeClaim) { n.OwnerReferences[0].UID = "gone" }), says("NodeClaim new", "the NodePool that owns it"), nil},
		{"make another provider's NodeClaim", newClaim("aws", asItComes), says("NodeClaim new", "another provider"), nil},

		// Nodes.
		{"write the other's Node", patchOf(machine(other), annotation), says("Node b"), patchOf(machine(own), annotation)},
		{"give the other's Node an own class", patchOf(machine(other), labelled(classLabel, own)), says("Node b"), nil},
		{"delete the other's Node", remove(c.instance, machine(other)), says("Node b"), remove(c.instance, machine(own))},
		{"give an own Node the other's class", patchOf(machine(own), labelled(classLabel, other)), says("Node a", "SSHNodeClass b of instance seg-b"), patchOf(machine(own), labelled(classLabel, "a2"))},
		{"write another provider's Node", patchOf(machine("aws"), annotation), says("Node aws", "not a machine of instance seg-a"), nil},
		{"claim another provider's Node", patchOf(machine("aws"), labelled(classLabel, own)), says("Node aws", "not a machine of instance seg-a"), nil},
		{"claim a Node that joins for another provider", patchOf(machine("aws-joining"), labelled(classLabel, own)), says("Node aws-joining", "not a machine of instance seg-a"), nil},
		// A machine whose agent chose its provider ID has no class until karpenter registers it.
		{"write a Node that is nobody's", patchOf(machine("stray"), annotation), says("Node stray", "not a machine of instance seg-a"), patchOf(machine("joining"), labelled(classLabel, own))},
		{"claim a Node that is nobody's", patchOf(machine("stray"), labelled(classLabel, own)), says("Node stray", "not a machine of instance seg-a"), nil},
		{"delete a Node that is nobody's", remove(c.instance, machine("stray")), says("Node stray", "not a machine of instance seg-a"), nil},

		// kube-system.
		{"make a cluster administrator's token", add(c.instance, serviceAccountToken()), says("Secret root", "kubernetes.io/service-account-token"), c.mint()},
		{"make a token of the other's group", add(c.instance, token("11111a", "system:bootstrappers:kpssh:seg-b")), says("bootstrap-token-11111a", "system:bootstrappers:kpssh:seg-a only"), add(c.instance, token("11111a", "system:bootstrappers:kpssh:seg-a"))},
		{"make a token of two groups", add(c.instance, token("11111a", "system:bootstrappers:kpssh:seg-a,system:bootstrappers:kubeadm:default-node-token")), says("bootstrap-token-11111a"), nil},
		{"make a token for ever", add(c.instance, without(token("11111a", "system:bootstrappers:kpssh:seg-a"), "expiration")), says("bootstrap-token-11111a", "never expires"), nil},
		{"make a token with another use", add(c.instance, with(token("11111a", "system:bootstrappers:kpssh:seg-a"), "usage-bootstrap-other", "true")), says("bootstrap-token-11111a", "other entries"), nil},
		{"make a Secret of another type", add(c.instance, secret("kube-system", "new", corev1.SecretTypeOpaque, nil)), says("Secret new", "Opaque"), nil},
		{"delete somebody's Secret", remove(c.instance, secret("kube-system", secretOfUser, "", nil)), says("Secret somebodys", "Opaque"), remove(c.instance, secret("kube-system", "bootstrap-token-00000a", "", nil))},
		{"delete a token of the other's group", remove(c.instance, secret("kube-system", "bootstrap-token-00000b", "", nil)), says("bootstrap-token-00000b", "another group"), nil},

		// Rules for everybody.
		{"an administrator moves a NodePool to the other's class", patch(c.admin, pool(own), repoint(other)), says("NodePool a belongs to instance seg-a", "SSHNodeClass b to instance seg-b", "Create another NodePool"), patch(c.admin, pool(own), repoint("a2"))},
		{"an administrator moves it in the other direction", patch(c.admin, pool(other), repoint("a2")), says("NodePool b belongs to instance seg-b"), patch(c.admin, pool(other), repoint("b2"))},
		{"a kubelet changes a label of ours", patch(c.kubelet, machine("a"), labelled(v1beta1.InstanceLabel, "seg-b")), says("Node a", v1beta1.InstanceLabel, "spec.template.metadata.labels"), patch(c.kubelet, machine("a"), labelled("example.com/rack", "7"))},
		{"a kubelet adds a label of ours", patch(c.kubelet, machine("a"), labelled(v1beta1.HostClassLabel, "big")), says("Node a", v1beta1.HostClassLabel), patch(c.admin, machine("a"), labelled(v1beta1.HostClassLabel, "big"))},
		{"a kubelet removes a label of ours", patch(c.kubelet, machine("a"), `{"metadata":{"labels":{"`+classLabel+`":null}}}`), says("Node a", classLabel), nil},
		{"a kubelet changes a label of ours beside its status", c.statusAs(c.kubelet, machine("a"), labelled(v1beta1.InstanceLabel, "seg-b")), says("Node a", v1beta1.InstanceLabel), c.statusAs(c.kubelet, machine("a"), `{"status":{"nodeInfo":{"kubeletVersion":"v1"}}}`)},
	}
}

func says(words ...string) []string { return words }

func lacks(text string, words []string) string {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return word
		}
	}
	return ""
}

func named[T client.Object](o T, name string) T {
	o.SetName(name)
	return o
}

// patch and its like work on copies: they are asked again and again.
func patch(as client.Client, o client.Object, body string) act {
	return func(ctx context.Context) error {
		return as.Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
}

func (c *cluster) status(o client.Object, body string) act { return c.statusAs(c.instance, o, body) }

func (c *cluster) statusAs(as client.Client, o client.Object, body string) act {
	return func(ctx context.Context) error {
		return as.Status().Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
	}
}

func remove(as client.Client, o client.Object) act {
	return func(ctx context.Context) error {
		return as.Delete(ctx, o.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func add(as client.Client, o client.Object) act {
	return func(ctx context.Context) error {
		return as.Create(ctx, o.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func (c *cluster) list(namespace string) act {
	return func(ctx context.Context) error {
		return c.instance.List(ctx, &corev1.SecretList{}, client.InNamespace(namespace))
	}
}

// mint makes and deletes a token as the controller does.
func (c *cluster) mint() act {
	return func(ctx context.Context) error {
		tokens, id := bootstrap.NewTokens(c.instance, "seg-a", clock.RealClock{}), bootstrap.NewTokenID()
		if _, err := tokens.Mint(ctx, id, "claim"); err != nil {
			return err
		}
		return tokens.Delete(ctx, id)
	}
}

func ofClass(class string) func(*karpv1.NodeClaim) {
	return func(n *karpv1.NodeClaim) { n.Spec.NodeClassRef.Name, n.Labels[classLabel] = class, class }
}

func ownerPatch(instance string) string {
	return `{"metadata":{"annotations":{"` + v1beta1.OwnerAnnotation + `":"` + instance + `"}}}`
}

func classOf(instance string) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: v1beta1.SSHNodeClassSpec{
		Instance: instance, JoinProfileRef: v1beta1.ProfileReference{Name: "p"},
	}}
}

// serviceAccountToken would hold a token of the controller that may write every role.
func serviceAccountToken() *corev1.Secret {
	s := secret("kube-system", "root", corev1.SecretTypeServiceAccountToken, nil)
	s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}
	return s
}

func with(s *corev1.Secret, key, value string) *corev1.Secret {
	s.StringData[key] = value
	return s
}

func without(s *corev1.Secret, key string) *corev1.Secret {
	delete(s.StringData, key)
	return s
}
