package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

var (
	now          = time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("CET", 3600))
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x", errors.New("no role"))
	errTimeout   = apierrors.NewServerTimeout(schema.GroupResource{Resource: "x"}, "x", 1)
)

// cluster is a fake API server that counts reads and can fail.
type cluster struct {
	client.WithWatch
	gets  int
	fails map[string][]error // by verb, one a call
}

func (c *cluster) fail(verb string) error {
	if len(c.fails[verb]) == 0 {
		return nil
	}
	err := c.fails[verb][0]
	c.fails[verb] = c.fails[verb][1:]
	return err
}

func newCluster(objects ...client.Object) *cluster {
	c := &cluster{fails: map[string][]error{}}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			c.gets++
			if err := c.fail("get"); err != nil {
				return err
			}
			return w.Get(ctx, key, obj, opts...)
		},
		Create: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := c.fail("create"); err != nil {
				return err
			}
			return w.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, w client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := c.fail("delete"); err != nil {
				return err
			}
			return w.Delete(ctx, obj, opts...)
		},
	}).Build()
	return c
}

func (c *cluster) tokens(t *testing.T) []corev1.Secret {
	t.Helper()
	var list corev1.SecretList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func wantFault(t *testing.T, err error, blame fault.Blame, reason, says string) {
	t.Helper()
	var got *fault.Error
	if !errors.As(err, &got) {
		t.Fatalf("want a fault, got %v", err)
	}
	if got.Blame != blame || got.Reason != reason {
		t.Errorf("got %s/%s, want %s/%s: %v", got.Blame, got.Reason, blame, reason, err)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("%q does not say %q", err, says)
	}
}

func TestMintMakesATokenThatKubernetesAccepts(t *testing.T) {
	for _, test := range []struct{ instance, group string }{
		{"default", "system:bootstrappers:kpssh"},
		{"", "system:bootstrappers:kpssh"},
		{"seg-a", "system:bootstrappers:kpssh:seg-a"},
	} {
		c := newCluster()
		id := NewTokenID()
		token, err := NewTokens(c, test.instance, testingclock.NewFakePassiveClock(now)).Mint(t.Context(), id, "pool-x7k2p")
		if err != nil {
			t.Fatal(err)
		}
		if !bootstraputil.IsValidBootstrapToken(token) || !strings.HasPrefix(token, id+".") {
			t.Errorf("token is malformed or not of the recorded id %s", id)
		}
		secrets := c.tokens(t)
		if len(secrets) != 1 {
			t.Fatalf("%d Secrets", len(secrets))
		}
		got := secrets[0]
		if got.Namespace != "kube-system" || got.Name != "bootstrap-token-"+id || got.Type != "bootstrap.kubernetes.io/token" {
			t.Errorf("%s/%s of type %s", got.Namespace, got.Name, got.Type)
		}
		for key, want := range map[string]string{
			"token-id":                       id,
			"token-secret":                   strings.TrimPrefix(token, id+"."),
			"expiration":                     "2026-03-01T12:00:00Z", // 12:00 CET is 11:00 UTC, and an hour
			"usage-bootstrap-authentication": "true",
			"usage-bootstrap-signing":        "true",
			"auth-extra-groups":              test.group,
		} {
			if string(got.Data[key]) != want {
				t.Errorf("%s: %q, want %q", key, got.Data[key], want)
			}
		}
		if err := bootstraputil.ValidateBootstrapGroupName(string(got.Data["auth-extra-groups"])); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(got.Data["description"]), "NodeClaim pool-x7k2p") {
			t.Errorf("description %q does not name the NodeClaim", got.Data["description"])
		}
	}
}

// Section 2 #30, section 3 #17: a token that a crash left behind is replaced, not added to.
func TestMintReplacesTheTokenOfAnAttemptBefore(t *testing.T) {
	c := newCluster()
	tokens := NewTokens(c, "default", testingclock.NewFakePassiveClock(now))
	id := NewTokenID()
	first, err := tokens.Mint(t.Context(), id, "claim")
	if err != nil {
		t.Fatal(err)
	}
	second, err := tokens.Mint(t.Context(), id, "claim")
	if err != nil {
		t.Fatal(err)
	}
	if first == second || len(c.tokens(t)) != 1 {
		t.Errorf("same token %v, %d Secrets", first == second, len(c.tokens(t)))
	}
	if c.gets > 0 {
		t.Error("it reads Secrets, which it has no right to")
	}
	if err := tokens.Delete(t.Context(), id); err != nil || len(c.tokens(t)) != 0 {
		t.Errorf("deleting: %v, %d left", err, len(c.tokens(t)))
	}
	for _, absent := range []string{id, "", "no-token-id"} {
		if err := tokens.Delete(t.Context(), absent); err != nil {
			t.Errorf("deleting %q: %v", absent, err)
		}
	}
}

func TestDeleteNeverReachesOtherSecrets(t *testing.T) {
	c := newCluster(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-"}})
	for _, id := range []string{"", "../x", "ABCDEF", "abcdefg"} {
		if err := NewTokens(c, "default", testingclock.NewFakePassiveClock(now)).Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if len(c.tokens(t)) != 1 {
		t.Error("a Secret that is no token is gone")
	}
}

// Alert TokenLeak: what is done with tokens is counted by how it went; a token that is gone already was not deleted.
func TestTokenOperationsAreCounted(t *testing.T) {
	counted := func(action, outcome string) float64 {
		var m dto.Metric
		if err := metrics.TokenOperations.WithLabelValues(action, outcome).Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.Counter.GetValue()
	}
	c := newCluster()
	c.fails["create"], c.fails["delete"] = []error{nil, errTimeout}, []error{nil, nil, errForbidden}
	tokens := NewTokens(c, "seg-a", testingclock.NewFakePassiveClock(now))
	before := map[string]float64{}
	for _, key := range []string{"mint success", "mint error", "delete success", "delete error"} {
		action, outcome, _ := strings.Cut(key, " ")
		before[key] = counted(action, outcome)
	}
	for _, id := range []string{"abcdef", "abcdeg"} { // the second is refused
		_, _ = tokens.Mint(t.Context(), id, "n")
	}
	for range 3 { // it is there, it is gone, it is refused
		_ = tokens.Delete(t.Context(), "abcdef")
	}
	for key, want := range map[string]float64{"mint success": 1, "mint error": 1, "delete success": 1, "delete error": 1} {
		action, outcome, _ := strings.Cut(key, " ")
		if got := counted(action, outcome) - before[key]; got != want {
			t.Errorf("%s: %g, want %g", key, got, want)
		}
	}
}

func TestTokenIDsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewTokenID()
		if !bootstraputil.IsValidBootstrapTokenID(id) || seen[id] {
			t.Fatalf("%q is malformed or has been before", id)
		}
		seen[id] = true
	}
}

func TestTokenFaults(t *testing.T) {
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "x")
	for _, test := range []struct {
		name   string
		fails  map[string][]error
		id     string
		blame  fault.Blame
		reason string
		says   string
	}{
		{"API down", map[string][]error{"create": {errTimeout}}, "abcdef", fault.Cluster, ReasonTokenFailed, "creating Secret kube-system/bootstrap-token-abcdef"},
		{"forbidden", map[string][]error{"create": {errForbidden}}, "abcdef", fault.Configuration, ReasonTokenForbidden, "grant the controller create and delete on secrets"},
		{"the old one cannot be deleted", map[string][]error{"create": {exists}, "delete": {errForbidden}}, "abcdef", fault.Configuration, ReasonTokenForbidden, "deleting Secret"},
		{"down after the old one was deleted", map[string][]error{"create": {exists, errTimeout}}, "abcdef", fault.Cluster, ReasonTokenFailed, "creating Secret"},
		{"cancelled", map[string][]error{"create": {context.Canceled}}, "abcdef", fault.Cluster, ReasonTokenFailed, "context canceled"},
		{"no id", nil, "", fault.Cluster, ReasonTokenFailed, "no bootstrap token ID"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster()
			c.fails = test.fails
			token, err := NewTokens(c, "default", testingclock.NewFakePassiveClock(now)).Mint(t.Context(), test.id, "claim")
			wantFault(t, err, test.blame, test.reason, test.says)
			if token != "" {
				t.Error("a token comes with the error")
			}
		})
	}
}

// authority is a PEM certificate of a new CA, which may end.
func authority(t *testing.T, ends ...time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true}
	for _, end := range ends {
		template.NotAfter = end
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func clusterInfo(kubeconfig string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": kubeconfig},
	}
}

// published is a kubeconfig as kubeadm publishes it: no names, no context.
func published(endpoint string, ca []byte) string {
	return "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: " + endpoint +
		"\n    certificate-authority-data: " + base64.StdEncoding.EncodeToString(ca) + "\n"
}

func classWith(spec *v1beta1.ClusterSpec) *v1beta1.SSHNodeClass {
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-a"}}
	class.Spec.Cluster = spec
	return class
}

func TestResolve(t *testing.T) {
	own, other := authority(t), authority(t)
	two := "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster: {server: \"https://a\"}\n- name: b\n  cluster: {server: \"https://b\", certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(own) + "}\ncontexts:\n- name: c\n  context: {cluster: b}\n"
	for _, test := range []struct {
		name      string
		published string // empty: there is no cluster-info
		override  *v1beta1.ClusterSpec
		endpoint  string // empty: a fault
		ca        []byte
		says      string
	}{
		{"as kubeadm publishes it", published("https://192.0.2.1:6443", own), nil, "https://192.0.2.1:6443", own, ""},
		{"IPv6", published("https://[2001:db8::1]:6443", own), nil, "https://[2001:db8::1]:6443", own, ""},
		{"two clusters and a context", two + "current-context: c\n", nil, "https://b", own, ""},
		{"the class says all", "", &v1beta1.ClusterSpec{Endpoint: "https://lb.example", CABundle: other}, "https://lb.example", other, ""},
		{"the class wins", published("https://192.0.2.1:6443", own), &v1beta1.ClusterSpec{Endpoint: "https://lb.example", CABundle: other}, "https://lb.example", other, ""},
		{"the class says the endpoint only", published("https://192.0.2.1:6443", own), &v1beta1.ClusterSpec{Endpoint: "https://lb.example"}, "https://lb.example", own, ""},
		{"the class does not care for a broken cluster-info", "{", &v1beta1.ClusterSpec{Endpoint: "https://lb.example", CABundle: other}, "https://lb.example", other, ""},

		{"nothing anywhere", "", nil, "", nil, "set spec.cluster.endpoint and spec.cluster.caBundle"},
		{"no CA anywhere", "", &v1beta1.ClusterSpec{Endpoint: "https://lb.example"}, "", nil, "set spec.cluster.caBundle"},
		{"no kubeconfig", "a: [", nil, "", nil, "no kubeconfig"},
		{"an empty kubeconfig", "apiVersion: v1\nkind: Config\n", nil, "", nil, "0 clusters"},
		{"two clusters and no context", two, nil, "", nil, "2 clusters"},
		{"plain http", published("http://192.0.2.1:6443", own), nil, "", nil, "https://host:port"},
		{"no host", published("https://", own), nil, "", nil, "https://host:port"},
		{"no CA published", published("https://192.0.2.1:6443", nil), nil, "", nil, "no PEM certificate"},
		{"the class's CA is no PEM", "", &v1beta1.ClusterSpec{Endpoint: "https://lb.example", CABundle: []byte("MIIB")}, "", nil, "SSHNodeClass nc-a: spec.cluster is wrong"},
		{"the class's endpoint has no host", "", &v1beta1.ClusterSpec{Endpoint: "https://:6443", CABundle: other}, "", nil, "https://host:port"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster()
			if test.published != "" {
				c = newCluster(clusterInfo(test.published))
			}
			got, err := NewDiscovery(c).Resolve(t.Context(), classWith(test.override))
			if test.endpoint == "" {
				wantFault(t, err, fault.Configuration, v1beta1.ReasonClusterUnknown, test.says)
				if !strings.Contains(err.Error(), "SSHNodeClass nc-a") {
					t.Errorf("%q does not name the class", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Endpoint != test.endpoint || string(got.CA) != string(test.ca) {
				t.Errorf("got %s and\n%s", got.Endpoint, got.CA)
			}
		})
	}
}

func TestClusterInfoIsReadOnceAMinuteAndOnRequest(t *testing.T) {
	c := newCluster(clusterInfo(published("https://old:6443", authority(t))))
	clk := testingclock.NewFakePassiveClock(now)
	d := NewDiscovery(c)
	d.clock = clk
	resolve := func(want string, gets int) {
		t.Helper()
		got, err := d.Resolve(t.Context(), classWith(nil))
		if err != nil || got.Endpoint != want || c.gets != gets {
			t.Errorf("%s, %d reads, %v; want %s, %d reads", got.Endpoint, c.gets, err, want, gets)
		}
	}
	resolve("https://old:6443", 1)
	if err := c.Update(t.Context(), clusterInfo(published("https://new:6443", authority(t)))); err != nil {
		t.Fatal(err)
	}
	clk.SetTime(now.Add(refresh - time.Second))
	resolve("https://old:6443", 1)
	clk.SetTime(now.Add(refresh))
	resolve("https://new:6443", 2)
	if err := c.Update(t.Context(), clusterInfo(published("https://newer:6443", authority(t)))); err != nil {
		t.Fatal(err)
	}
	d.Forget()
	resolve("https://newer:6443", 3)
}

func TestDiscoveryFaults(t *testing.T) {
	for _, test := range []struct {
		name   string
		err    error
		blame  fault.Blame
		reason string
	}{
		{"API down", errTimeout, fault.Cluster, ReasonClusterUnavailable},
		{"forbidden", errForbidden, fault.Configuration, v1beta1.ReasonClusterUnknown},
		{"cancelled", context.Canceled, fault.Cluster, ReasonClusterUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(clusterInfo(published("https://192.0.2.1:6443", authority(t))))
			c.fails["get"] = []error{test.err}
			d := NewDiscovery(c)
			_, err := d.Resolve(t.Context(), classWith(nil))
			wantFault(t, err, test.blame, test.reason, "cluster-info")
			if _, err := d.Resolve(t.Context(), classWith(nil)); err != nil {
				t.Errorf("a failure is remembered: %v", err)
			}
		})
	}
}

func TestClusterUID(t *testing.T) {
	c := newCluster(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "uid-1"}})
	if uid, err := ClusterUID(t.Context(), c); err != nil || uid != "uid-1" {
		t.Errorf("%s, %v", uid, err)
	}
	c.fails["get"] = []error{errTimeout}
	_, err := ClusterUID(t.Context(), c)
	wantFault(t, err, fault.Cluster, ReasonClusterUnavailable, "kube-system")
}

// Alert CredentialExpiring: what machines of a class are told to believe expires with the last certificate of the bundle, for as long as the
// class is there; of a cluster that cannot be found nothing is known.
func TestTheClusterCATellsItsExpiry(t *testing.T) {
	old, last := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)
	class := classWith(&v1beta1.ClusterSpec{Endpoint: "https://192.0.2.1:6443", CABundle: append(authority(t, last), authority(t, old)...)})
	d := NewDiscovery(newCluster())
	if _, err := d.Resolve(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	want := metrics.Credential{Kind: "cluster_ca", Name: class.Name}
	if got := d.Expiries([]string{class.Name, "other"}); len(got) != 1 || !got[want].Equal(last) {
		t.Errorf("expiries: %v, want %s", got, last)
	}
	class.Spec.Cluster.CABundle = []byte("none")
	if _, err := d.Resolve(t.Context(), class); err == nil || len(d.Expiries([]string{class.Name})) != 0 {
		t.Errorf("a bundle that is none: %v, %v", err, d.Expiries([]string{class.Name}))
	}
}
