package profile

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// KubeletUnits are the systemd units, with their suffix, that run the kubelet of a profile. Never empty.
func KubeletUnits(spec *v1beta1.SSHJoinProfileSpec) []string {
	if len(spec.KubeletUnits) == 0 {
		return []string{"kubelet.service"}
	}
	return spec.KubeletUnits
}

// KubeletLabels are those of labels that a kubelet may give its own Node. It refuses to start with any other label of a Kubernetes
// domain, and the API server would refuse the Node; karpenter adds those labels when the Node has registered.
func KubeletLabels(labels map[string]string) map[string]string {
	allowed := make(map[string]string, len(labels))
	for key, value := range labels {
		if kubeletMaySet(key) {
			allowed[key] = value
		}
	}
	return allowed
}

func kubeletMaySet(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return true
	}
	if within(domain, "kubelet.kubernetes.io") || within(domain, "node.kubernetes.io") {
		return true
	}
	return !within(domain, "kubernetes.io") && !within(domain, "k8s.io")
}

func within(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}

// labelList is key=value,… as --node-labels reads it, sorted, so that equal labels are equal text.
func labelList(labels map[string]string) string {
	allowed := KubeletLabels(labels)
	pairs := make([]string, 0, len(allowed))
	for _, key := range slices.Sorted(maps.Keys(allowed)) {
		pairs = append(pairs, key+"="+allowed[key])
	}
	return strings.Join(pairs, ",")
}

// taintList is key=value:effect,… as --register-with-taints reads it, in the NodeClaim's order. karpenter.sh/unregistered comes
// first, always: a Node that registers without it takes pods before its labels and taints are in place. A kubelet refuses two taints
// of one key and effect, so the first of them stands.
func taintList(taints []corev1.Taint) string {
	all := append([]corev1.Taint{karpv1.UnregisteredNoExecuteTaint}, taints...)
	var list []string
	for i, taint := range all {
		if slices.ContainsFunc(all[:i], func(earlier corev1.Taint) bool { return earlier.MatchTaint(&taint) }) {
			continue
		}
		text := taint.Key
		if taint.Value != "" {
			text += "=" + taint.Value
		}
		list = append(list, text+":"+string(taint.Effect))
	}
	return strings.Join(list, ",")
}
