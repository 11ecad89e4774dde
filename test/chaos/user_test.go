package chaos

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
)

// misfortune is the random part of a history: a user who edits, weather, and breakdowns.
func (w *world) misfortune(steps int) {
	acts := []struct {
		weight int
		name   string
		do     func(d *die)
	}{
		{12, "create class", w.createClass},
		{8, "delete class", w.deleteClass},
		{6, "move pool", w.movePool},
		{8, "demand", func(d *die) { w.want("p"+number(d.n(poolCount)), d.n(4)) }},
		{3, "delete claim", func(d *die) { w.deleteAny(d, kindClaim) }},
		{2, "delete node", func(d *die) { w.deleteAny(d, kindNode) }},
		{2, "delete host", func(d *die) { w.deleteAny(d, kindHost) }},
		{4, "create host", w.createHost},
		{2, "maintenance", w.maintain},
		{4, "kill", func(d *die) { w.hit(d, (*process).die) }},
		{6, "kill at a write", func(d *die) { w.hit(d, func(p *process) { p.light(1 + d.n(12)) }) }},
		{5, "pause", func(d *die) { w.pauseOne(d) }},
		{4, "cut watches", func(d *die) { w.hit(d, (*process).cutWatches) }},
		{8, "lag", func(d *die) {
			w.change(d, func(x *weather) {
				x.lag = d.upTo([]time.Duration{0, time.Second, 10 * time.Second, 30 * time.Second}[d.n(4)] + 1)
			})
		}},
		{4, "slow API", func(d *die) {
			w.change(d, func(x *weather) {
				x.slow = []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second}[d.n(3)]
			})
		}},
		{4, "API errors", func(d *die) {
			w.change(d, func(x *weather) { x.refuse, x.lose = d.unit()*0.3*float64(d.n(2)), d.unit()*0.3*float64(d.n(2)) })
		}},
		{2, "API down", func(d *die) { w.change(d, func(x *weather) { x.down = !x.down }) }},
		{3, "segment", func(d *die) { w.change(d, func(x *weather) { x.cut = !x.cut }) }},
		{3, "power", func(d *die) { m := w.anyMachine(d); up, _, _ := m.state(); m.power(!up) }},
		{3, "reboot", func(d *die) {
			m := w.anyMachine(d)
			m.power(false)
			w.sleep(d.upTo(20 * time.Second))
			m.power(true)
		}},
		{3, "scripts fail", func(d *die) {
			m := w.anyMachine(d)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.fails = []float64{0, 0.3, 0.9}[d.n(3)]
		}},
		{2, "clear up", func(*die) { w.clearUp() }},
	}
	total := 0
	for _, a := range acts {
		total += a.weight
	}
	for step := range steps {
		d := w.dice.roll("step" + number(step))
		w.sleep(d.upTo(d.upTo(40 * time.Second)))
		n := d.n(total)
		for _, a := range acts {
			if n -= a.weight; n < 0 {
				w.rules.trace("user: %s", a.name)
				a.do(d)
				break
			}
		}
		w.rules.steps.Add(1)
	}
}

func (w *world) want(pool string, nodes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.demand[pool] = nodes
}

func (w *world) change(d *die, edit func(*weather)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := pick(d, w.instances).id.Instance
	x := w.weathers[name]
	edit(&x)
	w.weathers[name] = x
	w.rules.trace("  weather of %s: %+v", name, x)
}

func (w *world) clearUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.weathers {
		w.weathers[name] = fair
	}
}

func (w *world) anyMachine(d *die) *machine {
	var all []string
	for address := range w.machines {
		all = append(all, address)
	}
	slices.Sort(all)
	return w.machines[pick(d, all)]
}

func (w *world) hit(d *die, do func(*process)) {
	if alive := w.alive(pick(d, w.instances)); len(alive) > 0 {
		p := pick(d, alive)
		was := p.isDead()
		do(p)
		if p.isDead() && !was {
			w.rules.kills.Add(1)
		}
		w.rules.trace("  %s", p.name)
	}
}

func (p *process) light(writes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fuse = writes
}

func (w *world) pauseOne(d *die) {
	inst := pick(d, w.instances)
	alive := w.alive(inst)
	if len(alive) == 0 {
		return
	}
	p := alive[len(alive)-1]
	p.pause()
	w.rules.pauses.Add(1)
	w.rules.trace("  %s", p.name)
	long := d.upTo(time.Minute)
	go func() {
		w.sleep(long)
		if !p.isDead() && p.isPaused() {
			w.rules.trace("%s goes on", p.name)
			w.wake(inst, p)
		}
	}()
}

func (w *world) createClass(d *die) {
	i, instance := d.n(classCount), d.n(len(w.instances))
	w.create(w.class(i, instance))
}

func (w *world) deleteClass(d *die) {
	name := "c" + number(d.n(classCount))
	_ = w.api.delete(w.write("delete"), key{kind: kindClass, name: name}, nil)
	if d.chance(0.7) {
		w.emptyClass(name)
	}
}

// emptyClass deletes the claims that hold a class that goes, as its status asks a person to.
func (w *world) emptyClass(name string) {
	for _, o := range w.api.list(kindClaim) {
		if o.(*karpv1.NodeClaim).Spec.NodeClassRef.Name == name {
			_ = w.api.delete(w.write("delete"), keyOf(o), nil)
		}
	}
}

func (w *world) movePool(d *die) {
	_, _ = w.api.patch(w.write("patch"), key{kind: kindPool, name: "p" + number(d.n(poolCount))}, false,
		fmt.Appendf(nil, `{"spec":{"template":{"spec":{"nodeClassRef":{"name":"c%d"}}}}}`, d.n(classCount)))
}

func (w *world) deleteAny(d *die, kind string) {
	if all := w.api.list(kind); len(all) > 0 {
		_ = w.api.delete(w.write("delete"), keyOf(pick(d, all)), nil)
	}
}

// createHost lists a machine: one that is in no inventory or, by mistake, one of another segment that is in one already.
func (w *world) createHost(d *die) {
	i, j := d.n(len(w.instances)), d.n(4)
	at := address(i, j)
	if d.chance(0.4) {
		at, j = w.anyMachine(d).address, 4+d.n(3)
	}
	if w.machines[at] != nil {
		w.create(w.host(i, j, at))
	}
}

func (w *world) maintain(d *die) {
	if all := w.api.list(kindHost); len(all) > 0 {
		value := `""`
		if d.chance(0.5) {
			value = "null"
		}
		_, _ = w.api.patch(w.write("patch"), keyOf(pick(d, all)), false, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1beta1.MaintenanceAnnotation, value))
	}
}

// heal ends all faults.
func (w *world) heal() {
	w.rules.trace("faults end")
	w.clearUp()
	for _, m := range w.machines {
		m.power(true)
		m.mu.Lock()
		m.fails = 0
		m.mu.Unlock()
	}
	for _, inst := range w.instances {
		for _, p := range w.alive(inst) {
			p.light(0)
			if p.isPaused() {
				w.wake(inst, p)
			}
		}
	}
	for _, o := range w.api.list(kindHost) {
		_, _ = w.api.patch(w.write("patch"), keyOf(o), false, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, v1beta1.MaintenanceAnnotation))
	}
}

// mend does what only a person can: it makes classes that pools name, empties classes that are to go, lets machines be taken over whose
// owner is gone, and deletes the Nodes that are nobody's, because their class and their machine are of two instances.
func (w *world) mend() {
	for _, o := range w.api.list(kindNode) {
		node := o.(*corev1.Node)
		class, err := w.api.get(key{kind: kindClass, name: node.Labels[ownership.ClassLabel]})
		if err == nil && class.(*v1beta1.SSHNodeClass).Spec.Instance != w.rules.idOwner(node.Spec.ProviderID) {
			_, _ = w.api.patch(w.write("patch"), keyOf(node), false, []byte(`{"metadata":{"finalizers":null}}`))
			_ = w.api.delete(w.write("delete"), keyOf(node), nil)
		}
	}
	d := w.dice.roll("mend")
	for _, o := range w.api.list(kindPool) {
		name := o.(*karpv1.NodePool).Spec.Template.Spec.NodeClassRef.Name
		if _, err := w.api.get(key{kind: kindClass, name: name}); err != nil {
			var i int
			_, _ = fmt.Sscanf(name, "c%d", &i)
			w.create(w.class(i, d.n(len(w.instances))))
		}
	}
	for _, o := range w.api.list(kindClass) {
		if o.GetDeletionTimestamp() != nil {
			w.emptyClass(o.GetName())
		}
	}
	uids := map[string]bool{}
	hosts := w.api.list(kindHost)
	for _, o := range hosts {
		uids[string(o.GetUID())] = true
	}
	for _, o := range hosts {
		m := w.machines[o.(*v1beta1.SSHHost).Spec.Address]
		m.mu.Lock()
		quote := ""
		if m.owner != nil && !uids[m.owner.Host] {
			quote = m.owner.String()
		}
		m.mu.Unlock()
		if quote != "" && o.GetAnnotations()[v1beta1.TakeOverAnnotation] != quote {
			_, _ = w.api.patch(w.write("patch"), keyOf(o), false, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.TakeOverAnnotation, quote))
		}
	}
}
