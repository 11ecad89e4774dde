package integration

import (
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// eventually polls until until is true, and says what was awaited if it never is.
func (s *scenario) eventually(within time.Duration, what string, until func() (bool, string)) time.Duration {
	s.t.Helper()
	began := time.Now()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		done, seen := until()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > within {
			s.t.Fatalf("waited %s in vain until %s; last seen: %s", within, what, seen)
		}
		select {
		case <-ticker.C:
		case <-s.done():
			s.t.Fatalf("the controller ended while waiting until %s: %v", what, s.controller.Err())
		}
	}
}

// throughout looks again and again for a while, so that what must not happen has its chance.
func (s *scenario) throughout(length time.Duration, look func()) {
	s.t.Helper()
	began := time.Now()
	s.eventually(length+time.Minute, fmt.Sprintf("%s were over", length), func() (bool, string) {
		look()
		return time.Since(began) > length, ""
	})
}

func (s *scenario) hosts() []v1beta1.SSHHost {
	s.t.Helper()
	list := &v1beta1.SSHHostList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(s.namespace), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

func (s *scenario) pods() []corev1.Pod {
	s.t.Helper()
	list := &corev1.PodList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(corev1.NamespaceDefault), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// claims are the NodeClaims of the scenario's pool.
func (s *scenario) claims() []karpv1.NodeClaim { s.t.Helper(); return s.claimsOf(s.name) }

func (s *scenario) claimsOf(pool string) []karpv1.NodeClaim {
	s.t.Helper()
	list := &karpv1.NodeClaimList{}
	if err := s.api.List(s.t.Context(), list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// nodes are those of the scenario's pool.
func (s *scenario) nodes() []corev1.Node {
	s.t.Helper()
	list := &corev1.NodeList{}
	if err := s.api.List(s.t.Context(), list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name}); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// running awaits n running pods of the scenario.
func (s *scenario) running(n int, within time.Duration) time.Duration {
	s.t.Helper()
	return s.eventually(within, fmt.Sprintf("%d pods run", n), func() (bool, string) {
		count, why := 0, ""
		for _, p := range s.pods() {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp.IsZero() {
				count++
			} else if len(p.Status.Conditions) > 0 {
				why = fmt.Sprintf("; %s: %s", p.Name, p.Status.Conditions[0].Message)
			}
		}
		return count >= n, fmt.Sprintf("%d run; hosts %v%s", count, s.states(), why)
	})
}

func (s *scenario) states() map[v1beta1.HostState]int {
	counts := map[v1beta1.HostState]int{}
	for _, h := range s.hosts() {
		counts[h.Status.State]++
	}
	return counts
}

// allIn awaits that every host of the scenario is in a state.
func (s *scenario) allIn(state v1beta1.HostState, within time.Duration) time.Duration {
	s.t.Helper()
	return s.eventually(within, fmt.Sprintf("every host is %s", state), func() (bool, string) {
		states := s.states()
		return states[state] == len(s.hosts()), fmt.Sprint(states)
	})
}

func (s *scenario) deletePods() {
	s.t.Helper()
	if err := s.api.DeleteAllOf(s.t.Context(), &corev1.Pod{}, client.InNamespace(corev1.NamespaceDefault), client.MatchingLabels{hostLabel: s.name}); err != nil {
		s.t.Fatal(err)
	}
}

// deleteClaims ends the nodes as a person would, without consolidation's wait.
func (s *scenario) deleteClaims() {
	s.t.Helper()
	s.deletePods()
	if err := s.api.DeleteAllOf(s.t.Context(), &karpv1.NodeClaim{}, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name}); err != nil {
		s.t.Fatal(err)
	}
}

// tokens counts the bootstrap tokens in the cluster.
func (s *scenario) tokens() int {
	s.t.Helper()
	list := &corev1.SecretList{}
	if err := s.api.List(s.t.Context(), list, client.InNamespace(metav1.NamespaceSystem), client.MatchingFields{"type": string(corev1.SecretTypeBootstrapToken)}); err != nil {
		s.t.Fatal(err)
	}
	return len(list.Items)
}

// writes counts the writes of the scenario's instance since the scenario began, by verb and resource.
func (s *scenario) writes() map[string]int {
	s.t.Helper()
	audit, err := s.cp.ReadAudit()
	if err != nil {
		s.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, e := range audit {
		if e.User.Username != s.user() || !e.Write() || e.Time.Before(s.began) {
			continue
		}
		counts[e.Verb+" "+filepath.Join(e.Object.Resource, e.Object.Subresource)]++
	}
	return counts
}

// keyIn is an object's key; the namespace is empty for what has none.
func keyIn(namespace, name string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: name}
}

func objectMeta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
