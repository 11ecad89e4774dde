//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// hostNow is an SSHHost as the API server has it.
func (w *world) hostNow(ctx context.Context, name string) (*v1beta1.SSHHost, error) {
	h := &v1beta1.SSHHost{}
	return h, w.client.Get(ctx, types.NamespacedName{Namespace: w.namespaceOf(name), Name: name}, h)
}

// awaitHost waits until a host is as wanted.
func (w *world) awaitHost(ctx context.Context, name string, what string, wanted func(*v1beta1.SSHHost) bool) *v1beta1.SSHHost {
	GinkgoHelper()
	var h *v1beta1.SSHHost
	Eventually(func(g Gomega) {
		var err error
		h, err = w.hostNow(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(wanted(h)).To(BeTrue(), func() string { return fmt.Sprintf("host %s is not %s: %s", name, what, describe(h)) })
	}).WithContext(ctx).Should(Succeed())
	return h
}

func available(h *v1beta1.SSHHost) bool {
	return h.Status.State == v1beta1.HostAvailable && h.Status.ClaimRef == nil && len(h.Finalizers) == 0
}

func describe(h *v1beta1.SSHHost) string {
	var b strings.Builder
	fmt.Fprintf(&b, "state %q claim %v operation %v installed %q error %q", h.Status.State, h.Status.ClaimRef, h.Status.Operation, h.Status.InstalledProfile, h.Status.LastProbeError)
	for _, c := range h.Status.Conditions {
		fmt.Fprintf(&b, "\n  %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func condition(h *v1beta1.SSHHost, kind string) metav1.Condition {
	if c := apimeta.FindStatusCondition(h.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// awaitAvailable waits until a host is back in the pool, and checks that it is really out: on the machine and in the cluster.
func (w *world) awaitAvailable(ctx context.Context, name string) {
	GinkgoHelper()
	w.awaitHost(ctx, name, "available", available)
	w.expectOut(ctx, name)
}

// expectOut checks that nothing is left of a membership: no kubelet, no container, no Node, no token.
func (w *world) expectOut(ctx context.Context, name string) {
	GinkgoHelper()
	out, err := w.machines[name].Exec(ctx, "systemctl is-active kubelet || true; systemctl is-enabled kubelet 2>/dev/null || true; pgrep -c kubelet || true; pgrep -c containerd-shim || true")
	Expect(err).NotTo(HaveOccurred())
	Expect(strings.Fields(out)).NotTo(ContainElements("active", "enabled"))
	Expect(strings.Fields(out)[len(strings.Fields(out))-2:]).To(HaveEach("0"), "kubelet and container processes are left on the machine")
	Expect(owner(ctx, w.machines[name])).To(BeEmpty(), "a machine that left has no owner")
	nodes := &corev1.NodeList{}
	Expect(w.client.List(ctx, nodes)).To(Succeed())
	for _, node := range nodes.Items {
		Expect(node.Spec.ProviderID).NotTo(Equal("kpssh://"+w.namespaceOf(name)+"/"+name), "Node %s is left", node.Name)
	}
	Expect(w.tokens(ctx)).To(BeEmpty())
}

// owner is what a machine keeps about who may change it.
func owner(ctx context.Context, m *machine.Machine) string {
	GinkgoHelper()
	out, err := m.Exec(ctx, "cat /var/lib/kpssh/owner 2>/dev/null || true")
	Expect(err).NotTo(HaveOccurred())
	return out
}

// tokens are the bootstrap tokens that exist.
func (w *world) tokens(ctx context.Context) []string {
	GinkgoHelper()
	secrets := &corev1.SecretList{}
	Expect(w.client.List(ctx, secrets, client.InNamespace(metav1.NamespaceSystem))).To(Succeed())
	var names []string
	for _, secret := range secrets.Items {
		if secret.Type == corev1.SecretTypeBootstrapToken {
			names = append(names, secret.Name)
		}
	}
	return names
}

// awaitRunning waits until a pod runs and returns it.
func (w *world) awaitRunning(ctx context.Context, name string) *corev1.Pod {
	GinkgoHelper()
	p := &corev1.Pod{}
	Eventually(func(g Gomega) {
		g.Expect(w.client.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, p)).To(Succeed())
		g.Expect(p.Status.Phase).To(Equal(corev1.PodRunning), "pod %s", name)
	}).WithContext(ctx).Should(Succeed())
	return p
}

// run creates a pod on a machine's host class.
func (w *world) run(ctx context.Context, name, on string) *corev1.Pod {
	GinkgoHelper()
	p := pod(name, on)
	Expect(w.client.Create(ctx, p)).To(Succeed())
	return p
}

// end deletes a pod.
func (w *world) end(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(w.client.Delete(ctx, p, client.GracePeriodSeconds(0)))).To(Succeed())
}

// claimsOf are the NodeClaims of a pool.
func (w *world) claimsOf(ctx context.Context, pool string) []karpv1.NodeClaim {
	GinkgoHelper()
	claims := &karpv1.NodeClaimList{}
	Expect(w.client.List(ctx, claims, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})).To(Succeed())
	return claims.Items
}

// awaitNoClaims waits until a pool has no NodeClaims.
func (w *world) awaitNoClaims(ctx context.Context, pool string) {
	GinkgoHelper()
	Eventually(func() []karpv1.NodeClaim { return w.claimsOf(ctx, pool) }).WithContext(ctx).Should(BeEmpty())
}

// update changes an object, again until nobody else did.
func (w *world) update(ctx context.Context, object client.Object, change func()) {
	GinkgoHelper()
	Eventually(func() error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		err := w.client.Update(ctx, object)
		if err != nil && !apierrors.IsConflict(err) {
			return StopTrying("update").Wrap(err)
		}
		return err
	}).WithContext(ctx).Should(Succeed())
}

// hold makes a gated machine stop at the beginning of a phase; release lets it go on.
func hold(ctx context.Context, m *machine.Machine, phase string) {
	GinkgoHelper()
	_, err := m.Exec(ctx, "touch "+holdFile+phase)
	Expect(err).NotTo(HaveOccurred())
}

func release(ctx context.Context, m *machine.Machine, phase string) {
	GinkgoHelper()
	_, err := m.Exec(ctx, "rm -f "+holdFile+phase)
	Expect(err).NotTo(HaveOccurred())
}

// trace is what a gated machine's phases have noted.
func trace(m *machine.Machine) []string {
	GinkgoHelper()
	raw, err := os.ReadFile(m.Path(traceFile))
	if os.IsNotExist(err) {
		return nil
	}
	Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

// begun are the processes, on a gated machine, in which a phase has begun, oldest first.
func begun(m *machine.Machine, phase string) []string {
	GinkgoHelper()
	var processes []string
	for _, line := range trace(m) {
		if process, found := strings.CutPrefix(line, phase+" begin "); found {
			processes = append(processes, process)
		}
	}
	return processes
}

// awaitBegun waits until a phase has begun for the n-th time on a gated machine, and checks that no earlier one still runs.
func awaitBegun(ctx context.Context, m *machine.Machine, phase string, n int) {
	GinkgoHelper()
	Eventually(func() []string { return begun(m, phase) }).WithContext(ctx).Should(HaveLen(n), "%s on %s", phase, m.Name)
	for _, process := range begun(m, phase)[:n-1] {
		expectDead(ctx, m, process)
	}
}

func expectDead(ctx context.Context, m *machine.Machine, process string) {
	GinkgoHelper()
	out, err := m.Exec(ctx, "kill -0 "+process+" 2>/dev/null && ps -o args= "+process+" || true")
	Expect(err).NotTo(HaveOccurred())
	Expect(out).To(BeEmpty(), "process %s of a phase that was cut off still runs", process)
}

// deleteClaim deletes a pool's only NodeClaim and returns its name.
func (w *world) deleteClaim(ctx context.Context, pool string) string {
	GinkgoHelper()
	claims := w.claimsOf(ctx, pool)
	Expect(claims).To(HaveLen(1))
	Expect(w.client.Delete(ctx, &claims[0])).To(Succeed())
	return claims[0].Name
}

// metric is a value of the controller's metrics: the line that starts with name, which includes labels. Zero if there is none.
func (w *world) metric(ctx context.Context, name string) float64 {
	GinkgoHelper()
	transport := &http.Transport{DialContext: w.station.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080/metrics", nil)
	Expect(err).NotTo(HaveOccurred())
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(body)) {
		if rest, found := strings.CutPrefix(strings.TrimSpace(line), name+" "); found {
			var value float64
			_, err := fmt.Sscan(rest, &value)
			Expect(err).NotTo(HaveOccurred())
			return value
		}
	}
	return 0
}

// postmortem is what one wants to read when a scenario failed.
func (w *world) postmortem() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var b strings.Builder
	hosts := &v1beta1.SSHHostList{}
	if err := w.client.List(ctx, hosts); err != nil {
		fmt.Fprintln(&b, err)
	}
	for i := range hosts.Items {
		fmt.Fprintf(&b, "host %s: %s\n", hosts.Items[i].Name, describe(&hosts.Items[i]))
	}
	fmt.Fprintf(&b, "last changes:\n%s\n", strings.Join(w.timeline.since(time.Now().Add(-3*time.Minute)), "\n"))
	for _, c := range w.controllers() {
		fmt.Fprintf(&b, "%s:\n%s\n", c.log, c.tail(60))
	}
	for name, m := range w.machines {
		log, err := m.Exec(ctx, "systemctl --failed --no-legend --plain; cat /var/lib/e2e-trace; journalctl --no-pager --lines 10 --unit kubelet")
		fmt.Fprintf(&b, "machine %s: %v\n%s\n", name, err, log)
	}
	return b.String()
}
