package probe

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// unitsVariable tells the script which units to look at.
const unitsVariable = "KPSSH_KUBELET_UNITS"

// overSSH asks the machine, over one connection with one login attempt.
func (c *Controller) overSSH(ctx context.Context, h *v1beta1.SSHHost) observation {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	units, unknown := c.unitsOf(ctx, h)
	if unknown != nil {
		return observation{err: unknown}
	}
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
	asking := ssh.Script{
		Phase: "probe", Body: script, Timeout: c.Timeout,
		Env: map[string]string{unitsVariable: strings.Join(units, " ")},
	}
	if h.Spec.ExecMode == v1beta1.ExecModeVerified {
		asking.Verified = &ssh.Verified{Command: h.Spec.ShimCommand} // the shim's own probe, which needs no signature
	}
	result, err := conn.Run(ctx, asking)
	if err != nil {
		return observation{err: asked(ctx, err)}
	}
	o := observation{fingerprint: conn.HostKeyFingerprint()}
	parse := parseFacts
	if result.Shim == 1 {
		parse = parseOldFacts
	}
	if o.facts, err = parse(result.Stdout.String(), units); err != nil {
		o.err = fault.New(fault.Host, v1beta1.ReasonProbeFailed, err, "the probe's answer makes no sense; see what the login shell of the machine prints")
		return o
	}
	if !o.facts.clock.IsZero() {
		o.skew = skew(o.facts.clock, began, c.Clock.Now())
	}
	if err := c.lookUp(ctx, h, &o); err != nil {
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

// lookUp finds out what the cluster knows of a machine, as far as the verdict may rest on it. An IP address is not looked for: it may be a
// stale Node's, or another network's.
func (c *Controller) lookUp(ctx context.Context, h *v1beta1.SSHHost, o *observation) error {
	nodes, err := c.nodesOf(ctx, h)
	if err != nil {
		return err
	}
	if _, found := o.facts.kubelet(); found {
		o.nodeKnown = len(nodes) > 0
		return nil
	}
	if !prepared(h) {
		return nil // nothing of ours could have made it join
	}
	o.leftOver, err = c.leftOver(ctx, nodes)
	return err
}

// nodesOf is the Nodes with one of the host's provider IDs, as a cache shows them.
func (c *Controller) nodesOf(ctx context.Context, h *v1beta1.SSHHost) ([]corev1.Node, error) {
	var found []corev1.Node
	for _, id := range h.ProviderIDs() {
		nodes := &corev1.NodeList{}
		if err := c.Nodes.List(ctx, nodes, client.MatchingFields{"spec.providerID": id}); err != nil {
			return nil, err
		}
		found = append(found, nodes.Items...)
	}
	return found, nil
}

// leftOver is the name of a Node that nobody has begun to delete. A machine that has just left is in the cache a while longer, and a leave is
// not repeated for that: the API server is asked.
func (c *Controller) leftOver(ctx context.Context, nodes []corev1.Node) (string, error) {
	for index := range nodes {
		shown := &nodes[index]
		if !leavable(shown) {
			continue
		}
		node := &corev1.Node{}
		switch err := c.Live.Get(ctx, client.ObjectKeyFromObject(shown), node); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", err
		case node.UID == shown.UID && node.DeletionTimestamp.IsZero():
			return node.Name, nil
		}
	}
	return "", nil
}

// leavable tells whether a leave would delete a Node with one of the host's provider IDs. One that names another instance's class, or that has an ID which
// an agent chose and names no class, is left for a person, and a leave for its sake would be repeated for ever.
func leavable(node *corev1.Node) bool {
	_, named := node.Labels[ownership.ClassLabel]
	return !ownership.Masked(node) && (named || strings.HasPrefix(node.Spec.ProviderID, v1beta1.ProviderIDScheme))
}
