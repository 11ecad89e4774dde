package profile

import (
	"strings"
	"testing"
)

// The two are one profile with other settings; what is mended in one is mended in both.
func TestSBCIsTLSBootstrapWithOtherSettings(t *testing.T) {
	t.Parallel()
	shipped := examples(t)
	tls, sbc := shipped["tls-bootstrap"].Spec.Scripts, shipped["sbc"].Spec.Scripts
	settings := []string{"# Little memory", "systemReserved:", "evictionHard:", "imageGC", "containerLog", "nodeStatusReportFrequency:"}
	same := func(phase Phase, one, other string) {
		one = strings.ReplaceAll(one, "profile tls-bootstrap,", "profile sbc,")
		one = strings.ReplaceAll(one, "add cgroup_enable=memory to the kernel command line", "add cgroup_memory=1 cgroup_enable=memory to the one line of /boot/firmware/cmdline.txt")
		var kept []string
	lines:
		for line := range strings.SplitSeq(other, "\n") {
			for _, setting := range settings {
				if strings.HasPrefix(line, setting) {
					continue lines
				}
			}
			kept = append(kept, line)
		}
		if strings.TrimSpace(one) != strings.TrimSpace(strings.Join(kept, "\n")) {
			t.Errorf("%s of sbc is not tls-bootstrap's", phase)
		}
	}
	same(Install, tls.Install, sbc.Install)
	same(Join, tls.Join, sbc.Join)
	same(Leave, tls.Leave, sbc.Leave)
	same(uninstall, tls.Uninstall, sbc.Uninstall)
}

// Section 2 #47 #48 #51.
func TestSBCSparesMemoryAndCard(t *testing.T) {
	t.Parallel()
	m, _ := newKind(t, "sbc")
	m.write("usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n", 0o644)
	m.in.Vars["SYSTEM_RESERVED_MEMORY"] = "256Mi"
	m.must(Install)
	m.must(Join)
	if config := m.read("var/lib/kubelet/config.yaml"); !strings.Contains(config, "systemReserved: {memory: 256Mi}\n") || !strings.Contains(config, "containerLogMaxSize: 2Mi\n") {
		t.Errorf("kubelet's configuration:\n%s", config)
	}
	if !strings.Contains(m.read("etc/systemd/system/kubelet.service.d/90-kpssh.conf"), "ExecStart=\nExecStart=") {
		t.Error("no drop-in after kubeadm's that resets its command")
	}
	if !strings.Contains(strings.ReplaceAll(m.read("etc/containerd/config.toml"), m.root, ""), `bin_dir = "/opt/cni/bin"`) {
		t.Error("plugins are looked for where network add-ons do not put them")
	}
}
