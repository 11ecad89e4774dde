//go:build linux && e2e

package e2e

import (
	"strings"

	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/machine"
)

func knownHost(m *machine.Machine) string {
	return knownhosts.Line([]string{m.Address.String()}, m.HostKey())
}

func nodeClass(name, profile string) *v1beta1.SSHNodeClass {
	return &v1beta1.SSHNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1beta1.SSHNodeClassSpec{
			HostSelector:   &metav1.LabelSelector{MatchLabels: map[string]string{poolLabel: name}},
			JoinProfileRef: v1beta1.ProfileReference{Name: profile},
		},
	}
}

func nodePool(name string) *karpv1.NodePool {
	return &karpv1.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: karpv1.NodePoolSpec{
			Template: karpv1.NodeClaimTemplate{Spec: karpv1.NodeClaimTemplateSpec{
				NodeClassRef: &karpv1.NodeClassReference{Group: v1beta1.Group, Kind: "SSHNodeClass", Name: name},
				ExpireAfter:  karpv1.MustParseNillableDuration("Never"),
				Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
					Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64", "arm64"},
				}},
			}},
			Disruption: karpv1.Disruption{
				ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized,
				ConsolidateAfter:    karpv1.MustParseNillableDuration("1s"),
			},
		},
	}
}

// pod runs the lab's image on the machine of that name, and no other.
func pod(name, on string) *corev1.Pod {
	grace, tolerate := int64(1), int64(3600)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{v1beta1.HostClassLabel: on},
			TerminationGracePeriodSeconds: &grace,
			// Machines that are switched off stay in use for as long as the scenario wants.
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &tolerate},
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &tolerate},
			},
			Containers: []corev1.Container{{
				Name: "pause", Image: machine.PauseImage, ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
			}},
		},
	}
}

// Files on a machine by which a gated profile is held, and tells what it did.
const (
	holdFile  = "/var/lib/e2e-hold-" // and a phase's name
	traceFile = "/var/lib/e2e-trace"
)

// gatedProfile is the shipped profile with a gate before each phase: it notes in a file on the machine that it has begun, in which
// process, waits while it is held, and notes that it has ended.
func (w *world) gatedProfile(name, version string) *v1beta1.SSHJoinProfile {
	profile, err := w.shippedProfile()
	if err != nil {
		panic(err)
	}
	profile.Name, profile.Spec.Version = name, version
	gate := func(phase, script string) string {
		return strings.NewReplacer("PHASE", phase, "HOLD", holdFile+phase, "TRACE", traceFile, "SCRIPT", script).Replace(
			"echo \"PHASE begin $$\" >>TRACE\nwhile [ -e HOLD ]; do sleep 0.1; done\nSCRIPT\necho \"PHASE end $$\" >>TRACE\n")
	}
	s := &profile.Spec.Scripts
	s.Install, s.Join, s.Leave = gate("install", s.Install), gate("join", s.Join), gate("leave", s.Leave)
	return profile
}
