package ownership

import (
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// divided are core's feature gates under which instances do not fight. The verdicts were read from core v1.14.3:
//
//   - NodeRepair deletes NodeClaims, of which only own ones are seen. Its 20 % brake counts the Nodes of one NodePool; for a NodeClaim
//     without NodePool it counts all Nodes, which errs on the safe side.
//   - StaticCapacity counts and creates the NodeClaims of one NodePool, and a NodePool has one owner.
//   - NodeOverlay: every instance evaluates all NodeOverlays against its own NodePools, which is right, and writes the result into each
//     overlay's status, which would be overwritten for ever. An overlay names no class by which it could be divided, so that its status is
//     one instance's to write: see HomeInstanceLabel and guardedClient.othersStatus.
//   - CapacityBuffer: undivided, every instance would provide each buffer in full and write its condition in every loop. A buffer names no
//     class either; it is seen by one instance only: see HomeInstanceLabel.
//   - ReservedCapacity and SpotToSpotConsolidation decide among the offerings of own instance types.
//
// Dynamic resource allocation (IGNORE_DRA_REQUESTS=false) reads ResourceClaims and writes none; it is no gate and allowed.
var divided = []string{"NodeRepair", "StaticCapacity", "NodeOverlay", "CapacityBuffer", "ReservedCapacity", "SpotToSpotConsolidation"}

// CheckGates refuses feature gates of karpenter of which nobody has found out that instances do not fight under them, as a *fault.Error
// that blames the configuration. An instance cannot know whether it is alone for ever, so it refuses them even when it is alone now.
func CheckGates(gates options.FeatureGates) error {
	if refused := undivided(reflect.ValueOf(gates)); len(refused) > 0 {
		return fault.New(fault.Configuration, "FeatureGateRefused", nil,
			"it is not known whether instances disturb each other under feature gate %s: remove it from FEATURE_GATES", strings.Join(refused, ", "))
	}
	return nil
}

// undivided lists the gates that are on and not known.
func undivided(gates reflect.Value) []string {
	var names []string
	for i := range gates.NumField() {
		field := gates.Type().Field(i)
		if field.IsExported() && field.Type.Kind() == reflect.Bool && gates.Field(i).Bool() && !slices.Contains(divided, field.Name) {
			names = append(names, field.Name)
		}
	}
	return names
}
