package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// Group is the API group of all kinds and the domain of all labels and annotations of this project.
const Group = "karpenter.dklesev.github.io"

var (
	// GroupVersion is the only served and stored version.
	GroupVersion = schema.GroupVersion{Group: Group, Version: "v1beta1"}
	// SchemeBuilder registers the kinds of this package.
	SchemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion,
			&SSHHost{}, &SSHHostList{},
			&SSHNodeClass{}, &SSHNodeClassList{},
			&SSHJoinProfile{}, &SSHJoinProfileList{})
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func init() {
	// Karpenter core builds its manager on client-go's global scheme; there is no parameter for another one.
	if err := AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
}
