package join

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

const pool = "kp-a"

// lab is one host whose machine is a real shell behind a real SSH server, and a fake API server that counts writes.
type lab struct {
	t      *testing.T
	api    client.WithWatch
	inv    *host.Inventory
	ctl    *Controller
	server *sshtest.Server
	clock  *clocktesting.FakeClock
	dir    string // the machine's disk; scripts append to dir/log

	mu     sync.Mutex
	writes []string
	events *events.FakeRecorder
}

// scripts writes a line of the log per phase, so that order and number of runs can be asserted.
var scripts = v1beta1.Scripts{
	Install: `echo install >> "$KPSSH_VAR_DIR/log"`,
	Join:    `echo "join $KPSSH_NODE_NAME" >> "$KPSSH_VAR_DIR/log"`,
	Leave:   `echo leave >> "$HOME/log"`,
}

func newLab(t *testing.T, scripts v1beta1.Scripts) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(start), events: events.NewFakeRecorder(1000)}
	l.server = &sshtest.Server{Exec: sshtest.Shell{Dir: l.dir, Env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "KPSSH_STATE_DIR=" + filepath.Join(l.dir, "state"),
	}}.Exec}
	if err := l.server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.Close)
	l.api = l.newAPI(l.objects(scripts)...)
	l.inv = host.NewInventory(pool, l.api, l.api, l.clock)
	l.ctl = NewController(Options{
		Inventory: l.inv, Client: l.api, Live: l.api,
		Credentials: credentials.NewResolver(l.api), Dialer: &ssh.Dialer{},
		Revisions: profile.NewRevisions(l.api, l.api, pool), Tokens: bootstrap.NewTokens(l.api, "seg-a", l.clock),
		Holds:     profile.NewHolds(l.api, l.api, pool, "seg-a", l.clock),
		Discovery: bootstrap.NewDiscovery(l.api), Recorder: l.events, Clock: l.clock,
		ClusterUID: "cluster", Instance: "seg-a", Concurrency: 4,
	})
	t.Cleanup(l.ctl.runner.shutdown)
	l.inv.Observe(l.host())
	return l
}

func (l *lab) objects(scripts v1beta1.Scripts) []client.Object {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		l.t.Fatal(err)
	}
	class := &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-a"}, Spec: v1beta1.SSHNodeClassSpec{
		JoinProfileRef: v1beta1.ProfileReference{Name: "p"}, Vars: map[string]string{"DIR": l.dir},
		JoinSecretRef: &v1beta1.SecretReference{Name: "join"},
		Cluster:       &v1beta1.ClusterSpec{Endpoint: "https://192.0.2.1:6443", CABundle: certificate(l.t)},
	}}
	return []client.Object{
		&v1beta1.SSHHost{
			ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "h", UID: "uid-h"},
			Spec: v1beta1.SSHHostSpec{
				Address: l.server.Host(), Port: int32(l.server.Port()), User: "root", SSHKeySecretRef: v1beta1.SecretReference{Name: "key"},
				Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
			},
			Status: v1beta1.SSHHostStatus{State: v1beta1.HostAvailable, ObservedArch: "amd64"},
		},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "key"}, Data: map[string][]byte{"privateKey": pem.EncodeToMemory(block)}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "join"}, Data: map[string][]byte{"licence": []byte("s3cr3t-licence-key")}},
		&v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"}, Spec: v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: scripts}},
		class,
		l.nodeClaim("n"),
	}
}

// certificate is a PEM certificate of nothing in particular.
func certificate(t *testing.T) []byte {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (l *lab) nodeClaim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: "nc-a"}},
	}
}

func (l *lab) newAPI(objects ...client.Object) client.WithWatch {
	note := func(verb string, o client.Object) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.writes = append(l.writes, fmt.Sprintf("%s %T", verb, o))
	}
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.SSHHost{}, &v1beta1.SSHNodeClass{}, &karpv1.NodeClaim{}).
		WithIndex(&v1beta1.SSHHost{}, "status.claimRef.uid", func(o client.Object) []string {
			if ref := o.(*v1beta1.SSHHost).Status.ClaimRef; ref != nil {
				return []string{string(ref.UID)}
			}
			return nil
		}).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string { return []string{o.(*corev1.Node).Spec.ProviderID} }).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				note("create", o)
				return c.Create(ctx, o, opts...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				note("delete", o)
				return c.Delete(ctx, o, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				note("patch", o)
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				note("patch "+sub, o)
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
}

func (l *lab) host() *v1beta1.SSHHost {
	l.t.Helper()
	h := &v1beta1.SSHHost{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Namespace: pool, Name: "h"}, h); err != nil {
		l.t.Fatal(err)
	}
	return h
}

func (l *lab) profile() *v1beta1.SSHJoinProfile {
	l.t.Helper()
	p := &v1beta1.SSHJoinProfile{}
	if err := l.api.Get(l.t.Context(), client.ObjectKey{Name: "p"}, p); err != nil {
		l.t.Fatal(err)
	}
	return p
}

func (l *lab) claim(name string) {
	l.t.Helper()
	if _, err := l.inv.Claim(l.t.Context(), host.ClaimRequest{
		Name: name, UID: types.UID("uid-" + name), NodeClass: "nc-a", Candidates: []host.Candidate{{InstanceType: "default", Hosts: l.inv.All()}},
	}); err != nil {
		l.t.Fatal(err)
	}
}

// settle reconciles until until is true. Time passes only when the controller asks to be called later.
func (l *lab) settle(what string, until func(*v1beta1.SSHHost) bool) *v1beta1.SSHHost {
	l.t.Helper()
	changed := make(chan struct{}, 1024)
	l.inv.Subscribe(func(_, _ *v1beta1.SSHHost) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	for {
		if h := l.host(); until(h) {
			return h
		}
		result, err := l.ctl.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pool, Name: "h"}})
		if err != nil && !apierrors.IsConflict(err) {
			l.t.Fatalf("waiting until %s: %v", what, err)
		}
		if result.RequeueAfter > 0 {
			l.clock.Step(result.RequeueAfter)
			continue
		}
		if until(l.host()) {
			return l.host()
		}
		select {
		case <-changed:
		case <-l.ctl.woken:
		case <-time.After(20 * time.Millisecond): // what until looks at may not be the host
		case <-ctx.Done():
			h := l.host()
			l.t.Fatalf("waited in vain until %s; host is %s, log %q, status %+v, events:\n%s", what, h.Status.State, l.log(), h.Status, l.eventText())
		}
	}
}

func isState(state v1beta1.HostState) func(*v1beta1.SSHHost) bool {
	return func(h *v1beta1.SSHHost) bool { return h.Status.State == state }
}

// log is what ran on the machine.
func (l *lab) log() []string {
	raw, _ := os.ReadFile(filepath.Join(l.dir, "log"))
	return strings.Fields(strings.ReplaceAll(string(raw), "join ", "join:"))
}

func (l *lab) wantLog(want ...string) {
	l.t.Helper()
	if got := l.log(); !slices.Equal(got, want) {
		l.t.Errorf("the machine ran %q, want %q", got, want)
	}
}

func (l *lab) tokens() int {
	l.t.Helper()
	list := &corev1.SecretList{}
	if err := l.api.List(l.t.Context(), list, client.InNamespace(metav1.NamespaceSystem)); err != nil {
		l.t.Fatal(err)
	}
	return len(list.Items)
}

func (l *lab) exists(o client.Object, name string) bool {
	l.t.Helper()
	err := l.api.Get(l.t.Context(), client.ObjectKey{Name: name}, o)
	if err != nil && !apierrors.IsNotFound(err) {
		l.t.Fatal(err)
	}
	return err == nil
}

// register makes the Node appear that a kubelet would have registered.
func (l *lab) register(name string) {
	l.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name)}, Spec: corev1.NodeSpec{ProviderID: "kpssh://kp-a/h"}}
	if err := l.api.Create(l.t.Context(), node); err != nil {
		l.t.Fatal(err)
	}
}

func isJoined(h *v1beta1.SSHHost) bool {
	return apimeta.IsStatusConditionTrue(h.Status.Conditions, v1beta1.ConditionJoined)
}

func (l *lab) eventText() string {
	text := ""
	for {
		select {
		case e := <-l.events.Events:
			text += e + "\n"
		default:
			return text
		}
	}
}

func TestColdJoinThenLeaveThenWarmJoin(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	h := l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("install", "join:n")
	if h.Status.InstalledProfile != "p@1" || h.Status.InstalledRevision == "" || h.Status.HostKeyFingerprint == "" || h.Status.Operation != nil {
		t.Errorf("status after the join: %+v", h.Status)
	}
	if l.server.Handshakes() != 1 {
		t.Errorf("%d handshakes for a cold join, want 1", l.server.Handshakes())
	}
	if l.tokens() != 1 {
		t.Errorf("%d tokens while the Node is awaited, want 1", l.tokens())
	}
	l.register("n")
	h = l.settle("registered", isJoined)
	if l.tokens() != 0 || h.Status.BootstrapTokenID != "" {
		t.Error("the bootstrap token outlived its use")
	}
	writes := slices.DeleteFunc(slices.Clone(l.writes), func(w string) bool {
		return strings.Contains(w, "Node") || strings.Contains(w, "Revision") || strings.Contains(w, "Profile")
	})
	t.Logf("writes per cold join: %d %v", len(writes), writes)
	if len(writes) > 8 {
		t.Errorf("%d writes per cold join, want at most 8", len(writes))
	}

	if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
		t.Fatal(err)
	}
	l.settle("left", isState(v1beta1.HostAvailable))
	h = l.settle("let go", func(h *v1beta1.SSHHost) bool { return len(h.Finalizers) == 0 })
	l.wantLog("install", "join:n", "leave")
	if h.Status.ClaimRef != nil || l.exists(&corev1.Node{}, "n") { // no karpenter here that would have deleted it
		t.Error("the claim or the Node survived the leave")
	}

	if err := l.api.Create(t.Context(), l.nodeClaim("m")); err != nil {
		t.Fatal(err)
	}
	l.claim("m")
	l.settle("joined again", isState(v1beta1.HostInUse))
	l.wantLog("install", "join:n", "leave", "join:m") // warm: no install
}

// A failed install parks the host, frees karpenter to try elsewhere, and runs no leave: the machine never joined.
func TestInstallThatFails(t *testing.T) {
	failing := scripts
	failing.Install = `echo install >> "$KPSSH_VAR_DIR/log"; echo "no space left" >&2; exit 7`
	l := newLab(t, failing)
	l.claim("n")
	h := l.settle("parked", isState(v1beta1.HostUnhealthy))
	l.idle()
	l.wantLog("install")
	ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady)
	if ready.Reason != "ScriptFailed" || !strings.Contains(ready.Message, "no space left") || h.Status.Failures.Count != 1 {
		t.Errorf("Ready %+v, failures %+v", ready, h.Status.Failures)
	}
	if l.exists(&karpv1.NodeClaim{}, "n") {
		t.Error("the NodeClaim is still there: karpenter would wait for its timeout")
	}
	if !strings.Contains(l.eventText(), "no space left") {
		t.Error("no event says why")
	}
}

// A failed join leaves, for the machine may have joined, and then rests.
func TestJoinThatFailsLeavesFirst(t *testing.T) {
	failing := scripts
	failing.Join = `echo "join $KPSSH_NODE_NAME" >> "$KPSSH_VAR_DIR/log"; exit 1`
	l := newLab(t, failing)
	l.claim("n")
	h := l.settle("parked", isState(v1beta1.HostUnhealthy))
	l.idle()
	l.wantLog("install", "join:n", "leave")
	if h.Status.ClaimRef != nil || h.Status.Failures.Count != 1 || l.tokens() != 0 {
		t.Errorf("status %+v, %d tokens", h.Status, l.tokens())
	}
	if h.Status.InstalledProfile != "" {
		t.Error("a machine on which join failed still counts as installed")
	}
}

// Section 3 #5, #40: deleting the NodeClaim in mid-install stops the script on the machine and frees the host at once.
func TestNodeClaimDeletedInMidInstall(t *testing.T) {
	slow := scripts
	slow.Install = `echo install >> "$KPSSH_VAR_DIR/log"; echo $$ > "$KPSSH_VAR_DIR/pid"; sleep 600; echo survived >> "$KPSSH_VAR_DIR/log"`
	l := newLab(t, slow)
	l.claim("n")
	l.settle("installing", func(h *v1beta1.SSHHost) bool {
		_, err := os.Stat(filepath.Join(l.dir, "pid"))
		return err == nil
	})
	if err := l.api.Delete(t.Context(), l.nodeClaim("n")); err != nil {
		t.Fatal(err)
	}
	h := l.settle("freed", isState(v1beta1.HostAvailable))
	l.wantLog("install")
	if h.Status.Failures != nil || l.tokens() != 0 {
		t.Errorf("the host is blamed: %+v", h.Status.Failures)
	}
}

// Section 3 #15: the profile is held before the machine is touched, whenever this process may end; and from one that is being deleted nothing
// new is installed.
func TestProfileIsHeldBeforeTheMachineIsTouched(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.mu.Lock()
	held, installing := slices.Index(l.writes, "patch *v1beta1.SSHJoinProfile"), 0
	for i, w := range l.writes { // the claim, then the install, then the join
		if w == "patch status *v1beta1.SSHHost" {
			if installing++; installing == 2 {
				installing = i
				break
			}
		}
	}
	if held < 0 || held > installing {
		t.Errorf("the profile was held after the install began: %q", l.writes)
	}
	l.mu.Unlock()

	l = newLab(t, scripts)
	other := l.profile()
	other.Finalizers = []string{v1beta1.InstalledFinalizer("seg-b")}
	if err := l.api.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := l.api.Delete(t.Context(), l.profile()); err != nil {
		t.Fatal(err)
	}
	l.claim("n")
	h := l.settle("free again", isState(v1beta1.HostAvailable))
	l.wantLog()
	if h.Status.Failures != nil || !strings.Contains(l.eventText(), v1beta1.ReasonProfileDeleting) {
		t.Errorf("failures %+v, or no event says why", h.Status.Failures)
	}
	if got := l.profile().Finalizers; !slices.Equal(got, []string{v1beta1.InstalledFinalizer("seg-b")}) {
		t.Errorf("finalizers %v", got)
	}
}

// D15: all that leave needs is kept with the host: profile, class and Secret may be gone. It runs once.
func TestLeaveNeedsNothingThatDiesWithTheClaim(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	forced := l.profile() // section 3 #15: a person who forces the deletion of a profile does not keep its machines from leaving
	if !slices.Equal(forced.Finalizers, []string{v1beta1.InstalledFinalizer("seg-a")}) {
		t.Errorf("the installed profile has finalizers %v", forced.Finalizers)
	}
	forced.Finalizers = nil
	if err := l.api.Update(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nc-a"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "join"}}, l.nodeClaim("n"),
	} {
		if err := l.api.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	l.settle("left", isState(v1beta1.HostAvailable))
	l.wantLog("install", "join:n", "leave")
}

// Section 3 #16: leave runs the script of the version that was installed, not the one of today.
func TestLeaveRunsTheInstalledVersion(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	edited := &v1beta1.SSHJoinProfile{}
	if err := l.api.Get(t.Context(), client.ObjectKey{Name: "p"}, edited); err != nil {
		t.Fatal(err)
	}
	edited.Spec.Version, edited.Spec.Scripts.Leave = "2", `echo leave-of-2 >> "$HOME/log"`
	if err := l.api.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
		t.Fatal(err)
	}
	l.settle("left", isState(v1beta1.HostAvailable))
	l.wantLog("install", "join:n", "leave")
}

// Section 3 #15, #16: a machine that the existing provider joined leaves by its profile as it was when its node was first seen, if that
// is the version it has installed; else by the profile of today.
func TestAMachineOfTheExistingProviderLeavesByTheProfileAsItWasFound(t *testing.T) {
	for name, test := range map[string]struct {
		installed string
		want      []string
	}{
		"the installed version": {"p@1", []string{"leave"}},
		"another version":       {"p@0", []string{"leave-of-today"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, scripts)
			l.claim("n")
			if _, err := l.inv.Update(t.Context(), "h", func(h *v1beta1.SSHHost) error {
				h.Status.State, h.Status.ClaimRef = v1beta1.HostInUse, &v1beta1.ClaimReference{Name: "n", UID: "uid-n"}
				h.Status.InstalledProfile, h.Status.ProviderID = test.installed, h.StaticProviderID()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			l.register("n")
			l.settle("registered", isJoined)
			edited := &v1beta1.SSHJoinProfile{}
			if err := l.api.Get(t.Context(), client.ObjectKey{Name: "p"}, edited); err != nil {
				t.Fatal(err)
			}
			edited.Spec.Scripts.Leave = `echo leave-of-today >> "$HOME/log"`
			if err := l.api.Update(t.Context(), edited); err != nil {
				t.Fatal(err)
			}
			if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
				t.Fatal(err)
			}
			l.settle("left", isState(v1beta1.HostAvailable))
			l.wantLog(test.want...)
		})
	}
}

// Section 3 #2: a join that fails is repeated by its own rules, long before karpenter's launch timeout would have a say.
func TestUnreachableHostIsTriedAgainThenParked(t *testing.T) {
	l := newLab(t, scripts)
	l.server.Close()
	l.claim("n")
	h := l.settle("parked", isState(v1beta1.HostUnhealthy))
	l.idle()
	if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); ready.Reason != "DialFailed" {
		t.Errorf("reason %s: %s", ready.Reason, ready.Message)
	}
	if l.exists(&karpv1.NodeClaim{}, "n") {
		t.Error("the NodeClaim is still there")
	}
	if attempts := strings.Count(l.eventText(), "attempt "); attempts != networkAttempts {
		t.Errorf("%d attempts, want %d", attempts, networkAttempts)
	}
}

// D14: a machine that is off cannot hold up the end of its claim, and is not offered before it has left.
func TestLeaveOfADeadMachineIsLetGoAndStaysPending(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.server.Close()
	if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
		t.Fatal(err)
	}
	h := l.settle("let go", isState(v1beta1.HostUnhealthy))
	if h.Status.ClaimRef != nil || !host.LeavePending(h) || l.tokens() != 0 {
		t.Errorf("status %+v", h.Status)
	}
	if ok, why := host.Claimable(h); ok || why == "" {
		t.Error("a host that has yet to leave can be claimed")
	}
	if l.clock.Since(start) > leavePatience {
		t.Errorf("the claim was held for %s", l.clock.Since(start))
	}
}

// S7: what a script prints of its secrets is redacted in status and events, also when the script fails with them on stderr.
func TestSecretsOfAFailingScriptAreRedacted(t *testing.T) {
	leaky := scripts
	leaky.Install = `echo "licence is $KPSSH_SECRET_LICENCE" >&2; exit 1`
	l := newLab(t, leaky)
	l.claim("n")
	h := l.settle("parked", isState(v1beta1.HostUnhealthy))
	l.idle()
	for where, text := range map[string]string{"status": h.Status.LastProbeError, "events": l.eventText()} {
		if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "licence is [REDACTED]") {
			t.Errorf("%s: %q", where, text)
		}
	}
}

// Section 2 #29: a profile that does not render touches no machine and blames none.
func TestAMistakeInTheProfileTouchesNoMachine(t *testing.T) {
	broken := scripts
	broken.Join = `echo {{ .Vars.missing }}`
	l := newLab(t, broken)
	l.claim("n")
	h := l.settle("freed", isState(v1beta1.HostAvailable))
	if l.server.Connections() != 0 || h.Status.Failures != nil {
		t.Errorf("%d connections, failures %+v", l.server.Connections(), h.Status.Failures)
	}
	if l.exists(&karpv1.NodeClaim{}, "n") {
		t.Error("the NodeClaim is still there")
	}
}

// A controller that ends between any two steps of a join is followed by one that finishes it: no second token, no second host.
func TestAJoinIsResumedByASuccessor(t *testing.T) {
	for name, prepare := range map[string]func(*lab, *v1beta1.SSHHost){
		"after the claim":             func(*lab, *v1beta1.SSHHost) {},
		"in mid-install":              func(_ *lab, h *v1beta1.SSHHost) { host.MarkInstalling(h, 1, start, start) },
		"before the token was minted": func(_ *lab, h *v1beta1.SSHHost) { host.MarkJoining(h, "p@1", "", "aaaaaa", "", 1, start, start) },
		"in mid-join": func(l *lab, h *v1beta1.SSHHost) {
			host.MarkJoining(h, "p@1", "", "aaaaaa", "", 1, start, start)
			if _, err := l.ctl.Tokens.Mint(l.t.Context(), "aaaaaa", "n"); err != nil {
				l.t.Fatal(err)
			}
		},
		"of the existing provider, whose claims say neither class nor time": func(_ *lab, h *v1beta1.SSHHost) {
			h.Status.ClaimRef = &v1beta1.ClaimReference{Name: h.Status.ClaimRef.Name, UID: h.Status.ClaimRef.UID}
			h.Status.ClaimEpoch, h.Status.InstalledProfile, h.Status.BootstrapTokenID = 0, "p@1", "aaaaaa"
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, scripts)
			l.claim("n")
			if _, err := l.inv.Update(t.Context(), "h", func(h *v1beta1.SSHHost) error { prepare(l, h); return nil }); err != nil {
				t.Fatal(err)
			}
			l.settle("joined", isState(v1beta1.HostInUse))
			if l.tokens() != 1 {
				t.Errorf("%d tokens, want 1", l.tokens())
			}
			l.register("n")
			l.settle("registered", isJoined)
			if l.tokens() != 0 {
				t.Errorf("%d tokens left over", l.tokens())
			}
		})
	}
}

// D15: deleting the SSHHost of a node drains it first; the object goes when the machine has left.
func TestDeletedSSHHostWaitsForTheLeave(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.register("n")
	l.settle("registered", isJoined)
	if err := l.api.Delete(t.Context(), l.host()); err != nil {
		t.Fatal(err)
	}
	l.inv.Observe(l.host())
	h := l.settle("drained", func(*v1beta1.SSHHost) bool { return !l.exists(&karpv1.NodeClaim{}, "n") })
	if h.DeletionTimestamp.IsZero() {
		t.Fatal("not deleted")
	}
	l.drive(func() bool {
		err := l.api.Get(t.Context(), client.ObjectKey{Namespace: pool, Name: "h"}, &v1beta1.SSHHost{})
		return apierrors.IsNotFound(err)
	})
	l.wantLog("install", "join:n", "leave")
}

// idle waits until no operation runs: what it says last, it says after its last write.
// A Node that registered while its claim was being ended goes with the leave, though no cache shows it yet: nobody would look for it later.
func TestALeaveTakesTheNodeAlongThatNoCacheShows(t *testing.T) {
	for id, left := range map[string]bool{"kpssh://kp-a/h": false, "kpssh://kp-a/another": true} {
		l := newLab(t, scripts)
		l.claim("n")
		l.settle("awaiting its Node", isState(v1beta1.HostInUse))
		if err := l.api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{ProviderID: id}}); err != nil {
			t.Fatal(err)
		}
		l.ctl.Client = interceptor.NewClient(l.api, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, late := list.(*corev1.NodeList); late {
					return nil
				}
				return c.List(ctx, list, opts...)
			},
		})
		if err := l.inv.BeginLeave(t.Context(), "h", "uid-n", "n"); err != nil {
			t.Fatal(err)
		}
		l.settle("left", isState(v1beta1.HostAvailable))
		if l.exists(&corev1.Node{}, "n") != left {
			t.Errorf("Node with provider ID %s is there after the leave of kpssh://kp-a/h: %t", id, !left)
		}
	}
}

func (l *lab) idle() {
	l.t.Helper()
	l.drive(func() bool { _, running := l.ctl.runner.current("h"); return !running })
}

// drive reconciles until done, which need not look at the host.
func (l *lab) drive(done func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 20*time.Second)
	defer cancel()
	for !done() {
		if _, err := l.ctl.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pool, Name: "h"}}); err != nil {
			l.t.Fatal(err)
		}
		select {
		case <-l.ctl.woken:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			l.t.Fatal("waited in vain")
		}
	}
}

// E1: a Node that does not come ends the join, and the reason tells a certificate that nobody approves from a kubelet that never asked.
func TestANodeThatDoesNotComeIsExplained(t *testing.T) {
	for name, row := range map[string]struct {
		asked  bool
		reason string
		blamed bool
	}{
		"a kubelet that never asked for a certificate": {false, reasonNodeDidNotRegister, true},
		"a certificate request that nobody approved":   {true, reasonClientCSRNotApproved, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, scripts)
			l.claim("n")
			h := l.settle("joined", isState(v1beta1.HostInUse))
			if row.asked {
				request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-1"}}
				request.Spec.Username = "system:bootstrap:" + h.Status.BootstrapTokenID
				if err := l.api.Create(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			h = l.settle("given up and left", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
			l.wantLog("install", "join:n", "leave")
			if blamed := h.Status.Failures != nil; blamed != row.blamed {
				t.Errorf("the host is blamed: %v, want %v", blamed, row.blamed)
			}
			if text := l.eventText(); !strings.Contains(text, row.reason) {
				t.Errorf("no event says %s:\n%s", row.reason, text)
			}
			if l.exists(&karpv1.NodeClaim{}, "n") || l.tokens() != 0 {
				t.Error("the NodeClaim or the token is still there")
			}
		})
	}
}

// D12: a script that asks to be run again gets the same host, which is not parked.
func TestABusyPackageManagerGetsTheSameHostAgain(t *testing.T) {
	busy := scripts
	busy.Install = `echo install >> "$KPSSH_VAR_DIR/log"; [ "$(wc -l < "$KPSSH_VAR_DIR/log")" -ge 3 ] || { echo "PackageManagerBusy: the dpkg lock is held" >&2; exit 75; }`
	l := newLab(t, busy)
	l.claim("n")
	h := l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("install", "install", "install", "join:n")
	if h.Status.Failures != nil || !strings.Contains(l.eventText(), reasonPackageManagerBusy) {
		t.Errorf("failures %+v", h.Status.Failures)
	}
}

// Revisions that no host has installed do not pile up; those that one has stay.
func TestRevisionsInUseSurvivePruning(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	installed := l.settle("joined", isState(v1beta1.HostInUse)).Status.InstalledRevision
	stale := profile.RevisionOf(&v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: v1beta1.SSHJoinProfileSpec{Version: "0", Scripts: scripts}})
	if err := profile.NewRevisions(l.api, l.api, pool).Ensure(t.Context(), stale); err != nil { // by a process before this one
		t.Fatal(err)
	}
	if err := l.ctl.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{installed: true, stale.Name: false} {
		err := l.api.Get(t.Context(), client.ObjectKey{Namespace: pool, Name: name}, &appsv1.ControllerRevision{})
		if found := err == nil; found != want {
			t.Errorf("revision %s exists: %v, want %v", name, found, want)
		}
	}
}

// Section 2 #46, #56: a zombie's Node goes after its machine has left, not before, or the kubelet would make it again; and how the leave ended is
// said by events of its own.
func TestAZombieLeavesByItself(t *testing.T) {
	for name, row := range map[string]struct {
		leave, event string
		state        v1beta1.HostState
	}{
		"it leaves":       {`echo leave >> "$HOME/log"`, eventZombieLeft, v1beta1.HostAvailable},
		"its leave fails": {`exit 3`, eventZombieLeaveFailed, v1beta1.HostUnhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			failing := scripts
			failing.Leave = row.leave
			l := newLab(t, failing)
			l.claim("n")
			l.settle("joined", isState(v1beta1.HostInUse))
			if _, err := l.inv.Update(t.Context(), "h", func(h *v1beta1.SSHHost) error { // as a probe finds it after the claim was lost
				host.MarkReleased(h, host.Release{State: v1beta1.HostPending}, start)
				host.MarkLeaving(h)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			l.register("stray")
			h := l.settle("settled", isState(row.state))
			l.idle()
			if text := l.eventText(); !strings.Contains(text, row.event) {
				t.Errorf("no event %s:\n%s", row.event, text)
			}
			if left := row.state == v1beta1.HostAvailable; left == l.exists(&corev1.Node{}, "stray") || left == host.LeavePending(h) {
				t.Errorf("Node exists: %v, leave pending: %v", l.exists(&corev1.Node{}, "stray"), host.LeavePending(h))
			}
		})
	}
}

// A reconcile that looked at the host before its join ended must not join it again: it would take the token from the kubelet.
func TestAReconcileWithAnOldLookJoinsNobodyAgain(t *testing.T) {
	l := newLab(t, scripts)
	l.claim("n")
	if err := l.inv.SetFinalizer(t.Context(), "h", true); err != nil {
		t.Fatal(err)
	}
	old := l.inv.Get("h") // Claimed
	joined := l.settle("joined", isState(v1beta1.HostInUse))
	l.idle()
	if _, err := l.ctl.act(t.Context(), Facts{Host: old}, StepBringUp); err != nil {
		t.Fatal(err)
	}
	l.idle()
	l.wantLog("install", "join:n")
	if now := l.host(); now.Status.BootstrapTokenID != joined.Status.BootstrapTokenID || l.tokens() != 1 || l.server.Handshakes() != 1 {
		t.Errorf("token %q was %q; %d tokens, %d handshakes", now.Status.BootstrapTokenID, joined.Status.BootstrapTokenID, l.tokens(), l.server.Handshakes())
	}
}

// Issue 5 #6: a dead jump host costs the host nothing. It is not parked, its memory of failures and installs stays, and it is not offered
// before somebody gets through to it; the NodeClaim goes elsewhere and says why.
func TestADeadJumpHostIsNotHeldAgainstTheHost(t *testing.T) {
	l := newLab(t, scripts)
	jump := &sshtest.Server{Forward: sshtest.Dial}
	if err := jump.Start(); err != nil {
		t.Fatal(err)
	}
	address, port := jump.Host(), jump.Port()
	key := &corev1.Secret{}
	if err := l.api.Get(t.Context(), types.NamespacedName{Namespace: pool, Name: "key"}, key); err != nil {
		t.Fatal(err)
	}
	if err := l.api.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "jump"}, Data: map[string][]byte{
		credentials.PrivateKeyEntry: key.Data[credentials.PrivateKeyEntry], credentials.KnownHostEntry: []byte(gossh.FingerprintSHA256(jump.HostKeys[0].PublicKey())),
	}}); err != nil {
		t.Fatal(err)
	}
	h := l.host()
	h.Spec.JumpHosts = []v1beta1.JumpHost{{Address: address, Port: int32(port), SSHKeySecretRef: v1beta1.SecretReference{Name: "jump"}}}
	if err := l.api.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	l.inv.Observe(l.host())

	// Through the jump host, a join and a leave are what they are without.
	l.claim("n")
	l.settle("joined", isState(v1beta1.HostInUse))
	l.wantLog("install", "join:n")
	if l.server.Logins() == 0 || jump.Logins() != l.server.Logins() {
		t.Fatalf("%d logins through the jump host, %d on the machine", jump.Logins(), l.server.Logins())
	}
	if err := l.inv.BeginLeave(t.Context(), "h", l.host().Status.ClaimRef.UID, "n"); err != nil {
		t.Fatal(err)
	}
	l.settle("left", isState(v1beta1.HostAvailable))

	jump.Close()
	installed := l.host().Status.InstalledProfile
	next := l.nodeClaim("n2")
	if err := l.api.Create(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	l.claim("n2")
	h = l.settle("given back", func(h *v1beta1.SSHHost) bool { return h.Status.ClaimRef == nil })
	if h.Status.State != v1beta1.HostAvailable || h.Status.Failures != nil || h.Status.InstalledProfile != installed || installed == "" {
		t.Errorf("the host is %s, failures %v, installed %q of %q", h.Status.State, h.Status.Failures, h.Status.InstalledProfile, installed)
	}
	if ok, _ := host.Claimable(h); ok {
		t.Error("it is offered although nobody gets through to it")
	}
	if blocked := host.Blocked(h); blocked == nil || blocked.Reason != "JumpHostUnreachable" {
		t.Errorf("its condition is %v", blocked)
	}
	if ready := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionReady); ready.Status != metav1.ConditionFalse || ready.Reason != "JumpHostUnreachable" {
		t.Errorf("Ready is %v", ready)
	}
	if l.exists(&karpv1.NodeClaim{}, "n2") {
		t.Error("the NodeClaim waits for the jump host")
	}
	if text := l.eventText(); !strings.Contains(text, "jump host 1 of 1") {
		t.Errorf("events do not name the jump host:\n%s", text)
	}
}
