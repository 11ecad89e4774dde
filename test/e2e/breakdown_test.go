//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// stretch is a part of the way from a pod's creation to its running.
type stretch struct {
	name string
	end  time.Time
	// ours: this provider could make it shorter. The rest is karpenter's batching, the profile's install, the kubelet, the scheduler.
	ours bool
	took time.Duration
}

// breakdown tells where the time went between the creation of a pod and its running on a machine.
func (w *world) breakdown(ctx context.Context, pod *corev1.Pod, m *machine.Machine) []stretch {
	t := w.timeline
	start := t.after(time.Time{}, "pod "+pod.Name+" created")
	Expect(start).NotTo(BeZero(), "the timeline has not seen pod %s", pod.Name)
	node := pod.Spec.NodeName
	claimed := t.after(start, "host "+m.Name+" state Claimed for "+node)
	install := t.after(start, "host "+m.Name+" operation Install for "+node)
	join := t.after(start, "host "+m.Name+" operation Join for "+node)
	stretches := []stretch{
		{name: "karpenter batches and plans", end: t.after(start, "nodeclaim "+node+" created")},
		{name: "claim: pick a host and hold it", end: claimed, ours: true},
		{name: "ssh: connect, verify, log in", end: join, ours: true},
	}
	if !install.IsZero() {
		stretches[2].end = install
		stretches = append(stretches, stretch{name: "install script (once per machine and version)", end: join})
	}
	const started, active = "ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic"
	stretches = append(stretches,
		stretch{name: "join script, until it starts containerd", end: unitTime(ctx, m, "containerd", started), ours: true},
		stretch{name: "containerd starts", end: unitTime(ctx, m, "containerd", active)},
		stretch{name: "join script, until it starts the kubelet", end: unitTime(ctx, m, "kubelet", started), ours: true},
		stretch{name: "kubelet: certificate, Node object", end: t.after(start, "node "+node+" created")},
		stretch{name: "kubelet: Node ready", end: t.after(start, "node "+node+" ready True")},
		stretch{name: "karpenter registers the Node", end: t.after(start, "node "+node+" registered")},
		stretch{name: "scheduler binds the pod", end: t.after(start, "pod "+pod.Name+" scheduled on "+node)},
		stretch{name: "kubelet runs the pod", end: t.after(start, "pod "+pod.Name+" running")},
	)
	// What ends before its predecessor does went on beside it, and cost nothing.
	at := start
	for i := range stretches {
		s := &stretches[i]
		Expect(s.end).NotTo(BeZero(), "the timeline has no end of %q; it has:\n%s", s.name, strings.Join(t.since(start), "\n"))
		if s.end.After(at) {
			s.took = s.end.Sub(at)
			at = s.end
		}
	}
	return stretches
}

// unitTime is one of the times that a machine's systemd keeps of a unit. Machine and caller share a kernel, and so a monotonic clock.
func unitTime(ctx context.Context, m *machine.Machine, unit, property string) time.Time {
	GinkgoHelper()
	out, err := m.Exec(ctx, "systemctl show "+unit+".service --value --property "+property)
	Expect(err).NotTo(HaveOccurred())
	microseconds, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	Expect(err).NotTo(HaveOccurred())
	var now unix.Timespec
	Expect(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)).To(Succeed())
	return time.Now().Add(time.Duration(microseconds)*time.Microsecond - time.Duration(now.Nano()))
}

// report prints a breakdown and returns the total and the part that is ours.
func report(title string, stretches []stretch) (total, ours time.Duration) {
	var b strings.Builder
	for _, s := range stretches {
		total += s.took
		mark := " "
		if s.ours {
			ours += s.took
			mark = "*"
		}
		fmt.Fprintf(&b, "  %6.2fs %s %s\n", s.took.Seconds(), mark, s.name)
	}
	say("%s\n%s  %6.2fs   total, of which %.2fs ours (*)\n", title, b.String(), total.Seconds(), ours.Seconds())
	return total, ours
}
