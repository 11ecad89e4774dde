// Package apiserver runs etcd and kube-apiserver, and nothing else, for the tests of one package. Tests that need a scheduler, controllers, an
// audit log or machines want package lab.
package apiserver

import (
	"errors"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Option changes what is started.
type Option func(*envtest.Environment) error

// CRDs installs this project's kinds, from the working tree, and karpenter's.
func CRDs(env *envtest.Environment) error { return add(env, lab.CRDs) }

// OwnCRDs installs this project's kinds only.
func OwnCRDs(env *envtest.Environment) error { return add(env, lab.OwnCRDs) }

// Flag sets a flag of kube-apiserver.
func Flag(name, value string) Option {
	return func(env *envtest.Environment) error {
		env.ControlPlane.GetAPIServer().Configure().Append(name, value)
		return nil
	}
}

func add(env *envtest.Environment, read func() ([]*apiextensionsv1.CustomResourceDefinition, error)) error {
	crds, err := read()
	env.CRDs = append(env.CRDs, crds...)
	return err
}

// Run starts them. The caller stops what it is given.
func Run(options ...Option) (*envtest.Environment, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errors.New("KUBEBUILDER_ASSETS must name a directory with etcd and kube-apiserver: run this with `make test`, which builds them")
	}
	env := &envtest.Environment{ControlPlaneStartTimeout: 3 * time.Minute, ControlPlaneStopTimeout: time.Minute} // busy machines take their time
	for _, option := range options {
		if err := option(env); err != nil {
			return nil, err
		}
	}
	_, err := env.Start()
	return env, err
}

// Start starts them for one test, and gives the configuration of an administrator.
func Start(t testing.TB, options ...Option) *rest.Config {
	t.Helper()
	return StartEnvironment(t, options...).Config
}

// StartEnvironment is Start for tests that need more than the configuration.
func StartEnvironment(t testing.TB, options ...Option) *envtest.Environment {
	t.Helper()
	env, err := Run(options...)
	if err != nil {
		t.Fatalf("starting the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	return env
}
