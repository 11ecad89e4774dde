package arbitration

import (
	"context"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// Offers knows what this instance's hosts are.
type Offers interface {
	// Offered is what a node of an own NodePool can be; nil while that is unknown.
	Offered(*karpv1.NodePool) scheduling.Requirements
}

// TypesOf gives Offers from a cloud provider's instance types.
func TypesOf(list func(context.Context, *karpv1.NodePool) ([]*cloudprovider.InstanceType, error)) Offers {
	return offersFunc(func(pool *karpv1.NodePool) scheduling.Requirements {
		types, err := list(context.Background(), pool)
		if err != nil {
			return nil // core will meet the error too, and say so
		}
		return anyOf(types)
	})
}

type offersFunc func(*karpv1.NodePool) scheduling.Requirements

func (f offersFunc) Offered(pool *karpv1.NodePool) scheduling.Requirements { return f(pool) }

// anyOf is what at least one of the types can be: label by label, so it may allow what no single type is, and never forbids what one is.
// Nil for no types: there may be some as soon as a host is probed.
func anyOf(types []*cloudprovider.InstanceType) scheduling.Requirements {
	// A type in no zone is one that no host has any more; it is kept for the sake of nodes that run.
	types = lo.Filter(types, func(t *cloudprovider.InstanceType, _ int) bool {
		return t.Requirements.Get(corev1.LabelTopologyZone).Operator() != corev1.NodeSelectorOpDoesNotExist
	})
	if len(types) == 0 {
		return nil
	}
	union := scheduling.Requirements{}
	for label := range types[0].Requirements {
		if values, ok := valuesIn(types, label); ok {
			union[label] = scheduling.NewRequirement(label, corev1.NodeSelectorOpIn, values...)
		}
	}
	return union
}

// valuesIn is the values that types have for a label, none if no type has the label. It is false if neither describes the types.
func valuesIn(types []*cloudprovider.InstanceType, label string) ([]string, bool) {
	var values []string
	without := 0
	for _, t := range types {
		if !t.Requirements.Has(label) {
			return nil, false
		}
		switch requirement := t.Requirements.Get(label); requirement.Operator() {
		case corev1.NodeSelectorOpIn:
			values = append(values, requirement.Values()...)
		case corev1.NodeSelectorOpDoesNotExist:
			without++
		default:
			return nil, false
		}
	}
	return values, without == 0 || without == len(types)
}
