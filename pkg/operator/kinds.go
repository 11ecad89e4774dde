package operator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// needed are the kinds without which nothing can start, by API version, as their CRDs name them.
var needed = map[string][]string{
	karpapis.Group + "/v1":        {"nodeclaims", "nodepools"},
	v1beta1.GroupVersion.String(): {"sshhosts", "sshjoinprofiles", "sshnodeclasses"},
}

// looks is how soon missing kinds are looked for again: seldom, in the end, for it takes a person to install them.
var looks = wait.Backoff{Duration: 2 * time.Second, Factor: 1.5, Jitter: 0.1, Steps: 8, Cap: 30 * time.Second}

// awaitKinds returns once the API server has the kinds that an instance works with. CRDs are often applied after the chart; core would panic for
// want of them. Meanwhile it says what is missing, in out and to whoever asks address whether the process is ready, and that it is alive.
func awaitKinds(ctx context.Context, api discovery.ServerResourcesInterface, address string, backoff wait.Backoff, out io.Writer) error {
	missing, err := missingKinds(api)
	if err != nil || len(missing) == 0 {
		return err
	}
	says := func() string {
		return fmt.Sprintf("waiting for CRDs that the cluster does not have: %s. Install chart karpenter-provider-ssh-crd, or run make install", strings.Join(missing, ", "))
	}
	asked := make(chan chan string)
	served, err := answerProbes(ctx, address, func() string {
		answer := make(chan string)
		select {
		case asked <- answer:
			return <-answer
		case <-ctx.Done():
			return ctx.Err().Error()
		}
	})
	if err != nil {
		return err
	}
	defer served()
	fmt.Fprintln(out, "karpenter-provider-ssh:", says())
	for {
		next := time.After(backoff.Step())
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case answer := <-asked:
				answer <- says()
			case <-next:
				waiting = false
			}
		}
		before := says()
		if missing, err = missingKinds(api); err != nil {
			return err
		}
		switch now := says(); {
		case len(missing) == 0:
			fmt.Fprintln(out, "karpenter-provider-ssh: the cluster has all CRDs now")
			return nil
		case now != before:
			fmt.Fprintln(out, "karpenter-provider-ssh:", now)
		}
	}
}

// missingKinds lists what the API server does not have of what is needed, as <plural>.<group>.
func missingKinds(api discovery.ServerResourcesInterface) ([]string, error) {
	var missing []string
	for _, version := range slices.Sorted(maps.Keys(needed)) {
		group, _, _ := strings.Cut(version, "/")
		list, err := api.ServerResourcesForGroupVersion(version)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fault.New(fault.Cluster, "ClusterUnreachable", err, "asking the API server for its kinds")
		}
		for _, name := range needed[version] {
			if list == nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name }) {
				missing = append(missing, name+"."+group)
			}
		}
	}
	return missing, nil
}

// answerProbes serves what a kubelet asks: /healthz is fine, /readyz is not, and says why. The function that it returns ends that, so that core can
// listen on the port.
func answerProbes(ctx context.Context, address string, why func() string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for health probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, why(), http.StatusServiceUnavailable) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // until it is closed
	}()
	return func() { _ = server.Close(); <-done }, nil
}
