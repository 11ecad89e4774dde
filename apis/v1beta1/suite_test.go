package v1beta1_test

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	// Registers the kinds in the global scheme, as the controller does.
	_ "github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// One real API server judges all tests of this package: what it says is what a person reads.
var (
	config *rest.Config
	api    client.Client
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	environment, err := apiserver.Run(apiserver.OwnCRDs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting the API server with the generated CRDs:", err)
		return 1
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		}
	}()
	config = environment.Config
	if api, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		return 1
	}
	return m.Run()
}
