package profile

import (
	"strings"
	"testing"
	"time"
)

func TestKubeadmJoinsByAFile(t *testing.T) {
	t.Parallel()
	m, _ := newKind(t, "kubeadm")
	m.must(Install)
	m.must(Join)
	config := strings.ReplaceAll(m.read("kubeadm-saw"), m.root, "")
	for _, line := range []string{
		"  file: {kubeConfigPath: /etc/kubernetes/kpssh-discovery.conf}", `  name: "pool-x7k2p"`, `  - {name: provider-id, value: "kpssh://kpssh-system/m01"}`,
		`  - key: "dedicated"`, `    value: "gpu"`, "    effect: NoSchedule", "    effect: NoExecute",
	} {
		if !strings.Contains(config, line+"\n") {
			t.Errorf("no %q in\n%s", line, config)
		}
	}
	for _, file := range []string{"etc/kubernetes/kpssh-discovery.conf", "etc/kubernetes/kpssh-join.yaml"} {
		if m.exists(file) {
			t.Errorf("%s outlives the join, with the token", file)
		}
	}
	if containerd := strings.ReplaceAll(m.read("etc/containerd/config.toml"), m.root, ""); !strings.Contains(containerd, `bin_dir = "/opt/cni/bin"`) {
		t.Errorf("section 2 #48: containerd's configuration:\n%s", containerd)
	}
	m.must(Leave)
	if calls := m.calls(); strings.Contains(calls, "kubeadm reset") {
		t.Errorf("leave runs kubeadm reset, which has no end:\n%s", calls)
	}
}

// E5: kubeadm would refuse a machine on which an earlier identity lies.
func TestKubeadmReplacesAnIdentityThatEnds(t *testing.T) {
	t.Parallel()
	for left, again := range map[time.Duration]bool{always: false, 23 * time.Hour: true, -time.Hour: true} {
		m, _ := newKind(t, "kubeadm")
		m.must(Join)
		m.register(m.in.NodeName, m.in.ClusterEndpoint, m.in.ClusterCA, left)
		m.write("etc/kubernetes/pki/ca.crt", "", 0o644)
		m.calls()
		m.must(Join)
		if calls := m.calls(); strings.Contains(calls, "kubeadm join") != again {
			t.Errorf("certificate with %s left: joined again %v\n%s", left, !again, calls)
		}
		if again && (m.exists("etc/kubernetes/kubelet.conf") || m.exists("etc/kubernetes/pki/ca.crt")) {
			t.Errorf("certificate with %s left: files that kubeadm refuses are still there", left)
		}
	}
}

func TestKubeadmInstallsPackages(t *testing.T) {
	t.Parallel()
	for system, want := range map[string]string{"debian": "kubelet=1.36.1-1.1", "rocky": "kubelet-1.36.1-1.1"} {
		m := newMachine(t, "kubeadm")
		m.write("etc/os-release", systems[system], 0o644)
		if code, out := m.run(Install); code == 0 || !strings.Contains(out, "PACKAGE_VERSION") {
			t.Errorf("%s without version: exit %d\n%s", system, code, out)
		}
		m.in.Vars["PACKAGE_VERSION"] = "1.36.1-1.1"
		m.must(Install)
		if calls := m.calls(); !strings.Contains(calls, want) {
			t.Errorf("%s: no %s in\n%s", system, want, calls)
		}
	}
}
