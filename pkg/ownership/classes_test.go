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
		must(t, live.Patch(ctx, crd, client.RawPatch(types.JSONPatchType, patch)))
	}
	replaceFields(`[]`)
	must(t, untilStart(ctx, cfg, "CRDOutdated"))
	replaceFields(`[{"jsonPath":".spec.instance"}]`)
	must(t, untilStart(ctx, cfg, ""))
}

// untilStart waits until Start returns a fault with this reason, or none. The API server tells nobody when it has taken over a CRD.
func untilStart(ctx context.Context, cfg *rest.Config, reason string) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := Start(ctx, cfg, me)
		if reason == "" {
			return err == nil, nil
		}
		return err != nil && fault.Of(err).Reason == reason, nil
	})
}
