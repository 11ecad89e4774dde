package nodeclass

import (
	"context"
	"fmt"
	"slices"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/instancetype"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// finding is what is known of a class.
type finding struct {
	// reason why no node can be launched with the class; empty if one can.
	reason string
	// message says what to do about it; without a reason, what is amiss although the class can be used.
	message string
	// hosts that the class selects, and how many of them can be claimed.
	hosts, free int32
	rollout     rollout
	// passing: time alone may change the finding.
	passing bool
	// checked is what the linter says of the profile's present version; nil if it was not looked at.
	checked *profileCheck
}

// tell puts the finding into the class's conditions and reports whether that changed any.
func (f finding) tell(class *v1beta1.SSHNodeClass, clk clock.Clock) bool {
	checked := f.checked.tell(class, clk)
	conditions := class.StatusConditions(status.WithClock(clk))
	switch {
	case f.reason == "" && f.message == "":
		return conditions.SetTrue(status.ConditionReady) || checked
	case f.reason == "":
		return conditions.SetTrueWithReason(status.ConditionReady, status.ConditionReady, f.message) || checked
	}
	return conditions.SetFalse(status.ConditionReady, f.reason, f.message) || checked
}

// surroundings are the objects that a class refers to, as they are now. Those that do not exist are nil.
type surroundings struct {
	profile *v1beta1.SSHJoinProfile
	// secret is the join Secret; nil too if the class names none.
	secret *corev1.Secret
	// cluster is what machines are told of the cluster; clusterFault why that is not known.
	cluster      bootstrap.Cluster
	clusterFault *fault.Error
}

// examine finds out whether a class can be used. An error means that it could not be found out now; it says nothing about the class.
func (c *Controller) examine(ctx context.Context, class *v1beta1.SSHNodeClass) (finding, error) {
	found := finding{}
	hosts, err := c.Inventory.Selected(class)
	if err != nil {
		found.reason = v1beta1.ReasonSelectorError
		found.message = err.Error() + ": correct spec.hostSelector"
		return found, nil
	}
	refused := unusable(class, hosts)
	found.hosts = int32(len(hosts)) //nolint:gosec // a namespace does not hold that many
	for _, h := range hosts {
		if ok, _ := host.Claimable(h); ok && !slices.ContainsFunc(refused, func(r instancetype.Rejection) bool { return r.Host == h.Name }) {
			found.free++
		}
	}
	around, err := c.surroundings(ctx, class)
	if err != nil {
		return finding{}, err
	}
	claims, err := c.claimed(ctx, class.Name)
	if err != nil {
		return finding{}, err
	}
	found.rollout = rolloutOf(around.profile, hosts, claims, found.free)
	found.checked = &profileCheck{}
	if around.profile != nil {
		found.checked = &profileCheck{profile: around.profile.Marker(), findings: c.validated.of(around.profile).findings}
	}
	found.reason, found.message = c.judge(class, around, len(hosts))
	if found.reason == "" && len(refused) > 0 {
		found.message = fmt.Sprintf("%d of %d hosts are not offered: %s", len(refused), len(hosts), refused[0].Message)
		if len(refused) == len(hosts) {
			found.reason = v1beta1.ReasonNoHosts
		}
	}
	if found.reason == "" {
		reason, message, verifies := unproven(around.profile, hosts, c.Clock.Now())
		if found.passing = verifies; message != "" {
			found.reason, found.message = reason, message
		}
	}
	return found, nil
}

// unusable is the hosts that a person must mend before they can be offered with this class. One that awaits its first probe is not.
func unusable(class *v1beta1.SSHNodeClass, hosts []*v1beta1.SSHHost) []instancetype.Rejection {
	return slices.DeleteFunc(instancetype.Rejected(class, hosts), func(r instancetype.Rejection) bool { return r.Reason == instancetype.ReasonNotProbed })
}

// surroundings reads what the class refers to.
func (c *Controller) surroundings(ctx context.Context, class *v1beta1.SSHNodeClass) (surroundings, error) {
	around := surroundings{profile: &v1beta1.SSHJoinProfile{}}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: class.Spec.JoinProfileRef.Name}, around.profile); apierrors.IsNotFound(err) {
		around.profile = nil
	} else if err != nil {
		return around, fmt.Errorf("reading SSHJoinProfile %s: %w", class.Spec.JoinProfileRef.Name, err)
	}
	if ref := class.Spec.JoinSecretRef; ref != nil {
		around.secret = &corev1.Secret{}
		if err := c.Client.Get(ctx, types.NamespacedName{Namespace: c.Inventory.Namespace(), Name: ref.Name}, around.secret); apierrors.IsNotFound(err) {
			around.secret = nil
		} else if err != nil {
			return around, fmt.Errorf("reading Secret %s/%s: %w", c.Inventory.Namespace(), ref.Name, err)
		}
	}
	var err error
	around.cluster, err = c.Discovery.Resolve(ctx, class)
	if err != nil && !fault.Is(err, fault.Configuration) {
		return around, err
	}
	around.clusterFault = fault.Of(err)
	return around, nil
}

// judge says what is wrong with a class, the cause that a person would mend first; empty if nothing is.
func (c *Controller) judge(class *v1beta1.SSHNodeClass, around surroundings, hosts int) (reason, message string) {
	if around.profile == nil {
		return v1beta1.ReasonProfileNotFound, fmt.Sprintf("SSHJoinProfile %q does not exist: create it, or correct spec.joinProfileRef", class.Spec.JoinProfileRef.Name)
	}
	if !around.profile.DeletionTimestamp.IsZero() {
		return v1beta1.ReasonProfileDeleting, c.profileGoes(around.profile)
	}
	if err := c.validated.of(around.profile).err; err != nil {
		return v1beta1.ReasonProfileInvalid, err.Error()
	}
	if ref := class.Spec.JoinSecretRef; ref != nil && around.secret == nil {
		return v1beta1.ReasonJoinSecretNotFound, fmt.Sprintf("Secret %s/%s does not exist: create it, or correct spec.joinSecretRef", c.Inventory.Namespace(), ref.Name)
	}
	if around.clusterFault != nil {
		return v1beta1.ReasonClusterUnknown, around.clusterFault.Error()
	}
	if err := rehearse(class, around); err != nil {
		found := fault.Of(err)
		return found.Reason, found.Error()
	}
	if hosts == 0 {
		return v1beta1.ReasonNoHosts, fmt.Sprintf("no SSHHost in namespace %s matches spec.hostSelector: create one, label one, or correct the selector", c.Inventory.Namespace())
	}
	return "", ""
}

// profileGoes says what the deletion of the class's profile waits for here, and what to do.
func (c *Controller) profileGoes(p *v1beta1.SSHJoinProfile) string {
	waits := ""
	if users := profile.UsersOf(p.Name, c.Inventory.All(), nil); len(users) > 0 {
		waits = fmt.Sprintf(", and waits for %d SSHHosts that have it installed (%s)", len(users), profile.Few(users))
	}
	return fmt.Sprintf("SSHJoinProfile %q is being deleted%s: name another one in spec.joinProfileRef, or create it again when it is gone", p.Name, waits)
}

// rehearse renders the scripts with everything but a machine, so that what cannot be rendered is reported here, once, and not
// by each join.
func rehearse(class *v1beta1.SSHNodeClass, around surroundings) error {
	in := profile.Inputs{
		ClusterEndpoint: around.cluster.Endpoint, ClusterCA: around.cluster.CA,
		BootstrapToken: "abcdef.0123456789abcdef", NodeName: "node", HostAddress: "192.0.2.1",
		ProviderID: v1beta1.ProviderIDScheme + "namespace/node", Vars: class.Spec.Vars,
	}
	if class.Spec.ProviderIDSource == v1beta1.ProviderIDAdopt {
		in.ProviderID = ""
	}
	if around.secret != nil {
		in.Secrets = around.secret.Data
	}
	for _, phase := range []profile.Phase{profile.Install, profile.Join, profile.Leave} {
		if _, err := profile.Render(profile.RevisionOf(around.profile), phase, in); err != nil {
			return err
		}
	}
	return nil
}
