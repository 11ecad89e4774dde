package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const (
	// RevisionLabel marks the ControllerRevisions that keep profiles. It is the only label they carry: StatefulSets and DaemonSets adopt
	// revisions that match their selectors, and none selects by this one.
	RevisionLabel = v1beta1.Group + "/join-profile-revision"
	// MarkerAnnotation on a ControllerRevision is `<profile>@<version>`, for people.
	MarkerAnnotation = v1beta1.Group + "/installed-profile"

	// maxNamePrefix leaves room for the dash and the digest in an object name of 253 characters.
	maxNamePrefix = 200
	// digestLength is that of the digest in a name, in hexadecimal digits.
	digestLength = 32
)

// Revision is a profile as it was when it was installed on a machine.
type Revision struct {
	// Name of the ControllerRevision that keeps it: the profile's name and a digest of the content, so equal content has equal names.
	Name string
	// Profile and Version name the SSHJoinProfile.
	Profile string
	Version string
	// Spec of the SSHJoinProfile.
	Spec v1beta1.SSHJoinProfileSpec
}

// Marker is `<profile>@<version>`, as SSHHost.status.installedProfile records it.
func (r Revision) Marker() string { return r.Profile + "@" + r.Version }

// UsesBootstrapToken tells whether the join script refers to its bootstrap token. A script that finds it by listing its environment does not.
func (r Revision) UsesBootstrapToken() bool {
	return strings.Contains(r.Spec.Scripts.Join, "KPSSH_BOOTSTRAP_TOKEN") || strings.Contains(r.Spec.Scripts.Join, ".BootstrapToken")
}

// RevisionOf is a profile as it is now.
func RevisionOf(profile *v1beta1.SSHJoinProfile) Revision {
	spec := *profile.Spec.DeepCopy()
	if spec.Version == "" {
		spec.Version = "1" // the CRD's default, which objects with an empty spec do not get
	}
	return Revision{
		Name:    revisionName(profile.Name, content(profile.Name, spec)),
		Profile: profile.Name,
		Version: spec.Version,
		Spec:    spec,
	}
}

// kept is the data of a ControllerRevision.
type kept struct {
	Profile string                     `json:"profile"`
	Spec    v1beta1.SSHJoinProfileSpec `json:"spec"`
}

func content(profile string, spec v1beta1.SSHJoinProfileSpec) []byte {
	raw, err := json.Marshal(kept{Profile: profile, Spec: spec})
	if err != nil {
		panic("profile revision: strings and durations always marshal: " + err.Error())
	}
	return raw
}

// revisionName digests content in canonical form: an API server may give JSON back with other spacing and escapes, and a later version of
// this controller may keep fields that this one does not know.
func revisionName(profile string, content []byte) string {
	var anything any
	if err := json.Unmarshal(content, &anything); err != nil {
		return ""
	}
	canonical, err := json.Marshal(anything)
	if err != nil {
		return ""
	}
	digest := sha256.Sum256(canonical)
	return namePrefix(profile) + "-" + hex.EncodeToString(digest[:digestLength/2])
}

// namePrefix starts the names of a profile's revisions.
func namePrefix(profile string) string {
	return strings.TrimRight(profile[:min(len(profile), maxNamePrefix)], "-.")
}

func (r Revision) object(namespace string) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        r.Name,
			Labels:      map[string]string{RevisionLabel: "true"},
			Annotations: map[string]string{MarkerAnnotation: r.Marker()},
			// No owner: it must outlive its profile.
		},
		Data:     runtime.RawExtension{Raw: content(r.Profile, r.Spec)},
		Revision: 1,
	}
}

// revisionFrom reads a ControllerRevision back. It fails if the content is not what the name says.
func revisionFrom(object *appsv1.ControllerRevision) (Revision, error) {
	var data kept
	if err := json.Unmarshal(object.Data.Raw, &data); err != nil {
		return Revision{}, fmt.Errorf("reading its data: %w", err)
	}
	if name := revisionName(data.Profile, object.Data.Raw); name != object.Name {
		return Revision{}, fmt.Errorf("its data belongs to the name %s", name)
	}
	return Revision{Name: object.Name, Profile: data.Profile, Version: data.Spec.Version, Spec: data.Spec}, nil
}
