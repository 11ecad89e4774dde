package nodeclass

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// index knows what own classes refer to, so that an event about something else finds the classes it concerns without reading any.
type index struct {
	mu      *sync.Mutex
	entries map[string]references
}

// references of one class.
type references struct {
	// hosts matches the labels of the hosts it selects; nil if the selector does not parse.
	hosts    labels.Selector
	profile  string
	secret   string
	deleting bool
}

func newIndex() index { return index{mu: &sync.Mutex{}, entries: map[string]references{}} }

func (i index) note(class *v1beta1.SSHNodeClass) {
	refs := references{hosts: labels.Everything(), profile: class.Spec.JoinProfileRef.Name, deleting: !class.DeletionTimestamp.IsZero()}
	if class.Spec.HostSelector != nil {
		// An error leaves the selector nil: until it is corrected, no host concerns the class.
		refs.hosts, _ = metav1.LabelSelectorAsSelector(class.Spec.HostSelector)
	}
	if ref := class.Spec.JoinSecretRef; ref != nil {
		refs.secret = ref.Name
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.entries[class.Name] = refs
}

func (i index) forget(class string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.entries, class)
}

// matching lists the classes whose references are concerned.
func (i index) matching(concerned func(class string, r references) bool) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var names []string
	for name, refs := range i.entries {
		if concerned(name, refs) {
			names = append(names, name)
		}
	}
	return names
}
