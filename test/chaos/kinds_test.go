package chaos

import (
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	kindPool     = "NodePool"
	kindClaim    = "NodeClaim"
	kindNode     = "Node"
	kindClass    = "SSHNodeClass"
	kindHost     = "SSHHost"
	kindProfile  = "SSHJoinProfile"
	kindSecret   = "Secret"
	kindRevision = "ControllerRevision"
	kindCSR      = "CertificateSigningRequest"
)

var hasStatus = map[string]bool{kindPool: true, kindClaim: true, kindNode: true, kindClass: true, kindHost: true}

// calm kinds are answered at once: the product holds mutexes during these requests, and time stands still while anybody waits for one.
var calm = map[string]bool{kindRevision: true, kindProfile: true, kindCSR: true}

func kindOf(o runtime.Object) string {
	switch o.(type) {
	case *karpv1.NodePool, *karpv1.NodePoolList:
		return kindPool
	case *karpv1.NodeClaim, *karpv1.NodeClaimList:
		return kindClaim
	case *corev1.Node, *corev1.NodeList:
		return kindNode
	case *v1beta1.SSHNodeClass, *v1beta1.SSHNodeClassList:
		return kindClass
	case *v1beta1.SSHHost, *v1beta1.SSHHostList:
		return kindHost
	case *v1beta1.SSHJoinProfile:
		return kindProfile
	case *corev1.Secret:
		return kindSecret
	case *appsv1.ControllerRevision:
		return kindRevision
	case *certificatesv1.CertificateSigningRequestList:
		return kindCSR
	}
	panic(fmt.Sprintf("kind of %T", o))
}

func newOf(kind string) client.Object {
	switch kind {
	case kindPool:
		return &karpv1.NodePool{}
	case kindClaim:
		return &karpv1.NodeClaim{}
	case kindNode:
		return &corev1.Node{}
	case kindClass:
		return &v1beta1.SSHNodeClass{}
	case kindHost:
		return &v1beta1.SSHHost{}
	case kindSecret:
		return &corev1.Secret{}
	case kindRevision:
		return &appsv1.ControllerRevision{}
	}
	panic("new " + kind)
}

// fieldOf is what a field selector or index sees.
func fieldOf(o client.Object, field string) string {
	switch o := o.(type) {
	case *v1beta1.SSHHost:
		if field == "status.claimRef.uid" && o.Status.ClaimRef != nil {
			return string(o.Status.ClaimRef.UID)
		}
		return ""
	case *corev1.Node:
		if field == "spec.providerID" {
			return o.Spec.ProviderID
		}
	case *karpv1.NodeClaim:
		if field == "status.providerID" {
			return o.Status.ProviderID
		}
	case *v1beta1.SSHNodeClass:
		if field == "spec.instance" {
			return o.Spec.Instance
		}
	}
	panic(fmt.Sprintf("field %s of %T", field, o))
}

func selects(o client.Object, namespace string, l labels.Selector, f fields.Selector) bool {
	if namespace != "" && o.GetNamespace() != namespace || l != nil && !l.Matches(labels.Set(o.GetLabels())) {
		return false
	}
	if f != nil {
		for _, r := range f.Requirements() {
			if fieldOf(o, r.Field) != r.Value {
				return false
			}
		}
	}
	return true
}

// into puts a copy of what was found where the caller wants it.
func into(found, wanted client.Object) {
	reflect.ValueOf(wanted).Elem().Set(reflect.ValueOf(found.DeepCopyObject()).Elem())
}

// fill puts copies of those that the options select into a list.
func fill(list client.ObjectList, from []client.Object, opts []client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	var out []runtime.Object
	for _, item := range from {
		if selects(item, o.Namespace, o.LabelSelector, o.FieldSelector) {
			out = append(out, item.DeepCopyObject())
		}
	}
	return meta.SetList(list, out)
}
