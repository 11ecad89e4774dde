package probe

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// unitsVariable tells the script which units to look at.
const unitsVariable = "KPSSH_KUBELET_UNITS"

// overSSH asks the machine, over one connection with one login attempt.
func (c *Controller) overSSH(ctx context.Context, h *v1beta1.SSHHost) observation {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	target, err := c.Credentials.Target(ctx, h)
	if err != nil {
		countDial(fault.Of(err))
		return observation{err: fault.Of(err)}
	}
	conn, err := c.Dialer.Connect(ctx, target)
	if err != nil {
		metrics.Handshakes.WithLabelValues("probe", "error").Inc()
		f := asked(ctx, err)
		countDial(f)
		return observation{err: f}
	}
	defer func() { _ = conn.Close() }()
	metrics.Handshakes.WithLabelValues("probe", "success").Inc()

	began := c.Clock.Now()
	result, err := conn.Run(ctx, ssh.Script{
		Phase: "probe", Body: script, Timeout: c.Timeout,
		Env: map[string]string{unitsVariable: strings.Join(c.KubeletUnits, " ")},
	})
	if err != nil {
		return observation{err: asked(ctx, err)}
	}
	o := observation{fingerprint: conn.HostKeyFingerprint()}
	if o.facts, err = parseFacts(result.Stdout.String(), c.KubeletUnits); err != nil {
		o.err = fault.New(fault.Host, v1beta1.ReasonProbeFailed, err, "the probe's answer makes no sense; see what the login shell of the machine prints")
		return o
	}
	o.skew = skew(o.facts.clock, began, c.Clock.Now())
	if o.nodeKnown, err = c.nodeKnown(ctx, h, o.facts); err != nil {
		o.err = fault.New(fault.Cluster, "NodeLookupFailed", err, "looking up the Node of SSHHost %s", h.Name)
	}
	return o
}

// countDial counts a connection that did not come about, unless this process gave it up.
func countDial(f *fault.Error) {
	if f.Reason != "Cancelled" {
		metrics.DialErrors.WithLabelValues("probe", ssh.DialStage(f.Reason), string(f.Blame), f.Reason).Inc()
	}
}

// asked classifies a failure of the exchange. The end of the time for it is the machine's doing, not a cancellation of ours.
func asked(ctx context.Context, err error) *fault.Error {
	found := fault.Of(err)
	if found.Blame == fault.Cluster && !found.Before && ctx.Err() == context.DeadlineExceeded {
		return fault.New(fault.Network, "ProbeTimeout", err, "the machine did not answer in time")
	}
	return found
}

// skew is how far the machine's clock is outside the interval in which it must have been read.
func skew(read, began, ended time.Time) time.Duration {
	switch {
	case read.After(ended):
		return read.Sub(ended)
	case read.Add(time.Second).Before(began): // it told whole seconds
		return read.Add(time.Second).Sub(began)
	}
	return 0
}

// nodeKnown tells whether a Node has the host's provider ID, if the verdict may rest on that. An IP address is not looked for:
// it may be a stale Node's, or another network's.
func (c *Controller) nodeKnown(ctx context.Context, h *v1beta1.SSHHost, f facts) (bool, error) {
	if _, found := f.kubelet(); !found {
		return false, nil
	}
	for _, id := range []string{h.StaticProviderID(), h.Status.ProviderID} {
		if id == "" {
			continue
		}
		nodes := &corev1.NodeList{}
		if err := c.Nodes.List(ctx, nodes, client.MatchingFields{"spec.providerID": id}); err != nil {
			return false, err
		}
		if len(nodes.Items) > 0 {
			return true, nil
		}
	}
	return false, nil
}
