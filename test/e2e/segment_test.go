//go:build linux && e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

// segment is a network that reaches the API server and its own machine, with an instance inside.
type segment struct {
	installation
	world      *world
	zone       string
	network    *machine.Segment
	station    *machine.Station
	machine    *machine.Machine
	controller *controller
	// atMachine and atController see who tries to connect to whom.
	atMachine, atController *machine.Tap
	// calm are how long pods waited while nothing else went on.
	calm latencies
}

// segmentProfile is a gated one, for its trace.
const segmentProfile = "segments"

// newSegment cables a segment and boots its machine.
func (w *world) newSegment(ctx context.Context, i installation, machineName, zone string) (*segment, error) {
	s := &segment{installation: i, world: w, zone: zone}
	var err error
	if s.network, err = w.site.Segment(ctx, i.instance); err != nil {
		return nil, err
	}
	if s.station, err = s.network.Station(ctx, "ctl-"+i.instance); err != nil {
		return nil, err
	}
	if s.machine, err = s.network.Machine(ctx, machineName); err != nil {
		return nil, err
	}
	if s.atMachine, err = s.machine.Tap(); err != nil {
		return nil, err
	}
	if s.atController, err = s.station.Tap(); err != nil {
		return nil, err
	}
	if s.controller, err = w.deploy(ctx, i); err != nil {
		return nil, err
	}
	s.controller.station = s.station
	w.machines[machineName], w.elsewhere[machineName] = s.machine, s
	return s, nil
}

// open boots the machines of segments and starts their instances.
func open(ctx context.Context, segments ...*segment) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, s := range segments {
		group.Go(func() error {
			if err := s.machine.PowerOn(groupCtx); err != nil {
				return err
			}
			if err := s.describe(groupCtx); err != nil {
				return err
			}
			return s.controller.start()
		})
	}
	return group.Wait()
}

// describe makes the segment's SSHHost, class and pool. One zone comes from the class, one from the host.
func (s *segment) describe(ctx context.Context) error {
	secret := &corev1.Secret{Data: map[string][]byte{"privateKey": s.world.site.LoginKey(), "knownHost": []byte(knownHost(s.machine))}}
	secret.Name, secret.Namespace = s.machine.Name, s.namespace
	class := nodeClass(s.machine.Name, segmentProfile)
	class.Spec.Instance = s.instance
	host := s.world.host(s.machine, "root")
	if s.installation == segmentA {
		class.Spec.Zone = s.zone
	} else {
		host.Labels[corev1.LabelTopologyZone] = s.zone
	}
	for _, object := range []client.Object{secret, host, class, nodePool(s.machine.Name)} {
		if err := s.world.create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// close ends the instance and the machine.
func (s *segment) close(ctx context.Context) error {
	s.controller.kill()
	return errors.Join(s.machine.PowerOff(ctx), s.atMachine.Close(), s.atController.Close())
}

// pod makes one that fits the segment by its instance label alone.
func (s *segment) pod(ctx context.Context, name string) *corev1.Pod {
	return s.podBy(ctx, name, v1beta1.InstanceLabel, s.instance)
}

func (s *segment) podBy(ctx context.Context, name, label, value string) *corev1.Pod {
	GinkgoHelper()
	p := pod(name, "")
	p.Spec.NodeSelector = map[string]string{label: value}
	Expect(s.world.client.Create(ctx, p)).To(Succeed())
	return p
}

// running waits until a pod runs, checks that it does so in this segment, and returns how long it has waited for that.
func (s *segment) running(ctx context.Context, p *corev1.Pod) time.Duration {
	GinkgoHelper()
	p.Spec.NodeName = s.world.awaitRunning(ctx, p.Name).Spec.NodeName
	node := &corev1.Node{}
	Expect(s.world.client.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node)).To(Succeed())
	Expect(node.Spec.ProviderID).To(Equal("kpssh://" + s.namespace + "/" + s.machine.Name))
	Expect(node.Labels).To(And(HaveKeyWithValue(v1beta1.InstanceLabel, s.instance), HaveKeyWithValue(corev1.LabelTopologyZone, s.zone)))
	var ran time.Time
	Eventually(func() time.Time { // the timeline has a watch of its own
		ran = s.world.timeline.after(time.Time{}, "pod "+p.Name+" running")
		return ran
	}).WithContext(ctx).ShouldNot(BeZero())
	return ran.Sub(s.world.timeline.after(time.Time{}, "pod "+p.Name+" created"))
}

// end ends a pod and the NodeClaim of the segment, which is quicker than to wait for consolidation.
func (s *segment) end(ctx context.Context, p *corev1.Pod) {
	GinkgoHelper()
	s.world.end(ctx, p)
	s.world.deleteClaim(ctx, s.machine.Name)
	s.emptied(ctx)
}

// emptied waits until the segment's machine is back in the pool.
func (s *segment) emptied(ctx context.Context) {
	GinkgoHelper()
	s.world.awaitNoClaims(ctx, s.machine.Name)
	s.world.awaitHost(ctx, s.machine.Name, "available", available)
}

// serve runs a pod and ends it, and returns how long it was pending.
func (s *segment) serve(ctx context.Context, name string) time.Duration {
	GinkgoHelper()
	p := s.pod(ctx, name)
	took := s.running(ctx, p)
	s.end(ctx, p)
	return took
}

// serveWhile serves pods until a time has passed, and at least n.
func (s *segment) serveWhile(ctx context.Context, name string, n int, lasts time.Duration) latencies {
	GinkgoHelper()
	var all latencies
	for began := time.Now(); len(all) < n || time.Since(began) < lasts; {
		all = append(all, s.serve(ctx, fmt.Sprintf("%s-%d", name, len(all)+1)))
	}
	return all
}

// beCalm measures once what others are compared with.
func (s *segment) beCalm(ctx context.Context) {
	GinkgoHelper()
	if s.calm == nil {
		s.calm = s.serveWhile(ctx, "calm", 3, 0)
	}
}

// expectLikeCalm is L4. Twice the time is what two busy cores do to a kubelet; waiting for another segment's machine costs at least one
// of ssh's limits, which are 15 s.
func (s *segment) expectLikeCalm(what string, now latencies) {
	GinkgoHelper()
	say("pod pending -> Running in %s: %s when nothing else goes on; %s %s", s.instance, s.calm, now, what)
	Expect(now.median()).To(BeNumerically("<", 2*s.calm.median()+5*time.Second), "%s: %s instead of %s", what, now, s.calm)
}

// dialled are the addresses that were tried, by the tap, with how often.
func dialled(tap *machine.Tap) map[machine.Dial]int {
	GinkgoHelper()
	dials, err := tap.Dials()
	Expect(err).NotTo(HaveOccurred())
	return dials
}

// attempts of the segment's instance to reach its machine's sshd.
func (s *segment) attempts() int {
	GinkgoHelper()
	return dialled(s.atMachine)[s.dial(s.machine)]
}

func (s *segment) dial(m *machine.Machine) machine.Dial {
	return machine.Dial{From: s.station.Address, To: netip.AddrPortFrom(m.Address, 22)}
}

// latencies of pods, from their creation to their running.
type latencies []time.Duration

func (l latencies) median() time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	return sorted[len(sorted)/2]
}

func (l latencies) String() string {
	var all []string
	for _, each := range l {
		all = append(all, fmt.Sprintf("%.1f", each.Seconds()))
	}
	return fmt.Sprintf("median %.1fs of %s", l.median().Seconds(), strings.Join(all, " "))
}
