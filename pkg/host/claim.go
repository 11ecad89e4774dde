package host

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

var (
	// ErrNoHost means that no candidate can be claimed now.
	ErrNoHost = errors.New("no host can be claimed")
	// ErrEnding means that the NodeClaim held a host which is leaving again: this NodeClaim will not get another.
	ErrEnding = errors.New("the NodeClaim's host is leaving")
	// ErrClaimRaced means that another process claimed a second host for the same NodeClaim; ours was given back. Try again.
	ErrClaimRaced = errors.New("another process claimed a host for this NodeClaim")
)

// Candidate is an instance type and the hosts that would serve it.
type Candidate struct {
	InstanceType string
	Hosts        []*v1beta1.SSHHost
}

// ClaimRequest asks for one host for one NodeClaim.
type ClaimRequest struct {
	// Name and UID of the NodeClaim; both required.
	Name string
	UID  types.UID
	// NodeClass of the NodeClaim.
	NodeClass string
	// Marker of the wanted profile, `<profile>@<version>`: hosts that have it installed are preferred.
	Marker string
	// Adopt gives a host back the provider ID that an agent on its machine gave its Node before, if one is remembered.
	Adopt bool
	// Candidates in order of preference, cheapest first.
	Candidates []Candidate
	// Refuse is asked about each host before it is claimed; nil refuses none.
	Refuse func(*v1beta1.SSHHost) (bool, error)
}

// Claim gives the NodeClaim one host: the one it has, else the best that is free. However often it is called and whatever caches
// say, a NodeClaim UID holds at most one host: what it holds is read from the API server before and after the write.
// Errors: ErrNoHost, ErrEnding, ErrClaimRaced; else the API server's.
func (i *Inventory) Claim(ctx context.Context, r ClaimRequest) (*v1beta1.SSHHost, error) {
	defer i.claims.lock(string(r.UID))()
	held, err := i.heldBy(ctx, r.UID)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		return settle(held)
	}
	for _, candidate := range r.Candidates {
		hosts := append([]*v1beta1.SSHHost{}, candidate.Hosts...)
		Order(hosts, r.Marker)
		for _, h := range hosts {
			if r.Refuse != nil {
				refused, err := r.Refuse(h)
				if err != nil {
					return nil, err
				}
				if refused {
					continue
				}
			}
			claimed, err := i.take(ctx, h.Name, r, candidate.InstanceType)
			if errors.Is(err, errTaken) {
				continue
			}
			if err != nil {
				return nil, err
			}
			return i.verify(ctx, claimed, r.UID)
		}
	}
	return nil, ErrNoHost
}

// errTaken means that this host cannot be had; the next may.
var errTaken = errors.New("taken")

// take reserves a host in this process, so that simultaneous claims do not collide on the API server, and writes the claim.
func (i *Inventory) take(ctx context.Context, name string, r ClaimRequest, instanceType string) (*v1beta1.SSHHost, error) {
	if !i.reserve(name) {
		return nil, errTaken
	}
	defer i.unreserve(name)
	claimed, err := i.Update(ctx, name, func(h *v1beta1.SSHHost) error {
		if ok, _ := Claimable(h); !ok {
			return errTaken
		}
		MarkClaimed(h, v1beta1.ClaimReference{Name: r.Name, UID: r.UID, NodeClass: r.NodeClass, InstanceType: instanceType}, i.clock.Now())
		if r.Adopt && h.Status.Adopted != nil {
			h.Status.ProviderID = h.Status.Adopted.ProviderID
		}
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil, errTaken
	}
	if apierrors.IsConflict(err) {
		metrics.ClaimConflicts.Inc()
		return nil, errTaken
	}
	return claimed, err
}

// verify gives the host back if the NodeClaim turns out to hold another one too: two processes, each of which believes to lead,
// may both have claimed. Both then give way, rather than guess which of them was first.
func (i *Inventory) verify(ctx context.Context, claimed *v1beta1.SSHHost, uid types.UID) (*v1beta1.SSHHost, error) {
	held, err := i.heldBy(ctx, uid)
	if err != nil {
		return nil, err // the claim stands; the next call finds it
	}
	if len(held) <= 1 {
		return claimed, nil
	}
	err = i.giveBack(ctx, claimed.Name, uid)
	if err != nil && !errors.Is(err, ErrFenced) {
		return nil, err
	}
	return nil, ErrClaimRaced
}

// Alone makes sure, before a machine is changed for a claim, that the claim holds no other host. A claim is written before its holder asks
// this, so of two hosts that one NodeClaim holds, which takes two processes that both believe to lead, at least one finds the other; whatever
// becomes of the rest, no two of them join. nil: go on. ErrFenced: this host was given back. ErrClaimRaced: the other is about to give way.
func (i *Inventory) Alone(ctx context.Context, h *v1beta1.SSHHost) error {
	uid := h.Status.ClaimRef.UID
	if Touched(h) {
		return nil // it was alone when it began
	}
	held, err := i.heldBy(ctx, uid)
	if err != nil {
		return err
	}
	var others []v1beta1.SSHHost
	for index := range held {
		if held[index].Name != h.Name {
			others = append(others, held[index])
		}
	}
	if len(others) == 0 {
		return nil
	}
	for index := range others {
		if Touched(&others[index]) || others[index].Name < h.Name {
			if err := i.giveBack(ctx, h.Name, uid); err != nil {
				return err
			}
			return ErrFenced
		}
	}
	return fmt.Errorf("%w: SSHHost %s has it too", ErrClaimRaced, others[0].Name)
}

// giveBack ends a claim that has changed nothing on its machine. ErrFenced: it has, or is over.
func (i *Inventory) giveBack(ctx context.Context, name string, uid types.UID) error {
	_, err := i.Update(ctx, name, func(h *v1beta1.SSHHost) error {
		if h.Status.State != v1beta1.HostClaimed || h.Status.ClaimRef == nil || h.Status.ClaimRef.UID != uid || Touched(h) {
			return ErrFenced
		}
		MarkReleased(h, Release{State: v1beta1.HostAvailable}, i.clock.Now())
		return nil
	})
	return err
}

// settle answers a repeated Claim from what the NodeClaim holds.
func settle(held []v1beta1.SSHHost) (*v1beta1.SSHHost, error) {
	if len(held) > 1 {
		return nil, fmt.Errorf("%w: it holds %d hosts", ErrClaimRaced, len(held))
	}
	if held[0].Status.State == v1beta1.HostLeaving {
		return nil, fmt.Errorf("%w: %s", ErrEnding, held[0].Name)
	}
	return &held[0], nil
}

// heldBy reads from the API server which hosts a NodeClaim UID holds. The server filters, so the answer is small.
func (i *Inventory) heldBy(ctx context.Context, uid types.UID) ([]v1beta1.SSHHost, error) {
	if uid == "" {
		return nil, errors.New("a NodeClaim without a UID cannot claim a host")
	}
	list := &v1beta1.SSHHostList{}
	err := i.live.List(ctx, list, client.InNamespace(i.namespace), client.MatchingFieldsSelector{
		Selector: fields.OneTermEqualSelector("status.claimRef.uid", string(uid)),
	})
	if err != nil {
		return nil, fmt.Errorf("reading which SSHHosts NodeClaim UID %s holds: %w", uid, err)
	}
	for index := range list.Items {
		i.Observe(&list.Items[index])
	}
	return list.Items, nil
}

// HeldBy is the host that a NodeClaim UID holds, from the API server; nil if none.
func (i *Inventory) HeldBy(ctx context.Context, uid types.UID) (*v1beta1.SSHHost, error) {
	held, err := i.heldBy(ctx, uid)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	return &held[0], nil
}

// BeginLeave ends a NodeClaim's use of a host. It is idempotent. ErrFenced: the host is held by somebody else, or by nobody.
func (i *Inventory) BeginLeave(ctx context.Context, name string, uid types.UID, nodeClaim string) error {
	_, err := i.Update(ctx, name, func(h *v1beta1.SSHHost) error {
		if !h.ClaimedBy(nodeClaim, uid) {
			return ErrFenced
		}
		if h.Status.State != v1beta1.HostLeaving {
			MarkLeaving(h)
		}
		return nil
	})
	return err
}

func (i *Inventory) reserve(name string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if h := i.hosts[name]; h != nil {
		if ok, _ := Claimable(h); !ok {
			return false
		}
	}
	if _, busy := i.reserved[name]; busy {
		return false
	}
	i.reserved[name] = struct{}{}
	return true
}

func (i *Inventory) unreserve(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.reserved, name)
}
