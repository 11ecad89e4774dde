package chaos

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

const clusterUID = "cluster"

// lease is how long a process may be silent before another one takes its place, and grace how much longer the first may work when it
// comes back before it notices.
const (
	lease = 15 * time.Second
	grace = 8 * time.Second
)

// weather is what an instance has to endure.
type weather struct {
	slow   time.Duration // longest way of a request, and of its answer
	lag    time.Duration // longest delay of an event
	refuse float64       // share of requests that fail
	lose   float64       // share of writes whose answer is lost
	down   bool          // the API server cannot be reached
	cut    bool          // the segment's machines cannot be reached
}

var fair = weather{slow: 20 * time.Millisecond}

// instance is an installation; at any time one of its processes leads, and a second one may believe to.
type instance struct {
	id    ownership.Identity
	procs []*process
	begun int
}

type world struct {
	dice     *dice
	api      *api
	rules    *rules
	sabotage sabotage
	profile  *v1beta1.SSHJoinProfile
	machines map[string]*machine // by address
	kubelets *caller
	users    *caller
	closed   chan struct{}

	mu        sync.Mutex
	instances []*instance
	weathers  map[string]weather
	demand    map[string]int
}

func (w *world) weatherOf(instance string) weather {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.weathers[instance]
}

func (w *world) demandOf(pool string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.demand[pool]
}

// sleep returns false if the world ended.
func (w *world) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.closed:
		return false
	}
}

func namespace(i int) string { return "seg-" + number(i) }
func address(i, j int) string {
	return fmt.Sprintf("10.0.%d.%d", i, j)
}

const (
	classCount = 4
	poolCount  = 4
)

func newWorld(t *testing.T, seed uint64, s sabotage) *world {
	w := &world{
		dice: newDice(seed), api: newAPI(), sabotage: s, machines: map[string]*machine{}, closed: make(chan struct{}),
		kubelets: &caller{name: "kubelet"}, users: &caller{name: "user"},
		weathers: map[string]weather{}, demand: map[string]int{},
		profile: &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-p"}, Spec: v1beta1.SSHJoinProfileSpec{
			Version: "1", Scripts: v1beta1.Scripts{Install: "echo install", Join: "echo join", Leave: "echo leave"},
		}},
	}
	w.rules = newRules(t, w)
	w.api.written = w.rules.written
	w.api.blind = s == blind
	d := w.dice.roll("world")
	for i := range 2 + d.n(3) {
		inst := &instance{id: ownership.Identity{Instance: "i" + number(i), PoolNamespace: namespace(i)}}
		w.instances = append(w.instances, inst)
		w.profile.Finalizers = append(w.profile.Finalizers, v1beta1.InstalledFinalizer(inst.id.Instance)) // nobody deletes it here
		w.weathers[inst.id.Instance] = fair
		w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "key"}, Data: map[string][]byte{"privateKey": loginKey}})
		for j := range 2 + d.n(3) {
			w.machines[address(i, j)] = newMachine(w, address(i, j))
			w.create(w.host(i, j, address(i, j)))
		}
	}
	for i := range classCount {
		w.create(w.class(i, d.n(len(w.instances))))
	}
	for i := range poolCount {
		w.create(&karpv1.NodePool{
			ObjectMeta: metav1.ObjectMeta{Name: "p" + number(i)},
			Spec: karpv1.NodePoolSpec{Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
				NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: ownership.ClassKind, Name: "c" + number(d.n(classCount))},
			}}},
		})
		w.demand["p"+number(i)] = d.n(3)
	}
	for _, inst := range w.instances {
		go w.supervise(inst)
	}
	go w.nodeLifecycle()
	return w
}

func (w *world) write(verb string) write { return write{by: w.users, verb: verb, knew: nobody} }

func (w *world) create(o client.Object) { _, _ = w.api.create(w.write("create"), o) }

func (w *world) class(i, instance int) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "c" + number(i)}, Spec: v1beta1.SSHNodeClassSpec{
		Instance: w.instances[instance].id.Instance, JoinProfileRef: v1beta1.ProfileReference{Name: "p"},
		ProviderIDSource: v1beta1.ProviderIDStatic, PricePerCPUHour: "0.02",
		Cluster: &v1beta1.ClusterSpec{Endpoint: "https://192.0.2.1:6443", CABundle: authority},
	}}
}

func (w *world) host(i, j int, address string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: "h" + number(i) + "-" + number(j)},
		Spec: v1beta1.SSHHostSpec{
			Address: address, Port: 22, User: "root", SSHKeySecretRef: v1beta1.SecretReference{Name: "key"},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4"), corev1.ResourceMemory: apiresource.MustParse("8Gi")},
		},
	}
}

// supervise is the Deployment and the lease: there is always a process that leads, and never for long two.
func (w *world) supervise(inst *instance) {
	d := w.dice.roll("supervise" + inst.id.Instance)
	for {
		alive := w.alive(inst)
		if len(alive) == 0 || len(alive) == 1 && alive[0].overdue() {
			w.launch(inst)
		}
		if !w.sleep(d.between(time.Second, 5*time.Second)) {
			return
		}
	}
}

func (w *world) alive(inst *instance) []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var alive []*process
	for _, p := range inst.procs {
		if !p.isDead() {
			alive = append(alive, p)
		}
	}
	return alive
}

func (p *process) overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused != nil && time.Since(p.since) > lease
}

func (w *world) launch(inst *instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	inst.begun++
	p := &process{w: w, id: inst.id, name: inst.id.Instance + "." + number(inst.begun), dead: make(chan struct{}), cut: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	inst.procs = append(inst.procs, p)
	w.rules.trace("process %s begins", p.name)
	p.gone.Add(1)
	go p.run()
}

// wake lets a paused process go on. If another one has taken its place, it soon notices.
func (w *world) wake(inst *instance, p *process) {
	p.resume()
	if alive := w.alive(inst); alive[len(alive)-1] != p {
		wait := w.dice.roll("grace" + p.name).upTo(grace)
		go func() {
			w.sleep(wait)
			p.die()
		}()
	}
}

// nodeLifecycle is kube-controller-manager: it says which Nodes' kubelets are not heard of any more.
func (w *world) nodeLifecycle() {
	for w.sleep(20 * time.Second) {
		heard := map[string]bool{}
		for _, m := range w.machines {
			m.mu.Lock()
			if m.up && m.kubelet != nil {
				heard[m.kubelet.node] = true
			}
			m.mu.Unlock()
		}
		for _, o := range w.api.list(kindNode) {
			node := o.(*corev1.Node)
			if heard[node.Name] != isReady(node) {
				status := map[bool]string{true: "True", false: "Unknown"}[heard[node.Name]]
				_, _ = w.api.patch(write{by: w.kubelets, verb: "patch status", knew: nobody}, keyOf(node), true,
					fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status))
			}
		}
	}
}

// end ends everything, so that no goroutine is left.
func (w *world) end() {
	close(w.closed)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, inst := range w.instances {
		for _, p := range inst.procs {
			p.die()
		}
	}
}
