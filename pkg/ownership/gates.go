package ownership

import (
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// CheckGates refuses karpenter feature gates under which instances fight, as a *fault.Error that blames the configuration. An
// instance cannot know whether it is alone for ever, so it refuses them even when it is alone now. The verdicts were read from core
// v1.14.3:
//
//   - NodeOverlay: refused. Every instance evaluates all NodeOverlays against its own NodePools only, and writes the result into each
//     overlay's status. Instances with different NodePools come to different results and overwrite each other for ever; an overlay
//     names no class by which it could be divided.
//   - CapacityBuffer: allowed. Undivided, every instance would provide each buffer in full and write its Provisioning condition in
//     every loop. A buffer names no class either, but it is one instance's business alone: see BufferInstanceLabel.
//   - StaticCapacity: allowed. It counts and creates the NodeClaims of one NodePool, and a NodePool has one owner.
//   - NodeRepair: allowed. It deletes NodeClaims, of which only own ones are seen. Its 20 % brake counts the Nodes of one NodePool; for a
//     NodeClaim without NodePool it counts all Nodes, which errs on the safe side.
//   - ReservedCapacity, SpotToSpotConsolidation: allowed. They decide among the offerings of own instance types.
//
// Dynamic resource allocation (IGNORE_DRA_REQUESTS=false) reads ResourceClaims and writes none; it is no gate and allowed.
func CheckGates(gates options.FeatureGates) error {
	if gates.NodeOverlay {
		return fault.New(fault.Configuration, "FeatureGateRefused", nil,
			"feature gate NodeOverlay makes instances overwrite each other's NodeOverlay status: remove NodeOverlay=true from FEATURE_GATES")
	}
	return nil
}
