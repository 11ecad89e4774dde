package probe

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/maintenance"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// slow is how long a probe takes before the host's status shows it.
const slow = 5 * time.Second

// work does what a host needs, and plans what it needs next.
func (c *Controller) work(ctx context.Context, name string) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("SSHHost", name))
	began := c.Clock.Now()
	succeeded := false
	if h := c.Inventory.Get(name); h != nil {
		switch stage := stageOf(h, began); stage {
		case leaveAlone:
		case park, unpark:
			c.maintain(ctx, h)
		case probe:
			succeeded = c.probe(ctx, h)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Whatever was planned while this ran was planned on an object that may be older than what this wrote.
	if h := c.Inventory.Get(name); h != nil {
		c.plan(h)
	}
	c.schedule.done(name, c.Clock.Since(began), succeeded)
	c.rouse()
}

// maintain moves a host into maintenance or out of it. Nothing is asked of the machine.
func (c *Controller) maintain(ctx context.Context, h *v1beta1.SSHHost) {
	var news happening
	updated, err := c.Inventory.Update(ctx, h.Name, func(h *v1beta1.SSHHost) error {
		now := c.Clock.Now()
		switch stageOf(h, now) {
		case park:
			news = happening{reason: eventMaintenanceStarted, message: "parked by the annotation " + v1beta1.MaintenanceAnnotation}
			if !h.InMaintenance() {
				windows, _ := maintenance.At(h.Spec.MaintenanceWindows, now)
				news.message = windows.String()
			}
			host.MarkMaintenance(h, news.message, now)
		case unpark:
			news = happening{reason: eventMaintenanceEnded, message: "maintenance is over; the machine is probed and used again"}
			h.Status.State = v1beta1.HostPending
		default:
			return host.ErrFenced
		}
		return nil
	})
	if err == nil {
		c.publish(updated, news)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memories[h.Name]
	m.earliest, m.retry = time.Time{}, time.Time{} // back from maintenance, it is probed at once
	if c.report(ctx, h, err) {
		m.retry = c.Clock.Now().Add(apiPause)
	}
	c.memories[h.Name] = m
}

// probe asks the machine and writes what came of it.
func (c *Controller) probe(ctx context.Context, h *v1beta1.SSHHost) bool {
	began := c.Clock.Now()
	hide := c.show(ctx, h, began)
	o := c.contact(ctx, h)
	hide()
	if ctx.Err() != nil {
		return false // this process is ending; nobody is to blame
	}
	outcome := "success"
	if o.err != nil {
		outcome = "error"
		log.FromContext(ctx).V(1).Info("probe failed", "blame", o.err.Blame, "reason", o.err.Reason, "error", o.err.Error())
	}
	metrics.ProbeDuration.WithLabelValues(outcome).Observe(c.Clock.Since(began).Seconds())
	c.remember(ctx, h, o)
	if o.err == nil || o.err.Blame != fault.Cluster {
		c.report(ctx, h, c.write(ctx, h, o))
	}
	return o.err == nil
}

// show puts the probe into status.operation if it takes long enough for somebody to wonder; most do not, and cost no write for it. What it
// returns ends that, and returns when nothing more is written.
func (c *Controller) show(ctx context.Context, asked *v1beta1.SSHHost, began time.Time) (hide func()) {
	ended := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		timer := c.Clock.NewTimer(slow)
		defer timer.Stop()
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		_, err := c.Inventory.Update(ctx, asked.Name, func(h *v1beta1.SSHHost) error {
			if !same(h, asked, c.Clock.Now()) {
				return host.ErrFenced
			}
			h.Status.Operation = &v1beta1.HostOperation{
				Type: v1beta1.OperationProbe, Attempt: 1, Started: metav1.NewTime(began), Deadline: new(metav1.NewTime(began.Add(c.Timeout))),
			}
			return nil
		})
		c.report(ctx, asked, err)
	})
	return func() { close(ended); watcher.Wait() }
}

// same tells whether what was asked of a machine still says something about its host: no claim came, or came and went, meanwhile.
func same(h, asked *v1beta1.SSHHost, now time.Time) bool {
	return stageOf(h, now) == probe && h.UID == asked.UID && h.Status.ClaimEpoch == asked.Status.ClaimEpoch
}

// write records an observation, unless the host has got a claim or has been replaced since the machine was asked.
func (c *Controller) write(ctx context.Context, asked *v1beta1.SSHHost, o observation) error {
	var news []happening
	updated, err := c.Inventory.Update(ctx, asked.Name, func(h *v1beta1.SSHHost) error {
		if !same(h, asked, c.Clock.Now()) {
			return host.ErrFenced
		}
		now := c.Clock.Now()
		forgiven := host.Forgive(h)
		news = record(h, o, judge(h, o, ssh.Owner{Cluster: c.ClusterUID, Instance: c.Instance}, now), now)
		if forgiven {
			news = append(news, happening{reason: eventFailuresCleared, message: "a person cleared the failures, or changed the spec: nothing is held against the machine any more"})
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.rememberLeave(updated)
	for _, n := range news {
		c.publish(updated, n)
	}
	return nil
}

// rememberLeave makes a host whose leave fails again and again rest longer each time.
func (c *Controller) rememberLeave(h *v1beta1.SSHHost) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memories[h.Name]
	switch host.State(h) {
	case v1beta1.HostLeaving:
		m.leaves++
		m.earliest = c.after(doubled(c.Interval, m.leaves))
	case v1beta1.HostAvailable:
		m.leaves = 0
	}
	c.memories[h.Name] = m
}

// remember keeps what the next probe's time depends on.
func (c *Controller) remember(ctx context.Context, h *v1beta1.SSHHost, o observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memories[h.Name]
	m.generation, m.urged = h.Generation, false
	if o.err == nil {
		if m.boot != "" && m.boot != o.facts.boot {
			log.FromContext(ctx).Info("the machine was rebooted since the last probe")
		}
		m.failures, m.boot = 0, o.facts.boot
	} else if o.err.Blame != fault.Cluster || o.err.Before {
		m.failures++ // a wait for a busy jump host holds a worker too: those with doubtful hosts are for that
	}
	m.earliest = c.after(pause(o.err, max(m.failures, 1), c.Interval))
	c.memories[h.Name] = m
}

// after is when a rest that begins now ends. It may end up to a fifth later, so that hosts do not march in step.
func (c *Controller) after(rest time.Duration) time.Time {
	return c.Clock.Now().Add(rest + time.Duration(c.Random()*float64(rest)/5))
}

// report logs a write that failed, and tells whether it did. That somebody else took the host over is no failure.
func (c *Controller) report(ctx context.Context, h *v1beta1.SSHHost, err error) bool {
	if err == nil || errors.Is(err, host.ErrFenced) || apierrors.IsNotFound(err) || ctx.Err() != nil {
		return false
	}
	log.FromContext(ctx).Error(err, "status of the host could not be written; it is tried again", "SSHHost", h.Name)
	return true
}

func (c *Controller) publish(h *v1beta1.SSHHost, n happening) {
	kind := corev1.EventTypeNormal
	if n.warning {
		kind = corev1.EventTypeWarning
	}
	if n.reason == v1beta1.ReasonForeignKubelet {
		metrics.ZombieActions.WithLabelValues("parked_foreign").Inc()
	}
	c.Recorder.Eventf(h, nil, kind, n.reason, "Probe", "%s", note(n.message))
}

// note cuts a message to what events.k8s.io takes.
func note(message string) string {
	const limit = 1000
	if len(message) <= limit {
		return message
	}
	return strings.ToValidUTF8(message[:limit], "") + "…"
}
