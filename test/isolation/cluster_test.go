package isolation

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/chart"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Names in this cluster: of segment x, the instance is seg-x, its release is in namespace kp-x and its machines in pool-x. Its class, NodePool,
// NodeClaim, Node, host and the key to it are all called x. The objects called aws are another provider's.
const (
	own, other   = "a", "b"
	awsGroup     = "karpenter.k8s.aws"
	classLabel   = v1beta1.Group + "/sshnodeclass"
	secretOfUser = "somebodys"
)

// cluster is an API server with two releases of the chart and what belongs to them.
type cluster struct {
	admin client.Client
	// instance acts as the ServiceAccount of seg-a; kubelet as the one of Node a.
	instance, kubelet client.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	cp, err := lab.StartControlPlane(t.Context(), lab.Options{CRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	c := &cluster{
		admin: as(t, cp.RESTConfig(), rest.ImpersonationConfig{}),
		instance: as(t, cp.RESTConfig(), rest.ImpersonationConfig{
			UserName: "system:serviceaccount:kp-a:kpssh-karpenter-provider-ssh",
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:kp-a", "system:authenticated"},
		}),
		kubelet: as(t, cp.RESTConfig(), rest.ImpersonationConfig{UserName: "system:node:a", Groups: []string{"system:nodes", "system:authenticated"}}),
	}
	for _, segment := range []string{own, other} {
		c.populate(t, segment)
	}
	c.create(t, &v1beta1.SSHJoinProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{v1beta1.InstalledFinalizer("seg-b")}},
		Spec:       v1beta1.SSHJoinProfileSpec{Scripts: v1beta1.Scripts{Install: "true", Join: "true", Leave: "true"}},
	})
	c.create(t, nodePool("aws", awsGroup, "EC2NodeClass", ""))
	c.create(t, claimOf(c.get(t, nodePool("aws", "", "", "")).(*karpv1.NodePool)))
	c.create(t, node("aws", "aws:///eu-west-1a/i-0", map[string]string{karpv1.NodePoolLabelKey: "aws"}))
	c.create(t, joining(node("aws-joining", "aws:///eu-west-1a/i-1", map[string]string{karpv1.NodePoolLabelKey: "aws"})))
	c.create(t, node("stray", "", nil))
	c.create(t, joining(node("joining", "eks-hybrid:///eu-west-1/c/mi-0", nil)))
	c.create(t, secret("kube-system", secretOfUser, corev1.SecretTypeOpaque, nil))
	return c
}

// populate installs a release, and makes what a segment has.
func (c *cluster) populate(t *testing.T, segment string) {
	t.Helper()
	for _, name := range []string{"kp-" + segment, "pool-" + segment, "kube-system", "kube-public"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.admin.Create(t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	objects, err := chart.Render(t.Context(), chart.Release{Name: "kpssh", Namespace: "kp-" + segment, Values: map[string]any{
		"instance": map[string]any{"name": "seg-" + segment}, "poolNamespace": "pool-" + segment,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		c.create(t, o)
	}
	for _, class := range []string{segment, segment + "2"} {
		c.create(t, &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: v1beta1.SSHNodeClassSpec{
			Instance: "seg-" + segment, JoinProfileRef: v1beta1.ProfileReference{Name: "p"},
		}})
	}
	pool := nodePool(segment, v1beta1.Group, "SSHNodeClass", segment)
	pool.Annotations = map[string]string{v1beta1.OwnerAnnotation: "seg-" + segment}
	c.create(t, pool)
	c.create(t, claimOf(c.get(t, pool).(*karpv1.NodePool)))
	c.create(t, node(segment, "kpssh://pool-"+segment+"/"+segment, map[string]string{classLabel: segment, v1beta1.InstanceLabel: "seg-" + segment}))
	c.create(t, host(segment))
	c.create(t, secret("pool-"+segment, segment, corev1.SecretTypeOpaque, nil))
	c.create(t, lease("kpssh-seg-"+segment))
	c.create(t, token("00000"+segment, "system:bootstrappers:kpssh:seg-"+segment))
}

func (c *cluster) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := c.admin.Create(t.Context(), o, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
		t.Fatalf("%T %s: %v", o, o.GetName(), err)
	}
}

func (c *cluster) get(t *testing.T, o client.Object) client.Object {
	t.Helper()
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func as(t *testing.T, config *rest.Config, who rest.ImpersonationConfig) client.Client {
	t.Helper()
	config.Impersonate = who
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// eventually asks again, within a bound, until done has nothing more to say: the API server takes a new policy up after a moment.
func eventually(ctx context.Context, done func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func nodePool(name, group, kind, class string) *karpv1.NodePool {
	if class == "" {
		class = name
	}
	return &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodePoolSpec{
		Disruption: karpv1.Disruption{ConsolidateAfter: karpv1.MustParseNillableDuration("0s")},
		Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: group, Kind: kind, Name: class},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		}},
	}}
}

// claimOf is what karpenter makes for a NodePool, with the NodePool's name in place of a generated one.
func claimOf(pool *karpv1.NodePool) *karpv1.NodeClaim {
	template := scheduling.NewNodeClaimTemplate(pool)
	template.IsStaticNodeClaim = true // no instance types are needed
	claim := template.ToNodeClaim()
	claim.Name, claim.GenerateName = pool.Name, ""
	return claim
}

func node(name, providerID string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

// joining is a Node that karpenter has yet to register.
func joining(n *corev1.Node) *corev1.Node {
	n.Spec.Taints = []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}
	return n
}

func host(segment string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{ObjectMeta: metav1.ObjectMeta{Namespace: "pool-" + segment, Name: segment}, Spec: v1beta1.SSHHostSpec{
		Address: "10.0.0.1", SSHKeySecretRef: v1beta1.SecretReference{Name: segment},
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
}

func secret(namespace, name string, kind corev1.SecretType, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind, StringData: data}
}

func token(id, group string) *corev1.Secret {
	return secret("kube-system", "bootstrap-token-"+id, corev1.SecretTypeBootstrapToken, map[string]string{
		"token-id": id, "token-secret": "0123456789abcdef", "auth-extra-groups": group,
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
	})
}
