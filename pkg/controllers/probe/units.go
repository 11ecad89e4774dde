package probe

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// wellKnown are the units of the distributions that bring a kubelet. They are looked at on every machine: one that another cluster's k3s
// uses would be joined otherwise, and fail in a way that nobody understands.
var wellKnown = []string{"kubelet", "k3s-agent", "k3s", "rke2-agent", "rke2-server", "k0sworker", "snap.kubelet-eks.daemon", "snap.microk8s.daemon-kubelite"}

// unitsOf are the systemd units that run, or could have run, a kubelet on a machine, without duplicates and without the suffix .service:
// those of the settings, the well-known ones, and those of the profile that is installed and of the profiles it may get. A fault says
// that this is not known now; the machine is not asked then, because a kubelet could be overlooked.
func (c *Controller) unitsOf(ctx context.Context, h *v1beta1.SSHHost) ([]string, *fault.Error) {
	names := slices.Concat(c.KubeletUnits, wellKnown)
	if c.Revisions != nil && h.Status.InstalledRevision != "" {
		installed, err := c.Revisions.Get(ctx, h.Status.InstalledRevision)
		switch {
		case err == nil:
			names = append(names, profile.KubeletUnits(&installed.Spec)...)
		case fault.Is(err, fault.Configuration):
			log.FromContext(ctx).V(1).Info("the units of what is installed are not known; the leave will say why", "error", err.Error())
		default:
			return nil, fault.Of(err).BeforeMachine()
		}
	}
	if c.Classes != nil {
		possible, err := c.profilesFor(ctx, h)
		if err != nil {
			return nil, fault.New(fault.Cluster, "ClassLookupFailed", err, "looking up which profiles SSHHost %s may get", h.Name).BeforeMachine()
		}
		for _, p := range possible {
			names = append(names, profile.KubeletUnits(&p.Spec)...)
		}
	}
	return distinct(names), nil
}

// profilesFor are the profiles of the classes that select a host.
func (c *Controller) profilesFor(ctx context.Context, h *v1beta1.SSHHost) ([]*v1beta1.SSHJoinProfile, error) {
	var classes v1beta1.SSHNodeClassList
	// Read only, so that a cache need not copy all classes for each probe.
	if err := c.Classes.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var found []*v1beta1.SSHJoinProfile
	seen := map[string]bool{}
	for i := range classes.Items {
		name := classes.Items[i].Spec.JoinProfileRef.Name
		if seen[name] || !selects(&classes.Items[i], h) {
			continue
		}
		seen[name] = true
		p := &v1beta1.SSHJoinProfile{}
		switch err := c.Classes.Get(ctx, client.ObjectKey{Name: name}, p); {
		case err == nil:
			found = append(found, p)
		case client.IgnoreNotFound(err) != nil:
			return nil, err
		}
	}
	return found, nil
}

func selects(class *v1beta1.SSHNodeClass, h *v1beta1.SSHHost) bool {
	if class.Spec.HostSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(class.Spec.HostSelector)
	return err == nil && selector.Matches(labels.Set(h.Labels))
}

// distinct keeps the order in which names are mentioned first.
func distinct(names []string) []string {
	var kept []string
	for _, name := range names {
		if name = strings.TrimSuffix(name, ".service"); !slices.Contains(kept, name) {
			kept = append(kept, name)
		}
	}
	return kept
}
