package ownership

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// maxInstanceName leaves room for the prefixes of Lease and token group names; the CRD has the same limit.
const maxInstanceName = 40

// Identity is who this process is: one of any number of instances in the cluster.
type Identity struct {
	// Instance is the name that SSHNodeClass.spec.instance carries: a DNS label of at most 40 characters.
	Instance string
	// PoolNamespace holds this instance's SSHHosts. It belongs to no other instance.
	PoolNamespace string
}

// Validate returns a *fault.Error that blames the configuration when a name could not exist in the cluster.
func (id Identity) Validate() error {
	if problems := validation.IsDNS1123Label(id.Instance); len(problems) > 0 {
		return fault.New(fault.Configuration, "InstanceNameInvalid", nil,
			"instance name %q: set INSTANCE_NAME to a DNS label: %s", id.Instance, strings.Join(problems, "; "))
	}
	if len(id.Instance) > maxInstanceName {
		return fault.New(fault.Configuration, "InstanceNameInvalid", nil,
			"instance name %q has %d characters: set INSTANCE_NAME to at most %d", id.Instance, len(id.Instance), maxInstanceName)
	}
	if problems := validation.IsDNS1123Label(id.PoolNamespace); len(problems) > 0 {
		return fault.New(fault.Configuration, "PoolNamespaceInvalid", nil,
			"pool namespace %q: set POOL_NAMESPACE to the namespace of this instance's SSHHosts: %s", id.PoolNamespace, strings.Join(problems, "; "))
	}
	return nil
}

// ProviderIDPrefix starts the static provider ID of every host of this instance: kpssh://<pool namespace>/.
func (id Identity) ProviderIDPrefix() string {
	return v1beta1.ProviderIDScheme + id.PoolNamespace + "/"
}

// ownProviderID tells whether a provider ID names a host of this instance.
func (id Identity) ownProviderID(providerID string) bool {
	return strings.HasPrefix(providerID, id.ProviderIDPrefix())
}

// foreignProviderID tells whether a provider ID names a host of another instance. Empty and adopted IDs name nobody's.
func (id Identity) foreignProviderID(providerID string) bool {
	return strings.HasPrefix(providerID, v1beta1.ProviderIDScheme) && !id.ownProviderID(providerID)
}
