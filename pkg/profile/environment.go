package profile

import (
	"encoding/base64"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile/redact"
)

// ReasonVarsInvalid is the reason when a class's vars cannot be environment variables.
const ReasonVarsInvalid = "VarsInvalid"

const (
	// maxEntry is the kernel's limit for one NAME=value and its terminator (MAX_ARG_STRLEN): with a longer one in its environment a
	// script can start no program, and every command fails with "Argument list too long".
	maxEntry = 128 << 10
	// maxSecrets keeps all secrets together well below what the kernel passes to a program, and bounds the redactor's memory.
	maxSecrets = 256 << 10
)

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Inputs are everything that scripts can be told. Each phase sees its part: install no token, leave the two addresses only.
type Inputs struct {
	// ClusterEndpoint is the API server's URL, https://host[:port].
	ClusterEndpoint string
	// ClusterCA is the PEM bundle that signs the API server's certificate.
	ClusterCA []byte
	// BootstrapToken is <id>.<secret>.
	BootstrapToken string
	// NodeName is the NodeClaim's name, and becomes the Node's.
	NodeName string
	// ProviderID for the kubelet to report; empty where an agent on the machine chooses it.
	ProviderID string
	// NodeLabels of the NodeClaim, unfiltered.
	NodeLabels map[string]string
	// Taints of the NodeClaim's spec.taints; startup taints are karpenter's business.
	Taints []corev1.Taint
	// HostAddress is what the controller dials.
	HostAddress string
	// NodeAddress is the Node's InternalIP; empty means HostAddress.
	NodeAddress string
	// Vars of the class.
	Vars map[string]string
	// Secrets are the entries of the class's join Secret.
	Secrets map[string][]byte
}

// Redactor hides secrets in what scripts print; see package redact.
type Redactor = redact.Redactor

// NewRedactor hides these secrets, from 8 bytes on.
func NewRedactor(secrets ...string) *Redactor { return redact.New(secrets...) }

// Redactor hides the token and the secrets of these inputs, in whatever form a script prints them.
func (in Inputs) Redactor() *Redactor {
	secrets := []string{in.BootstrapToken}
	if _, secret, found := strings.Cut(in.BootstrapToken, "."); found {
		secrets = append(secrets, secret)
	}
	for _, value := range in.Secrets {
		secrets = append(secrets, string(value))
	}
	return NewRedactor(secrets...)
}

// visible is the part of the inputs that a phase is told. A leave must work when class, profile and Secrets are gone, so it never
// depends on them.
func (in Inputs) visible(phase Phase) Inputs {
	if in.NodeAddress == "" {
		in.NodeAddress = in.HostAddress
	}
	switch phase {
	case Install:
		in.BootstrapToken = ""
	case Leave:
		return Inputs{HostAddress: in.HostAddress, NodeAddress: in.NodeAddress}
	}
	return in
}

// environment is what a script of this phase finds in its environment. Names that a phase is not told are set and empty, because
// scripts run under `set -u`.
func environment(phase Phase, in Inputs) (map[string]string, error) {
	env := map[string]string{
		"KPSSH_CLUSTER_ENDPOINT": in.ClusterEndpoint,
		"KPSSH_CLUSTER_CA_B64":   base64.StdEncoding.EncodeToString(in.ClusterCA),
		"KPSSH_BOOTSTRAP_TOKEN":  in.BootstrapToken,
		"KPSSH_NODE_NAME":        in.NodeName,
		"KPSSH_PROVIDER_ID":      in.ProviderID,
		"KPSSH_NODE_LABELS":      labelList(in.NodeLabels),
		"KPSSH_TAINTS":           "",
		"KPSSH_HOST_ADDRESS":     in.HostAddress,
		"KPSSH_NODE_ADDRESS":     in.NodeAddress,
	}
	if phase != Leave {
		env["KPSSH_TAINTS"] = taintList(in.Taints)
	}
	if err := addVars(env, in.Vars); err != nil {
		return nil, err
	}
	if err := addSecrets(env, in.Secrets); err != nil {
		return nil, err
	}
	return env, nil
}

func addVars(env, vars map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(vars)) {
		if !identifier.MatchString(key) {
			return fault.New(fault.Configuration, ReasonVarsInvalid, nil,
				"spec.vars of the class: key %q is no shell identifier; use letters, digits and _", key)
		}
		name := "KPSSH_VAR_" + key
		if problem := unfit(name, vars[key]); problem != "" {
			return fault.New(fault.Configuration, ReasonVarsInvalid, nil, "spec.vars of the class: value of %q %s", key, problem)
		}
		env[name] = vars[key]
	}
	return nil
}

func addSecrets(env map[string]string, secrets map[string][]byte) error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.Configuration, v1beta1.ReasonJoinSecretInvalid, nil, "the class's join Secret: "+format, args...)
	}
	from := make(map[string]string, len(secrets))
	total := 0
	for _, key := range slices.Sorted(maps.Keys(secrets)) {
		name := "KPSSH_SECRET_" + strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(key))
		if !identifier.MatchString(name) {
			return invalid("entry %q cannot be the environment variable %s; use letters, digits, - . and _", key, name)
		}
		if other, taken := from[name]; taken {
			// Which of the two a script would get depended on chance.
			return invalid("entries %q and %q both become %s; rename one", other, key, name)
		}
		from[name] = key
		value := string(secrets[key])
		if problem := unfit(name, value); problem != "" {
			return invalid("value of entry %q %s", key, problem)
		}
		if total += len(value); total > maxSecrets {
			return invalid("its entries are over %d KiB together; put files where the script can fetch them", maxSecrets>>10)
		}
		env[name] = value
	}
	return nil
}

// unfit tells why a value cannot be passed in the environment; empty if it can.
func unfit(name, value string) string {
	if strings.ContainsRune(value, 0) {
		return "holds a NUL byte, which no environment variable can; encode it, for example with base64"
	}
	if len(name)+1+len(value)+1 > maxEntry {
		return "is over 128 KiB, with which the script could start no program; put it where the script can fetch it"
	}
	return ""
}
