package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// owners remembers who owned which object when, from watches of its own and from nothing that the controller says: the audit log names
// objects, and most are gone when it is read.
type owners struct {
	stop context.CancelFunc

	mu         sync.Mutex
	namespaces map[string]string         // pool namespace to instance
	classes    map[string][]span         // to instances
	objects    map[lab.AuditKey][]span   // of NodePools, NodeClaims and Nodes, to classes
	nodes      map[string]map[string]int // Nodes to the pool namespaces that their provider IDs name
}

// span is a time in which something was so. Times are those of this process's watch, a little after the API server's.
type span struct {
	uid      types.UID
	value    string
	from, to time.Time // to is zero while it lasts
}

// handOver is how far an instance's look at who owns a class may lag behind ours, or ours behind its, when a name changes hands. For
// names that never do, there is no such allowance.
const handOver = 2 * time.Second

// rememberOwners watches until stop.
func rememberOwners(config *rest.Config) (*owners, error) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &owners{stop: cancel, namespaces: map[string]string{}, classes: map[string][]span{}, objects: map[lab.AuditKey][]span{}, nodes: map[string]map[string]int{}}
	watched, err := cache.New(config, cache.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, err
	}
	for _, kind := range []client.Object{&v1beta1.SSHNodeClass{}, &karpv1.NodePool{}, &karpv1.NodeClaim{}, &corev1.Node{}} {
		var informer cache.Informer
		// A CRD is served some time before discovery tells of it.
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			informer, err = watched.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
			if apimeta.IsNoMatchError(err) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return nil, err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: o.seen, UpdateFunc: func(_, now any) { o.seen(now) }, DeleteFunc: o.gone,
		}); err != nil {
			return nil, err
		}
	}
	go func() { _ = watched.Start(ctx) }()
	if !watched.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the owners of objects cannot be watched")
	}
	return o, nil
}

// own records whose a pool namespace is.
func (o *owners) own(namespace, instance string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.namespaces[namespace] = instance
}

func (o *owners) seen(object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1beta1.SSHNodeClass:
		o.classes[object.Name] = observe(o.classes[object.Name], object.UID, object.Spec.Instance)
	case *karpv1.NodePool:
		o.class(keyOf("nodepools", object.Name), object.UID, object.Spec.Template.Spec.NodeClassRef)
	case *karpv1.NodeClaim:
		o.class(keyOf("nodeclaims", object.Name), object.UID, object.Spec.NodeClassRef)
	case *corev1.Node:
		if class, ok := object.Labels[classLabel]; ok {
			o.class(keyOf("nodes", object.Name), object.UID, &karpv1.NodeClassReference{Group: v1beta1.Group, Name: class})
		}
		if rest, ok := strings.CutPrefix(object.Spec.ProviderID, v1beta1.ProviderIDScheme); ok {
			namespace, _, _ := strings.Cut(rest, "/")
			if o.nodes[object.Name] == nil {
				o.nodes[object.Name] = map[string]int{}
			}
			o.nodes[object.Name][namespace]++
		}
	}
}

func (o *owners) class(key lab.AuditKey, uid types.UID, ref *karpv1.NodeClassReference) {
	if ref != nil && ref.Group == v1beta1.Group {
		o.objects[key] = observe(o.objects[key], uid, ref.Name)
	}
}

func (o *owners) gone(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := object.(type) {
	case *v1beta1.SSHNodeClass:
		end(o.classes[object.Name])
	case *karpv1.NodePool:
		end(o.objects[keyOf("nodepools", object.Name)])
	case *karpv1.NodeClaim:
		end(o.objects[keyOf("nodeclaims", object.Name)])
	case *corev1.Node:
		end(o.objects[keyOf("nodes", object.Name)])
	}
}

// observe adds what is so now to a history.
func observe(history []span, uid types.UID, value string) []span {
	if n := len(history); n > 0 && history[n-1].to.IsZero() {
		if history[n-1].uid == uid && history[n-1].value == value {
			return history
		}
		end(history)
	}
	return append(history, span{uid: uid, value: value, from: time.Now()})
}

func end(history []span) {
	if n := len(history); n > 0 && history[n-1].to.IsZero() {
		history[n-1].to = time.Now()
	}
}

// values that a history has had about a moment. One that never changed always had its value: the watch is behind a write's answer.
func values(history []span, at time.Time) []string {
	all := map[string]bool{}
	about := []string{}
	for _, s := range history {
		all[s.value] = true
		if !s.from.After(at.Add(handOver)) && (s.to.IsZero() || !s.to.Before(at.Add(-handOver))) {
			about = append(about, s.value)
		}
	}
	if len(all) == 1 {
		return []string{history[0].value}
	}
	return about
}

// instancesOf are the instances that owned a class about a moment.
func (o *owners) instancesOf(class string, at time.Time) []string {
	return values(o.classes[class], at)
}

// of are the instances that owned an object about a moment; none for what is nobody's.
func (o *owners) of(e lab.AuditEvent) []string {
	key := e.Key()
	switch key.Resource {
	case "sshhosts":
		return []string{o.namespaces[key.Namespace]}
	case "sshnodeclasses":
		return o.instancesOf(key.Name, e.Time)
	}
	classes := values(o.objects[key], e.Time)
	if e.Verb == "create" && e.Claim != nil && e.Claim.Spec.NodeClassRef != nil {
		classes = []string{e.Claim.Spec.NodeClassRef.Name}
	}
	found := []string{}
	for _, class := range classes {
		found = append(found, o.instancesOf(class, e.Time)...)
	}
	if key.Resource == "nodes" && len(classes) == 0 { // one that core has not labelled yet
		for namespace := range o.nodes[key.Name] {
			found = append(found, o.namespaces[namespace])
		}
	}
	return found
}
