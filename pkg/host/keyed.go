package host

import "sync"

// keyed is a set of locks by name, each there only while somebody holds or awaits it. They are channels and not mutexes, because they are
// held during requests: in a testing/synctest bubble, time stands still while anybody waits for a mutex.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*awaited
}

type awaited struct {
	free  chan struct{} // holds one token while nobody has the lock
	users int
}

// lock locks a name and returns its unlock.
func (k *keyed) lock(name string) func() {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*awaited{}
	}
	l := k.locks[name]
	if l == nil {
		l = &awaited{free: make(chan struct{}, 1)}
		l.free <- struct{}{}
		k.locks[name] = l
	}
	l.users++
	k.mu.Unlock()
	<-l.free
	return func() {
		l.free <- struct{}{}
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, name)
		}
	}
}
