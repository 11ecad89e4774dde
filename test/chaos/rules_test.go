package chaos

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// rules watches the history for breaches.
type rules struct {
	t       *testing.T
	w       *world
	began0  time.Time
	verbose bool

	steps, writes, sessions, kills, pauses, moves, collected, late, doubled atomic.Int64

	mu       sync.Mutex
	breaches []string
	running  map[*machine][]*session
	joined   map[*machine]*session // the last join that began
	owners   map[string]string     // of class names, ever
	claimers map[types.UID]string  // who wrote the last claim of a host
	orphans  map[types.UID]bool    // claims that were asked for by somebody who did not know that their class was gone
}

// session is one mutating phase that got past the machine's fence.
type session struct {
	machine  *machine
	process  string
	phase    string
	owner    ssh.Owner
	finished bool
}

func newRules(t *testing.T, w *world) *rules {
	return &rules{t: t, w: w, began0: time.Now(), verbose: verbose, running: map[*machine][]*session{}, joined: map[*machine]*session{}, owners: map[string]string{}, claimers: map[types.UID]string{}, orphans: map[types.UID]bool{}}
}

func (r *rules) trace(format string, args ...any) {
	if r.verbose {
		r.t.Logf("%9.3f %s", time.Since(r.began0).Seconds(), fmt.Sprintf(format, args...))
	}
}

// breach must be called with mu held.
func (r *rules) breach(format string, args ...any) {
	text := fmt.Sprintf("%.3fs: ", time.Since(r.began0).Seconds()) + fmt.Sprintf(format, args...)
	r.breaches = append(r.breaches, text)
	r.trace("BREACH %s", text)
}

// anybody is the owner of what has none and may be written by all.
const anybody = "*"

// classOwner is the instance that owns a class by the server's present state; empty if the class does not exist. The API is locked.
func (r *rules) classOwner(name string) string {
	if class, ok := r.w.api.objects[key{kind: kindClass, name: name}].(*v1beta1.SSHNodeClass); ok {
		return class.Spec.Instance
	}
	return ""
}

func (r *rules) namespaceOwner(namespace string) string {
	for _, inst := range r.w.instances {
		if inst.id.PoolNamespace == namespace {
			return inst.id.Instance
		}
	}
	return ""
}

func (r *rules) idOwner(providerID string) string {
	space, _, _ := strings.Cut(strings.TrimPrefix(providerID, v1beta1.ProviderIDScheme), "/")
	return r.namespaceOwner(space)
}

// ownerOf says whose an object is by the server's state, and by which class, if one decides.
func (r *rules) ownerOf(o client.Object) (owner, class string) {
	switch o := o.(type) {
	case *v1beta1.SSHNodeClass:
		return o.Spec.Instance, ""
	case *v1beta1.SSHHost:
		return r.namespaceOwner(o.Namespace), ""
	case *karpv1.NodePool:
		class = o.Spec.Template.Spec.NodeClassRef.Name
		return r.classOwner(class), class
	case *karpv1.NodeClaim:
		class = o.Spec.NodeClassRef.Name
		owner = r.classOwner(class)
		if o.Status.ProviderID != "" && r.idOwner(o.Status.ProviderID) != owner {
			owner = ""
		}
		return owner, class
	case *corev1.Node:
		class, labelled := o.Labels[ownership.ClassLabel]
		if !labelled {
			return r.idOwner(o.Spec.ProviderID), ""
		}
		owner = r.classOwner(class)
		switch id := r.idOwner(o.Spec.ProviderID); {
		case owner == "":
			owner = id // a class that is gone makes nobody the owner; the machine still is somebody's
		case id != owner:
			owner = ""
		}
		return owner, class
	}
	return anybody, ""
}

// written judges one write (S1, S2, S5, S6). The API is locked.
//
// S6: the owner is judged by the server's state just before the write (for a creation, by the new object). One case is excused: the class
// decides, it has been deleted, or made again for another instance, or a NodePool was pointed at another class, and the writer had not been
// told so when it sent the request. No instance can know better than its watches. Such writes are counted as late. That a finalizer was
// taken off is never excused.
func (r *rules) written(w write) {
	r.writes.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	o := w.before
	if o == nil {
		o = w.after
	}
	if r.verbose {
		r.trace("%s: %s %s %s/%s%s", w.by.title(), w.verb, w.kind, o.GetNamespace(), o.GetName(), gist(w.after))
	}
	if p := w.by.proc; p != nil {
		owner, class := r.ownerOf(o)
		foreign := owner != anybody && owner != p.id.Instance
		stripped := w.before != nil && (w.after == nil && len(w.before.GetFinalizers()) > 0 || w.after != nil && len(w.after.GetFinalizers()) < len(w.before.GetFinalizers()))
		switch {
		case foreign && stripped:
			r.breach("S5: %s took a finalizer off %s %s, which is %q's", p.name, w.kind, o.GetName(), owner)
		case foreign && class != "" && w.knew(class):
			r.late.Add(1)
			if w.kind == kindClaim && w.before == nil {
				r.orphans[w.after.GetUID()] = true
			}
		case foreign:
			r.breach("S6: %s did %s on %s %s, which is %q's", p.name, w.verb, w.kind, o.GetName(), owner)
		}
	}
	switch w.kind {
	case kindClass:
		if class, ok := w.after.(*v1beta1.SSHNodeClass); ok && w.before == nil {
			if was := r.owners[class.Name]; was != "" && was != class.Spec.Instance {
				r.moves.Add(1)
			}
			r.owners[class.Name] = class.Spec.Instance
		}
	case kindHost:
		r.claims(w)
	}
}

func (r *rules) claims(w write) {
	was, _ := w.before.(*v1beta1.SSHHost)
	is, _ := w.after.(*v1beta1.SSHHost)
	if is == nil {
		return
	}
	if was != nil && was.Status.ClaimRef != nil && is.Status.ClaimRef != nil && was.Status.ClaimRef.UID != is.Status.ClaimRef.UID {
		r.breach("S1: %s gave host %s from claim %s to %s", w.by.title(), is.Name, was.Status.ClaimRef.UID, is.Status.ClaimRef.UID)
	}
	m := r.w.machines[is.Spec.Address]
	m.mu.Lock()
	member := m.kubelet != nil && m.kubelet.host == string(is.UID)
	m.mu.Unlock()
	if was != nil && was.Status.ClaimRef != nil && claimable(is) && member {
		r.breach("S1: %s freed host %s of claim %s while its kubelet runs", w.by.title(), is.Name, was.Status.ClaimRef.UID)
	}
	if is.Status.ClaimRef == nil || was != nil && was.Status.ClaimRef != nil {
		return
	}
	r.claimers[is.UID] = w.by.title()
	for _, o := range r.w.api.listLocked(kindHost) {
		if other := o.(*v1beta1.SSHHost); other.UID != is.UID && other.Status.ClaimRef != nil && other.Status.ClaimRef.UID == is.Status.ClaimRef.UID {
			// Two that both believe to lead may do this: then both give way before either machine joins, see began.
			if by := r.claimers[other.UID]; by == w.by.title() {
				r.breach("S2: %s gave claim %s host %s besides %s", by, is.Status.ClaimRef.UID, is.Name, other.Name)
			}
			r.doubled.Add(1)
		}
	}
}

// began judges the start of a mutating phase (S1, S3, S4).
func (r *rules) began(m *machine, p *process, s ssh.Script) *session {
	ran := &session{machine: m, process: p.name, phase: s.Phase, owner: *s.Owner}
	hosts := r.w.api.list(kindHost)
	r.sessions.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace("%s: %s begins on %s for claim %q, epoch %d", p.name, s.Phase, m.address, s.Owner.Claim, s.Owner.Epoch)
	for _, other := range r.running[m] {
		r.breach("S3: %s of %s and %s of %s at once on %s", ran.phase, ran.process, other.phase, other.process, m.address)
	}
	r.running[m] = append(r.running[m], ran)
	if last := r.joined[m]; last != nil && (last.owner.Claim != ran.owner.Claim || last.owner.Host != ran.owner.Host) {
		held := false
		for _, o := range hosts {
			if h := o.(*v1beta1.SSHHost); string(h.UID) == last.owner.Host {
				held = held || h.Status.ClaimRef != nil && string(h.Status.ClaimRef.UID) == last.owner.Claim && host.State(h) != v1beta1.HostLeaving
			}
		}
		older := last.owner.Host == ran.owner.Host && ran.owner.Epoch < last.owner.Epoch
		switch {
		case s.Phase == "leave" && (held || older):
			r.breach("S4: %s leaves %s for claim %q, epoch %d, after %s joined it for claim %q, epoch %d",
				p.name, m.address, ran.owner.Claim, ran.owner.Epoch, last.process, last.owner.Claim, last.owner.Epoch)
		case held:
			r.breach("S1: %s runs %s on %s for claim %q while claim %q holds it", p.name, s.Phase, m.address, ran.owner.Claim, last.owner.Claim)
		}
	}
	if s.Phase == "join" {
		for at, other := range r.joined {
			if at != m && other.owner.Claim == s.Owner.Claim {
				r.breach("S2: %s joins %s for claim %s, for which %s joined %s", p.name, m.address, s.Owner.Claim, other.process, at.address)
			}
		}
		r.joined[m] = ran
	}
	return ran
}

func (r *rules) ended(ran *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace("%s: %s on %s is over", ran.process, ran.phase, ran.machine.address)
	left := r.running[ran.machine][:0]
	for _, other := range r.running[ran.machine] {
		if other != ran {
			left = append(left, other)
		}
	}
	r.running[ran.machine] = left
	if ran.finished {
		delete(r.joined, ran.machine)
	}
}

func (c *caller) title() string {
	if c.proc != nil {
		return c.proc.name
	}
	return c.name
}

func (r *rules) orphan(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.orphans[claim]
}

// gist is what matters of an object, for the trace.
func gist(o client.Object) string {
	switch o := o.(type) {
	case nil:
		return " (gone)"
	case *v1beta1.SSHHost:
		claim := ""
		if ref := o.Status.ClaimRef; ref != nil {
			claim = string(ref.UID)
		}
		operation := ""
		if o.Status.Operation != nil {
			operation = string(o.Status.Operation.Type)
		}
		return fmt.Sprintf(" %s claim=%s epoch=%d op=%s %s fin=%d", o.Status.State, claim, o.Status.ClaimEpoch, operation, o.Status.LastProbeError, len(o.Finalizers))
	case *karpv1.NodeClaim:
		return fmt.Sprintf(" %s class=%s id=%s deleting=%t fin=%d", o.UID, o.Spec.NodeClassRef.Name, o.Status.ProviderID, o.DeletionTimestamp != nil, len(o.Finalizers))
	case *karpv1.NodePool:
		return " class=" + o.Spec.Template.Spec.NodeClassRef.Name
	case *v1beta1.SSHNodeClass:
		return fmt.Sprintf(" of %s deleting=%t", o.Spec.Instance, o.DeletionTimestamp != nil)
	case *corev1.Node:
		return fmt.Sprintf(" id=%s deleting=%t fin=%d", o.Spec.ProviderID, o.DeletionTimestamp != nil, len(o.Finalizers))
	}
	return ""
}
