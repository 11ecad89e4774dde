// Command otherprovider is karpenter of another provider: core with its own KWOK provider, whose nodes exist in the API only. Tests run
// it beside instances of this project, as karpenter of a cloud would run there.
package main

import (
	"fmt"
	"os"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "otherprovider:", err)
		os.Exit(1)
	}
	provider := kwok.NewCloudProvider(ctx, op.GetClient(), types)
	cluster := state.NewCluster(op.Clock, op.GetClient(), provider)
	op.WithControllers(ctx, controllers.NewControllers(ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, provider, cluster, op.InstanceTypeStore)...).Start(ctx)
}
