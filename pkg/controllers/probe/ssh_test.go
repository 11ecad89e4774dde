package probe

import (
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// machine is an SSH server with a stand-in systemctl, and the SSHHost and Secret that name it.
type machine struct {
	*sshtest.Server
	t      *testing.T
	dir    string
	host   *v1beta1.SSHHost
	secret *corev1.Secret
}

func newMachine(t *testing.T, configure ...func(*sshtest.Server)) *machine {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	authorized, err := gossh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: t.TempDir()}
	m.kubelet("inactive", "disabled")
	shell := sshtest.Shell{Dir: m.dir, Env: []string{"PATH=" + m.dir + ":" + os.Getenv("PATH"), "HOME=" + m.dir, "KPSSH_STATE_DIR=" + m.dir}}
	m.Server = &sshtest.Server{AuthorizedKeys: []gossh.PublicKey{authorized}, Exec: shell.Exec, Banner: "kpssh.cpu=64\nAuthorised use only\n"}
	for _, c := range configure {
		c(m.Server)
	}
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	m.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "pool", Name: "login"}, Data: map[string][]byte{
		credentials.PrivateKeyEntry: pem.EncodeToMemory(block),
	}}
	m.host = aHost(func(h *v1beta1.SSHHost) { h.Spec.Address, h.Spec.Port = m.Host(), int32(m.Port()) })
	return m
}

func (m *machine) kubelet(active, file string) {
	write(m.t, filepath.Join(m.dir, "systemctl"), fmt.Sprintf("#!/bin/bash\necho ActiveState=%s\necho UnitFileState=%s\n", active, file), 0o755)
}

// newHostKey re-images the machine: same address and login, another host key.
func (m *machine) newHostKey() (fingerprint string) {
	m.t.Helper()
	address := m.Addr().String()
	m.Close()
	key, err := sshtest.NewHostKey()
	if err != nil {
		m.t.Fatal(err)
	}
	m.Server = &sshtest.Server{Listen: address, HostKeys: []gossh.Signer{key}, AuthorizedKeys: m.AuthorizedKeys, Exec: m.Exec}
	if err := m.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(m.Close)
	return gossh.FingerprintSHA256(key.PublicKey())
}

func TestProbeOverSSH(t *testing.T) {
	m := newMachine(t)
	w := newWorld(t, clock.RealClock{}, m.host, m.secret)
	w.follow()
	w.step()
	h := w.get("h1")
	if h.Status.State != v1beta1.HostAvailable || h.Status.ObservedCapacity.Cpu().Value() < 1 || h.Status.ObservedCapacity.Memory().Value() < 1<<20 {
		t.Fatalf("status is %+v", h.Status)
	}
	if want := gossh.FingerprintSHA256(m.HostKeys[0].PublicKey()); h.Status.HostKeyFingerprint != want {
		t.Errorf("pinned %s, the machine's key is %s", h.Status.HostKeyFingerprint, want)
	}
	if !is(h, v1beta1.ConditionClockSynced, metav1.ConditionTrue) || !is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionTrue) {
		t.Errorf("conditions are %+v", h.Status.Conditions)
	}
	if m.AuthAttempts() != 1 || m.Sessions() != 1 || m.Connections() != 1 {
		t.Errorf("one probe: %d connections, %d login attempts, %d sessions", m.Connections(), m.AuthAttempts(), m.Sessions())
	}
	if _, err := os.Stat(filepath.Join(m.dir, "owner")); !os.IsNotExist(err) {
		t.Error("a probe wrote an owner file")
	}
}

func TestZombiesOverSSH(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{ProviderID: "kpssh://pool/h1"}}
	sameAddress := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}}}
	for _, tc := range []struct {
		name   string
		owner  string
		nodes  []client.Object
		before edit
		want   v1beta1.HostState
	}{
		{name: "owner file names us", owner: ours, before: installed, want: v1beta1.HostLeaving},
		{name: "Node has our provider ID", nodes: []client.Object{node}, before: installed, want: v1beta1.HostLeaving},
		{name: "Node has our address only (section 3 #23)", nodes: []client.Object{sameAddress}, before: installed, want: v1beta1.HostUnhealthy},
		{name: "nothing names us", before: func(*v1beta1.SSHHost) {}, want: v1beta1.HostUnhealthy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.kubelet("activating", "enabled")
			if tc.owner != "" {
				write(t, filepath.Join(m.dir, "owner"), strings.ReplaceAll(tc.owner, " ", "\n")+"\n", 0o600)
			}
			w := newWorld(t, clock.RealClock{}, append(tc.nodes, m.host, m.secret)...)
			if _, err := w.Inventory.Update(t.Context(), "h1", func(h *v1beta1.SSHHost) error { tc.before(h); return nil }); err != nil {
				t.Fatal(err)
			}
			w.follow()
			w.step()
			if h := w.get("h1"); h.Status.State != tc.want {
				t.Fatalf("status is %+v", h.Status)
			}
		})
	}
}

// L3, found by seeds: a kubelet registered again while its machine left, and the leave saw no Node in its cache. Nobody claims a host while its
// former Node exists, so that the host would be free for ever and used by none.
func TestANodeLeftOverLeavesWithItsHost(t *testing.T) {
	node := func(edits ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-n1"}, Spec: corev1.NodeSpec{ProviderID: "kpssh://pool/h1"}}
		for _, e := range edits {
			e(n)
		}
		return n
	}
	going := func(n *corev1.Node) {
		n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"karpenter.sh/termination"}
	}
	others := func(n *corev1.Node) { n.Annotations = map[string]string{v1beta1.Group + "/masked": "true"} } // as a cache shows it
	agents := func(n *corev1.Node) { n.Spec.ProviderID = "eks-hybrid:///r/c/mi-1" }
	classed := func(n *corev1.Node) { n.Labels = map[string]string{ownership.ClassLabel: "nc-a"} }
	adopted := func(h *v1beta1.SSHHost) {
		installed(h)
		h.Status.Adopted = &v1beta1.AdoptedIdentity{ProviderID: "eks-hybrid:///r/c/mi-1", NodeName: "n1"}
	}
	for name, tc := range map[string]struct {
		before       edit
		cached, live []client.Object
		want         v1beta1.HostState
	}{
		"it is left over":                      {installed, []client.Object{node()}, []client.Object{node()}, v1beta1.HostLeaving},
		"the machine was never made to join":   {func(*v1beta1.SSHHost) {}, []client.Object{node()}, []client.Object{node()}, v1beta1.HostAvailable},
		"karpenter is at it":                   {installed, []client.Object{node(going)}, []client.Object{node(going)}, v1beta1.HostAvailable},
		"it is gone, which no cache shows yet": {installed, []client.Object{node()}, nil, v1beta1.HostAvailable},
		"another instance's class owns it":     {installed, []client.Object{node(others)}, []client.Object{node()}, v1beta1.HostAvailable},
		"an agent's Node that names our class": {adopted, []client.Object{node(agents, classed)}, []client.Object{node(agents, classed)}, v1beta1.HostLeaving},
		"an agent's Node that names no class":  {adopted, []client.Object{node(agents)}, []client.Object{node(agents)}, v1beta1.HostAvailable},
		"one of its name took its place":       {installed, []client.Object{node()}, []client.Object{node(func(n *corev1.Node) { n.UID = "another" })}, v1beta1.HostAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			w := newWorld(t, clock.RealClock{}, append(tc.cached, m.host, m.secret)...)
			w.Live = fake.NewClientBuilder().WithScheme(w.api.Scheme()).WithObjects(tc.live...).Build()
			if _, err := w.Inventory.Update(t.Context(), "h1", func(h *v1beta1.SSHHost) error { tc.before(h); return nil }); err != nil {
				t.Fatal(err)
			}
			w.follow()
			w.step()
			if h := w.get("h1"); h.Status.State != tc.want {
				t.Fatalf("status is %+v", h.Status)
			}
		})
	}
}

// D14: a machine that was off when its claim ended leaves before it can be claimed.
func TestReturningMachineLeavesFirst(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	m := newMachine(t)
	m.kubelet("active", "enabled")
	w := newWorld(t, clk, m.host, m.secret)
	if _, err := w.Inventory.Update(t.Context(), "h1", func(h *v1beta1.SSHHost) error {
		installed(h)
		host.MarkReleased(h, host.Release{State: v1beta1.HostUnhealthy, Reason: v1beta1.ReasonLeaveFailed, Message: "no answer", LeavePending: true}, clk.Now())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.follow()
	w.step()
	h := w.get("h1")
	if ok, _ := host.Claimable(h); ok || h.Status.State != v1beta1.HostLeaving || !host.LeavePending(h) {
		t.Fatalf("status is %+v", h.Status)
	}
}

// D6: a wrong key is tried once an interval at most, and less often with time.
func TestRefusedLoginIsNotRepeatedWithinTheInterval(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	other := newMachine(t)
	m := newMachine(t, func(s *sshtest.Server) { s.AuthorizedKeys = other.AuthorizedKeys })
	w := newWorld(t, clk, m.host, m.secret)
	w.follow()
	var attempts []time.Time
	for end := clk.Now().Add(time.Hour); clk.Now().Before(end); clk.Step(5 * time.Second) {
		before := m.AuthAttempts()
		w.step()
		switch m.AuthAttempts() - before {
		case 0:
		case 1:
			attempts = append(attempts, clk.Now())
		default:
			t.Fatalf("%d attempts in one probe", m.AuthAttempts()-before)
		}
	}
	for i := 1; i < len(attempts); i++ {
		if gap := attempts[i].Sub(attempts[i-1]); gap < w.Interval {
			t.Errorf("tried again after %s", gap)
		}
	}
	if n := len(attempts); n < 6 || n > 9 {
		t.Errorf("%d attempts in an hour", n)
	}
	if h := w.get("h1"); h.Status.State != v1beta1.HostUnhealthy || h.Status.LastProbeError == "" || is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionFalse) {
		t.Errorf("status is %+v", h.Status)
	}
	if got := w.events(); fmt.Sprint(got) != "[Warning ProbeFailed]" {
		t.Errorf("events %v", got)
	}
}

// D18: a new host key is refused until a person quotes it, and then pinned; the old one is refused from then on.
func TestReimagedMachine(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	m := newMachine(t)
	w := newWorld(t, clk, m.host, m.secret)
	w.follow()
	w.step()
	first := w.get("h1").Status.HostKeyFingerprint
	next := func() *v1beta1.SSHHost {
		clk.Step(maxPause)
		w.step()
		return w.get("h1")
	}

	second := m.newHostKey()
	attempts := m.AuthAttempts()
	clk.Step(w.Interval)
	w.step()
	h := w.get("h1")
	if h.Status.State != v1beta1.HostUnhealthy || !is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionFalse) || h.Status.HostKeyFingerprint != first {
		t.Fatalf("status is %+v", h.Status)
	}
	if !strings.Contains(h.Status.LastProbeError, first) || !strings.Contains(h.Status.LastProbeError, second) {
		t.Errorf("the error names not both keys: %s", h.Status.LastProbeError)
	}
	if m.AuthAttempts() != attempts {
		t.Error("a login was tried on a machine that is not the pinned one")
	}
	if got := fmt.Sprint(w.events()); got != "[Normal HostKeyRecorded Normal ProbeSucceeded Warning HostKeyMismatch]" {
		t.Errorf("events %s", got)
	}

	third := "SHA256:" + strings.Repeat("x", 43)
	w.edit("h1", annotated(v1beta1.TrustHostKeyAnnotation, third))
	if h := next(); h.Status.State != v1beta1.HostUnhealthy || h.Status.HostKeyFingerprint != first {
		t.Fatalf("a quotation of another key was taken: %+v", h.Status)
	}
	w.edit("h1", annotated(v1beta1.TrustHostKeyAnnotation, second))
	if h := next(); h.Status.HostKeyFingerprint != second || !is(h, v1beta1.ConditionHostKeyVerified, metav1.ConditionTrue) {
		t.Fatalf("status is %+v", h.Status)
	}
	if got := fmt.Sprint(w.events()); !strings.Contains(got, "HostKeyReplaced") {
		t.Errorf("events %s", got)
	}
}

// D8: a machine that stalls fails its own probe, at that stage's limit, and the error names the stage.
func TestTarpits(t *testing.T) {
	const limit = 100 * time.Millisecond // of the stage at fault; a busy test machine may take its time over the others
	for _, tc := range []struct {
		stall  sshtest.Stage
		limits ssh.Timeouts
		says   string
	}{
		{sshtest.StallHandshake, ssh.Timeouts{Handshake: limit}, "handshake"},
		{sshtest.StallAuthentication, ssh.Timeouts{Auth: limit}, "authentication"},
		{sshtest.StallChannelOpen, ssh.Timeouts{ChannelOpen: limit}, "channel"},
		{sshtest.StallExec, ssh.Timeouts{FirstByte: limit}, "first byte"},
	} {
		t.Run(tc.says, func(t *testing.T) {
			m := newMachine(t)
			m.Stall(tc.stall)
			w := newWorld(t, clock.RealClock{}, m.host, m.secret)
			w.Dialer = &ssh.Dialer{Timeouts: tc.limits}
			w.follow()
			w.step()
			if h := w.get("h1"); h.Status.State != v1beta1.HostUnhealthy || !strings.Contains(h.Status.LastProbeError, tc.says) {
				t.Errorf("%s %q", h.Status.State, h.Status.LastProbeError)
			}
		})
	}
}

// A machine whose clock is off by more than certificates bear is reported, one that is a little off is only marked.
func TestClockOverSSH(t *testing.T) {
	for _, tc := range []struct {
		ahead time.Duration // of this process's clock
		state v1beta1.HostState
	}{{time.Minute, v1beta1.HostAvailable}, {time.Hour, v1beta1.HostUnhealthy}} {
		m := newMachine(t)
		w := newWorld(t, clocktesting.NewFakeClock(time.Now().Add(tc.ahead)), m.host, m.secret)
		w.follow()
		w.step()
		if h := w.get("h1"); h.Status.State != tc.state || !is(h, v1beta1.ConditionClockSynced, metav1.ConditionFalse) {
			t.Errorf("%s behind: %+v", tc.ahead, h.Status)
		}
	}
}
