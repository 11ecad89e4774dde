// Package operator puts one instance together: ownership first, then karpenter core, then this project's controllers. It is the only
// package that knows every other. It decides nothing.
package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/arbitration"
	"github.com/kpssh/karpenter-provider-ssh/pkg/bootstrap"
	"github.com/kpssh/karpenter-provider-ssh/pkg/cloudprovider"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/conflict"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/join"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/joinprofile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/nodeclass"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/owner"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/probe"
	"github.com/kpssh/karpenter-provider-ssh/pkg/controllers/startuptaint"
	"github.com/kpssh/karpenter-provider-ssh/pkg/credentials"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/host"
	poolmetrics "github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/lease"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ownership/turn"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// startTimeout bounds what must succeed before the instance runs.
const startTimeout = 2 * time.Minute

// Run runs one instance until it is told to stop. Errors are about settings and the cluster's answer at the start; karpenter core itself
// panics on what it cannot start without.
func Run(s Settings) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := leaseEnvironment(s); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	if err := awaitKinds(ctx, kinds, ":"+strconv.Itoa(s.HealthProbePort), looks, os.Stderr); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	leases, err := leaseClient(config)
	if err != nil {
		return err
	}
	if err := s.Claim().Check(starting, leases, clock.RealClock{}); err != nil {
		return err
	}
	classes, err := ownership.Start(ctx, config, s.Identity)
	if err != nil {
		return err
	}
	seam := ownership.Install(s.Identity, classes, func(o *ctrl.Options) { scopeCaches(o, s.Identity) })
	poolmetrics.Scope(s.Instance)
	coreCtx, op := operator.NewOperator(operator.WithLeaderElectionLabels(s.Claim().Labels()))
	if err := ownership.CheckGates(options.FromContext(coreCtx).FeatureGates); err != nil {
		return err
	}
	if err := seam.Assert(op.GetClient()); err != nil {
		return err
	}
	log.FromContext(coreCtx).Info("starting", "instance", s.Instance, "pool-namespace", s.PoolNamespace, "lease", s.Claim().Name(), "own-classes", classes.Snapshot().Names())
	if err := standBy(coreCtx, op, s, leases); err != nil {
		return err
	}
	overview, err := arbitration.Watch(ctx, config)
	if err != nil {
		return err
	}
	if err := assemble(starting, coreCtx, op, s, classes, seam, overview); err != nil {
		return err
	}
	running, finish := context.WithCancel(coreCtx)
	defer finish()
	context.AfterFunc(ctx, finish)
	// Not core's Start, which makes a panic of the error, and a stack trace of a lost lease.
	return ended(op.Manager.Start(running))
}

// ended explains why the manager ended by itself. It says nothing but that its lease is lost.
func ended(err error) error {
	if err != nil && err.Error() == "leader election lost" {
		return fault.New(fault.Cluster, "LeaseLost", err, "this process may not lead any more, so it ends: another replica took the lease, or the API server did not take its renewal in time. What it was doing on machines is taken up by whoever leads next")
	}
	return err
}

// leaseEnvironment derives the lease from the instance's name, where core looks for it: setting one without the other must be impossible.
func leaseEnvironment(s Settings) error {
	if err := os.Setenv("LEADER_ELECTION_NAME", s.Claim().Name()); err != nil {
		return err
	}
	return os.Setenv("LEADER_ELECTION_NAMESPACE", s.LeaseNamespace)
}

// leaseClient reads and writes leases past every cache: core's holds those of Nodes only.
func leaseClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(coordinationv1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fault.New(fault.Cluster, "ClusterUnreachable", err, "asking the API server for its kinds")
	}
	return api, nil
}

// standBy ends a replica that waits for another release's lease.
func standBy(ctx context.Context, op *operator.Operator, s Settings, leases client.Client) error {
	if options.FromContext(ctx).DisableLeaderElection {
		log.FromContext(ctx).Info("without leader election this instance has no lease: the other instances take its classes for unowned")
		return nil
	}
	return op.Add(&lease.Guard{Claim: s.Claim(), API: leases, Clock: op.Clock, Elected: op.Elected()})
}

// scopeCaches keeps what the instance reads to its own: hosts and Secrets of its pool namespace, and its classes. The API server filters.
func scopeCaches(o *ctrl.Options, id ownership.Identity) {
	o.Cache.ByObject[&v1beta1.SSHNodeClass{}] = cache.ByObject{Field: fields.OneTermEqualSelector("spec.instance", id.Instance)}
	own := cache.ByObject{Namespaces: map[string]cache.Config{id.PoolNamespace: {}}}
	for _, kind := range []client.Object{&v1beta1.SSHHost{}, &corev1.Secret{}, &appsv1.ControllerRevision{}} {
		o.Cache.ByObject[kind] = own
	}
}

// assemble adds every controller to the manager.
func assemble(starting, ctx context.Context, op *operator.Operator, s Settings, classes *ownership.Classes, seam *ownership.Seam, overview *arbitration.Overview) error {
	live := op.GetAPIReader()
	clusterUID, err := bootstrap.ClusterUID(starting, live)
	if err != nil {
		return err
	}
	inventory := host.NewInventory(s.PoolNamespace, op.GetClient(), live, op.Clock)
	if err := inventory.Register(ctx, op.Manager); err != nil {
		return err
	}
	resolver := credentials.NewResolver(op.GetClient())
	resolver.Clock = op.Clock
	discovery := bootstrap.NewDiscovery(live)
	dialer := &ssh.Dialer{JumpHostConnections: s.JumpHostConnections}

	provider := cloudprovider.New(s.Instance, op.GetClient(), live, inventory, classes.Mine, op.EventRecorder, op.Clock)
	decorated := metrics.Decorate(provider)
	overlaid := &ownOverlays{CloudProvider: overlay.Decorate(decorated, op.GetClient(), op.InstanceTypeStore), owns: provider.Owns}
	cluster := state.NewCluster(op.Clock, op.GetClient(), overlaid)

	if err := op.Add(everyReplica(seam.Follow)); err != nil {
		return err
	}
	if err := op.Add(everyReplica(overview.Start)); err != nil {
		return err
	}
	pending := arbitration.NewFilter(s.Instance, overview, arbitration.TypesOf(provider.GetInstanceTypes), op.Clock)
	seam.FilterPending(pending)
	var turns *turn.Turn
	seam.TakeTurns(ungated{})
	if !s.WithoutTurns {
		turns = turn.New(turn.Options{Instance: s.Instance, Namespace: s.LeaseNamespace, Live: live, Writer: op.GetClient(), Clock: op.Clock})
		seam.TakeTurns(turns)
	}
	core, err := adapt(controllers.NewControllers(ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, overlaid, decorated, cluster, op.InstanceTypeStore),
		turns, cluster, pending.Hidden, !options.FromContext(ctx).DisableClusterStateObservability)
	if err != nil {
		return err
	}
	op.WithControllers(ctx, core...)
	revisions := profile.NewRevisions(op.GetClient(), live, s.PoolNamespace)
	holds := profile.NewHolds(op.GetClient(), live, s.PoolNamespace, s.Instance, op.Clock)
	joins := join.NewController(join.Options{
		Inventory: inventory, Client: op.GetClient(), Live: live,
		Credentials: resolver, Dialer: dialer,
		Revisions: revisions,
		Holds:     holds,
		Tokens:    bootstrap.NewTokens(op.GetClient(), s.Instance, op.Clock),
		Discovery: discovery, Recorder: op.GetEventRecorder("kpssh-join"), Clock: op.Clock,
		ClusterUID: clusterUID, Instance: s.Instance, Concurrency: s.JoinConcurrency,
	})
	conflicts := conflict.NewController(conflict.Options{
		Self:           conflict.Self{Instance: s.Instance, PoolNamespace: s.PoolNamespace, Release: s.Release},
		LeaseNamespace: s.LeaseNamespace, Live: live, Client: op.GetClient(),
		Hosts: inventory.All, Refusals: seam.Refusals, Splits: seam.Splits, NamesInUse: func() []conflict.NameInUse {
			return lo.Map(joins.NamesInUse(), func(n join.NameInUse, _ int) conflict.NameInUse { return conflict.NameInUse(n) })
		},
		Recorder: op.GetEventRecorder("kpssh-conflict"), Clock: op.Clock,
	})
	if err := registerMetrics(crmetrics.Registry, s, op.GetClient(), inventory, classes, seam,
		poolmetrics.Conflicts(conflicts.Conflicts), poolmetrics.Alive(conflicts.Alive),
		poolmetrics.Expiries(func() map[poolmetrics.Credential]time.Time {
			return lo.Assign(resolver.Expiries(), discovery.Expiries(classes.Snapshot().Names()))
		}),
	); err != nil {
		return err
	}
	op.WithControllers(ctx,
		joins,
		join.NewPrewarmer(joins),
		probe.NewController(probe.Options{
			Inventory: inventory, Nodes: op.GetClient(), Live: live, Credentials: resolver, Dialer: dialer,
			Recorder: op.GetEventRecorder("kpssh-hostprobe"), Clock: op.Clock,
			ClusterUID: clusterUID, Instance: s.Instance, Concurrency: s.ProbeConcurrency, Interval: s.ProbeInterval,
			KubeletUnits: s.KubeletUnits, Classes: op.GetClient(), Revisions: revisions,
		}),
		nodeclass.NewController(nodeclass.Options{
			Inventory: inventory, Client: op.GetClient(), Live: live, Instance: s.Instance, Mine: classes.Mine, Discovery: discovery,
			Recorder: op.GetEventRecorder("kpssh-nodeclass"), Clock: op.Clock,
		}),
		joinprofile.NewController(joinprofile.Options{
			Inventory: inventory, Client: op.GetClient(), Holds: holds, Recorder: op.GetEventRecorder("kpssh-joinprofile"), Clock: op.Clock,
		}),
		owner.NewController(op.GetClient(), s.Instance),
		startuptaint.NewController(op.GetClient(), op.GetEventRecorder("kpssh-startup-taint-gate"), op.Clock),
		conflicts,
		status.NewController[*v1beta1.SSHNodeClass](op.GetClient(), op.GetEventRecorderFor("kpssh-nodeclass-status")), //nolint:staticcheck // SA1019: operatorpkg takes no other
	)
	return nil
}

// everyReplica is a runnable that does not wait for the lease: a stand-by's caches must follow ownership too.
type everyReplica func(context.Context)

var _ manager.LeaderElectionRunnable = everyReplica(nil)

func (r everyReplica) Start(ctx context.Context) error { r(ctx); return nil }

func (r everyReplica) NeedLeaderElection() bool { return false }
