package host

import "sync"

// keyed is a set of mutexes by name, each there only while somebody holds or awaits it.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*waited
}

type waited struct {
	sync.Mutex
	users int
}

// lock locks a name and returns its unlock.
func (k *keyed) lock(name string) func() {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*waited{}
	}
	l := k.locks[name]
	if l == nil {
		l = &waited{}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
	}
}
