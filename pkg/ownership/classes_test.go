package ownership

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// The server is asked for own classes only; a class without spec.instance is the default instance's.
func TestClassesAreThoseOfTheInstance(t *testing.T) {
	cfg := apiServer(t)
	live := api(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	must(t, live.Create(ctx, class("before", "a")))
	must(t, live.Create(ctx, class("of-b", "b")))
	must(t, live.Create(ctx, class("unnamed", "")))

	a := startClasses(t, cfg, me)
	byDefault := startClasses(t, cfg, Identity{Instance: "default", PoolNamespace: "kpssh-system"})
	if !a.Mine("before") || a.Mine("of-b") || a.Mine("unnamed") || a.Mine("") {
		t.Errorf("a has %v on return", a.Snapshot().Names())
	}
	if !byDefault.Mine("unnamed") || len(byDefault.Snapshot().Names()) != 1 {
		t.Errorf("default has %v on return", byDefault.Snapshot().Names())
	}
	must(t, live.Create(ctx, class("after", "a")))
	must(t, untilMine(ctx, a, "before", "after"))
	must(t, live.Delete(ctx, class("before", "a")))
	must(t, untilMine(ctx, a, "after"))
	must(t, live.Delete(ctx, class("after", "a"))) // and another instance takes the name
	must(t, live.Create(ctx, class("after", "b")))
	must(t, untilMine(ctx, a))
}

func TestStartSaysWhatIsWrongWithTheCluster(t *testing.T) {
	cfg := apiServer(t)
	if _, err := Start(t.Context(), cfg, Identity{Instance: "A", PoolNamespace: "x"}); !fault.Is(err, fault.Configuration) {
		t.Errorf("invalid identity: got %v", err)
	}
	nobody := rest.AnonymousClientConfig(cfg)
	_, err := Start(t.Context(), nobody, me)
	expectFault(t, err, "ClassesForbidden")

	unreachable := rest.CopyConfig(cfg)
	unreachable.Host = "https://127.0.0.1:1"
	if _, err = Start(t.Context(), unreachable, me); !fault.Is(err, fault.Cluster) {
		t.Errorf("unreachable API server: got %v, want a fault of the cluster", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = Start(ended, cfg, me); !fault.Is(err, fault.Cluster) {
		t.Errorf("cancelled: got %v, want a fault of the cluster", err)
	}
}

// An older CRD does not know the selectable field. Without it the set would hold every instance's classes, so there must be none.
func TestStartRefusesACRDWithoutTheSelectableField(t *testing.T) {
	cfg := apiServer(t)
	live := api(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("sshnodeclasses.karpenter.dklesev.github.io")
	replaceFields := func(fields string) {
		t.Helper()
		patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/versions/0/selectableFields","value":%s}]`, fields)
		must(t, live.Patch(context.WithoutCancel(ctx), crd, client.RawPatch(types.JSONPatchType, patch)))
	}
	replaceFields(`[]`)
	t.Cleanup(func() { replaceFields(`[{"jsonPath":".spec.instance"}]`) }) // other tests share the API server
	must(t, untilSelectable(ctx, live, false))
	if _, err := Start(ctx, cfg, me); !fault.Is(err, fault.Configuration) || fault.Of(err).Reason != "CRDOutdated" {
		t.Errorf("with the old CRD: %v", err)
	}
	replaceFields(`[{"jsonPath":".spec.instance"}]`)
	must(t, untilSelectable(ctx, live, true))
	if _, err := Start(ctx, cfg, me); err != nil {
		t.Errorf("with the new CRD: %v", err)
	}
}

// untilSelectable waits until the API server selects classes by instance, or refuses to. It tells nobody when it has taken over a CRD.
func untilSelectable(ctx context.Context, live client.Client, want bool) error {
	return wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := live.List(ctx, &v1beta1.SSHNodeClassList{}, client.MatchingFields{instanceField: me.Instance})
		return (err == nil) == want, nil
	})
}
