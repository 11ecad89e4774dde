package conflict

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/lease"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
)

const (
	pageSize = 500
	// hostsEvery is how many surveys go by for one that lists other instances' hosts, of which there may be thousands.
	hostsEvery = 4
)

// survey reads the cluster. An error means that the findings of before still are the best that is known.
func (c *Controller) survey(ctx context.Context) (Snapshot, error) {
	s := Snapshot{Self: c.Self, LeaseNamespace: c.LeaseNamespace}
	pools, classes, claims := &karpv1.NodePoolList{}, &v1beta1.SSHNodeClassList{}, &karpv1.NodeClaimList{}
	if err := pages(ctx, c.Live, pools, anyVersion, func() { s.Pools = append(s.Pools, pools.Items...) }); err != nil {
		return s, fmt.Errorf("listing NodePools: %w", err)
	}
	if err := pages(ctx, c.Live, classes, anyVersion, func() { s.Classes = append(s.Classes, classes.Items...) }); err != nil {
		return s, fmt.Errorf("listing SSHNodeClasses: %w", err)
	}
	if err := c.Client.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		return s, fmt.Errorf("listing own NodeClaims: %w", err)
	}
	s.Claims = claims.Items
	beats, err := c.leases(ctx, &s)
	if err != nil {
		return s, err
	}
	for i := range s.Classes {
		if _, leased := beats[s.Classes[i].Spec.Instance]; !leased {
			beats[s.Classes[i].Spec.Instance] = ""
		}
	}
	if err := c.classless(ctx, &s); err != nil {
		return s, err
	}
	s.Now = c.Clock.Now()
	c.lives.observe(s.Now, beats)
	s.Lives = c.lives.all(s.Now)
	if s.Hosts, err = c.hosts(ctx); err != nil {
		return s, err
	}
	s.Refusals, s.Splits, s.NamesInUse = c.Refusals(), c.Splits(), c.NamesInUse()
	return s, nil
}

// leases reads who is there. Staleness would be taken for death, so the newest state is asked for.
func (c *Controller) leases(ctx context.Context, s *Snapshot) (map[string]string, error) {
	beats := map[string]string{}
	leases, contender := &coordinationv1.LeaseList{}, ""
	err := pages(ctx, c.Live, leases, newest, func() {
		for i := range leases.Items {
			l := &leases.Items[i]
			name := instanceOf(l)
			if name == "" {
				continue
			}
			beats[name] = beatOf(l)
			if name == c.Self.Instance {
				contender = l.Annotations[lease.ContenderAnnotation]
			}
			s.Instances = append(s.Instances, Instance{
				Name: name, LeaseName: l.Name, LeaseUID: l.UID,
				PoolNamespace: l.Labels[v1beta1.PoolNamespaceLabel], Release: l.Labels[v1beta1.ReleaseLabel],
				Held: beats[name] != "",
			})
		}
	}, client.InNamespace(c.LeaseNamespace))
	if err != nil {
		return nil, fmt.Errorf("listing Leases in %s: %w", c.LeaseNamespace, err)
	}
	s.Contender = c.contender.fresh(c.Clock.Now(), contender)
	return beats, nil
}

// contention remembers what another release wrote on this instance's Lease. Nobody takes that away again, so only a text that came while this
// process watched counts, and only for a while.
type contention struct {
	looked  bool
	text    string
	changed time.Time
}

func (c *contention) fresh(now time.Time, text string) string {
	if !c.looked || text != c.text {
		if c.looked {
			c.changed = now
		}
		c.looked, c.text = true, text
	}
	if c.changed.IsZero() || now.Sub(c.changed) >= lingers {
		return ""
	}
	who, _, _ := strings.Cut(text, ", at ") // the time would make each try another conflict
	return who
}

// instanceOf is the instance whose Lease it is; empty if it is none's. The label decides; Leases made before there was one have only the name.
func instanceOf(l *coordinationv1.Lease) string {
	name, found := strings.CutPrefix(l.Name, lease.NamePrefix)
	label := l.Labels[v1beta1.InstanceLabel]
	if !found || (label != "" && label != name) || (label == "" && l.Name == turn.LeaseName) {
		return ""
	}
	return name
}

// classless finds the NodeClaims of classes that do not exist, which no instance's caches show. It reads metadata only.
func (c *Controller) classless(ctx context.Context, s *Snapshot) error {
	exists := map[string]bool{}
	for i := range s.Classes {
		exists[s.Classes[i].Name] = true
	}
	if c.surveys%hostsEvery == 0 {
		c.labelled = nil
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: karpapis.Group + "/v1", Kind: "NodeClaimList"}}
		err := pages(ctx, c.Live, list, anyVersion, func() {
			for i := range list.Items {
				claim := &list.Items[i]
				if class := claim.Labels[ownership.ClassLabel]; !exists[class] && claim.DeletionTimestamp.IsZero() {
					c.labelled = append(c.labelled, LabelledClaim{Name: claim.Name, UID: claim.UID, Class: class})
				}
			}
		}, client.HasLabels{ownership.ClassLabel})
		if err != nil {
			return fmt.Errorf("listing NodeClaims: %w", err)
		}
	}
	s.Labelled = slices.DeleteFunc(slices.Clone(c.labelled), func(l LabelledClaim) bool { return exists[l.Class] })
	return nil
}

// hosts are own ones as they are now, and others as they were at most a few surveys ago.
func (c *Controller) hosts(ctx context.Context) ([]Host, error) {
	if c.surveys%hostsEvery == 0 {
		foreign := []Host{}
		list := &v1beta1.SSHHostList{}
		err := pages(ctx, c.Live, list, newest, func() {
			for i := range list.Items {
				if list.Items[i].Namespace != c.Self.PoolNamespace {
					foreign = append(foreign, hostOf(&list.Items[i]))
				}
			}
		})
		switch {
		case apierrors.IsForbidden(err):
			if c.surveys == 0 {
				log.FromContext(ctx).Info("SSHHosts of other namespaces may not be listed: a machine that is listed in two of them is found on the machine only", "error", err.Error())
			}
		case err != nil:
			return nil, fmt.Errorf("listing SSHHosts: %w", err)
		}
		c.foreign = foreign
	}
	c.surveys++
	hosts := append([]Host{}, c.foreign...)
	for _, h := range c.Hosts() {
		hosts = append(hosts, hostOf(h))
	}
	return hosts, nil
}

func hostOf(h *v1beta1.SSHHost) Host {
	host := Host{
		Namespace: h.Namespace, Name: h.Name, UID: h.UID, Labels: h.Labels,
		Address: h.Spec.Address, Port: h.Spec.Port, Via: via(h), Fingerprint: h.Status.HostKeyFingerprint,
	}
	if owned := apimeta.FindStatusCondition(h.Status.Conditions, v1beta1.ConditionOwnedElsewhere); owned != nil && owned.Status == metav1.ConditionTrue {
		host.OwnedElsewhere = owned.Message
		if host.OwnedElsewhere == "" {
			host.OwnedElsewhere = "the machine says that somebody else owns it"
		}
	}
	return host
}

// How new a list must be. anyVersion is answered from the API server's memory.
const (
	newest     = ""
	anyVersion = "0"
)

// pages lists page by page and calls see when list holds the next one.
func pages(ctx context.Context, reader client.Reader, list client.ObjectList, version string, see func(), options ...client.ListOption) error {
	next := &metav1.ListOptions{ResourceVersion: version}
	for {
		if err := reader.List(ctx, list, append([]client.ListOption{&client.ListOptions{Limit: pageSize, Raw: next}}, options...)...); err != nil {
			return err
		}
		see()
		if list.GetContinue() == "" {
			return nil
		}
		next = &metav1.ListOptions{Continue: list.GetContinue()}
	}
}
