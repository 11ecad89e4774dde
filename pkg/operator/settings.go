package operator

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/lease"
)

const (
	defaultPoolNamespace  = "kpssh-system"
	defaultLeaseNamespace = "kube-system"
)

// Settings are what one instance is told by its environment, besides karpenter core's own settings.
type Settings struct {
	ownership.Identity
	// Release (RELEASE, the pool namespace) tells one installation from another; a label value.
	Release string
	// LeaseNamespace (LEADER_ELECTION_NAMESPACE, "kube-system") holds the leases of all instances.
	LeaseNamespace string
	// WithoutTurns lets voluntary disruption begin without taking turns, at the risk of every workload. No environment variable sets it:
	// it is how a test shows that turns are needed.
	WithoutTurns bool
	// JoinConcurrency (JOIN_CONCURRENCY, 64) is how many machines are joined or left at once.
	JoinConcurrency int
	// ProbeConcurrency (PROBE_CONCURRENCY, 32) bounds how many hosts are probed at once.
	ProbeConcurrency int
	// JumpHostConnections (JUMP_HOST_CONNECTIONS, 8) is how many connections lead through one jump host at once.
	JumpHostConnections int
	// ProbeInterval (PROBE_INTERVAL, 2m) is how often a free host is probed.
	ProbeInterval time.Duration
	// HealthProbePort (HEALTH_PROBE_PORT, 8081) is core's, which listens on it; this instance does while it waits to start.
	HealthProbePort int
	// KubeletUnits (KUBELET_UNITS, "kubelet") are systemd units, separated by commas, that run a kubelet on the segment's machines, besides
	// those that profiles name and those of well-known distributions.
	KubeletUnits []string
}

// Claim is the instance's claim on its name: one lease in the whole cluster.
func (s Settings) Claim() lease.Claim {
	return lease.Claim{Instance: s.Instance, PoolNamespace: s.PoolNamespace, Release: s.Release, Namespace: s.LeaseNamespace}
}

// SettingsFromEnv reads the settings. The error names every variable that is wrong, not only the first.
func SettingsFromEnv() (Settings, error) {
	s := Settings{Identity: ownership.Identity{
		Instance:      orDefault("INSTANCE_NAME", v1beta1.DefaultInstance),
		PoolNamespace: orDefault("POOL_NAMESPACE", defaultPoolNamespace),
	}}
	var errs *multierror.Error
	errs = multierror.Append(errs, s.Validate())
	s.Release = orDefault("RELEASE", s.PoolNamespace)
	// The default is a namespace's name, which was judged above.
	if problems := validation.IsValidLabelValue(s.Release); os.Getenv("RELEASE") != "" && len(problems) > 0 {
		errs = multierror.Append(errs, fmt.Errorf("RELEASE: %q is no label value: %s", s.Release, strings.Join(problems, "; ")))
	}
	s.LeaseNamespace = orDefault("LEADER_ELECTION_NAMESPACE", defaultLeaseNamespace)
	s.JoinConcurrency = positive("JOIN_CONCURRENCY", 64, &errs)
	s.ProbeConcurrency = positive("PROBE_CONCURRENCY", 32, &errs)
	s.JumpHostConnections = positive("JUMP_HOST_CONNECTIONS", 8, &errs)
	interval, err := time.ParseDuration(orDefault("PROBE_INTERVAL", "2m"))
	if err != nil || interval <= 0 {
		errs = multierror.Append(errs, fmt.Errorf("PROBE_INTERVAL: %q is not a positive duration such as 90s or 2m", os.Getenv("PROBE_INTERVAL")))
	}
	s.ProbeInterval = interval
	s.HealthProbePort = positive("HEALTH_PROBE_PORT", 8081, &errs)
	s.KubeletUnits = strings.Split(orDefault("KUBELET_UNITS", "kubelet"), ",")
	return s, errs.ErrorOrNil()
}

func orDefault(name, fallback string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return fallback
}

func positive(name string, fallback int, errs **multierror.Error) int {
	value, err := strconv.Atoi(orDefault(name, strconv.Itoa(fallback)))
	if err != nil || value < 1 {
		*errs = multierror.Append(*errs, fmt.Errorf("%s: %q is not a whole number above zero", name, os.Getenv(name)))
	}
	return value
}
