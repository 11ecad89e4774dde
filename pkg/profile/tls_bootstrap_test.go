package profile

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestJoinWritesWhatAKubeletNeeds(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "tls-bootstrap")
	m.must(Install)
	if out := m.calls(); strings.Contains(out, "apt-get") || strings.Contains(out, "curl") {
		t.Errorf("install fetched what is there:\n%s", out)
	}
	m.must(Join)

	bootstrap := filepath.Join(m.root, "etc/kubernetes/bootstrap-kubelet.conf")
	info, err := os.Stat(bootstrap)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("bootstrap kubeconfig: %v, %v", info.Mode(), err)
	}
	for file, lines := range map[string][]string{
		"etc/kubernetes/bootstrap-kubelet.conf": {
			"    server: https://api.example:6443", "  user: {token: abcdef.0123456789abcdef}",
			"    certificate-authority-data: " + base64.StdEncoding.EncodeToString(m.in.ClusterCA),
		},
		"etc/kubernetes/kpssh-ca.crt": {"MIIB"},
		"var/lib/kubelet/config.yaml": {
			`providerID: "kpssh://kpssh-system/m01"`, "cgroupDriver: systemd", `- "10.96.0.10"`, "rotateCertificates: true",
			`- key: "karpenter.sh/unregistered"`, "  effect: NoExecute", `- key: "dedicated"`, `  value: "gpu"`, "  effect: NoSchedule",
		},
		"etc/containerd/config.toml":         {"  SystemdCgroup = true", `  bin_dir = "/opt/cni/bin"`},
		"etc/systemd/system/kubelet.service": {"WantedBy=multi-user.target"},
		"etc/systemd/system/kubelet.service.d/90-kpssh.conf": {
			"StartLimitIntervalSec=0", "ExecStart=",
		},
	} {
		text := "\n" + strings.ReplaceAll(m.read(file), m.root, "") + "\n"
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("%s lacks %q:\n%s", file, line, text)
			}
		}
	}
	start := m.read("etc/systemd/system/kubelet.service.d/90-kpssh.conf")
	for _, flag := range []string{"--hostname-override=pool-x7k2p", "--node-ip=10.0.0.11", "--node-labels=app.example/tier=web,team=a", "--config-dir=", "--bootstrap-kubeconfig="} {
		if !strings.Contains(start, flag) {
			t.Errorf("the kubelet lacks %s:\n%s", flag, start)
		}
	}
	for _, unit := range []string{"containerd", "kubelet"} {
		if !m.exists("state/"+unit+"/enabled") || !m.exists("state/"+unit+"/active") {
			t.Errorf("%s is not enabled and started", unit)
		}
	}
	if m.read("proc/sys/net/ipv4/ip_forward") != "1\n" {
		t.Error("the machine does not forward its pods' packets")
	}
}

// E5, and a machine whose leave never ran: the token is used unless the identity fits and lasts.
func TestJoinKeepsOnlyAnIdentityThatFits(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	otherCA := []byte("-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n")
	for _, test := range []struct {
		name     string
		node     string
		endpoint string
		ca       []byte // nil: the cluster's
		left     time.Duration
		kept     bool
	}{
		{"fits", "pool-x7k2p", "https://api.example:6443", nil, year, true},
		{"ended an hour ago", "pool-x7k2p", "https://api.example:6443", nil, -time.Hour, false},
		{"ends within a day", "pool-x7k2p", "https://api.example:6443", nil, 23 * time.Hour, false},
		{"another NodeClaim's", "pool-aaaaa", "https://api.example:6443", nil, year, false},
		{"a longer name's", "pool-x7k2p-2", "https://api.example:6443", nil, year, false},
		{"another cluster's CA", "pool-x7k2p", "https://api.example:6443", otherCA, year, false},
		{"another address", "pool-x7k2p", "https://api.example:64430", nil, year, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "tls-bootstrap")
			if test.ca == nil {
				test.ca = m.in.ClusterCA
			}
			m.register(test.node, test.endpoint, test.ca, test.left)
			m.must(Join)
			for _, file := range []string{"etc/kubernetes/kubelet.conf", "var/lib/kubelet/pki/kubelet-client-current.pem"} {
				if m.exists(file) != test.kept {
					t.Errorf("%s is there: %v, want %v", file, !test.kept, test.kept)
				}
			}
		})
	}
}

func TestJoinTwiceRestartsNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "tls-bootstrap")
	m.must(Join)
	m.register(m.in.NodeName, m.in.ClusterEndpoint, m.in.ClusterCA, 365*24*time.Hour)
	m.calls()
	m.must(Join)
	if calls := m.calls(); strings.Contains(calls, "restart") || strings.Contains(calls, "stop") || strings.Contains(calls, "daemon-reload") {
		t.Errorf("a join that was cut off and came again disturbs the node:\n%s", calls)
	}
	m.in.NodeLabels["team"] = "b"
	m.must(Join)
	if calls := m.calls(); !strings.Contains(calls, "systemctl restart kubelet.service") {
		t.Errorf("changed labels do not reach the kubelet:\n%s", calls)
	}
}

func TestJoinNodeIP(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"2001:db8::11":     "--node-ip=2001:db8::11",
		"[2001:db8::11]":   "--node-ip=2001:db8::11",
		"m01.example":      "", // section 2 #50: the kubelet takes no names
		"10.0.0.11.nip.io": "",
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "tls-bootstrap")
			m.in.NodeAddress = address
			m.must(Join)
			start := m.read("etc/systemd/system/kubelet.service.d/90-kpssh.conf")
			if got := strings.Contains(start, "--node-ip"); got != (want != "") || !strings.Contains(start, want) {
				t.Errorf("want %q in\n%s", want, start)
			}
		})
	}
	m := newMachine(t, "tls-bootstrap")
	m.in.NodeAddress = "203.0.113.9"
	if code, out := m.run(Join); code == 0 || !strings.Contains(out, "set spec.nodeAddress") {
		t.Errorf("an address behind a NAT: exit %d\n%s", code, out)
	}
}

// Section 2 #47 #48, and what administrators wrote.
func TestJoinRespectsWhatIsOnTheMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "tls-bootstrap")
	m.write("usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n", 0o644)
	m.write("etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n", 0o644)
	m.write("etc/containerd/config.toml", "version = 2\n# mine\n", 0o644)
	m.must(Join)
	if m.read("etc/systemd/system/kubelet.service") != "[Service]\nExecStart=/usr/bin/kubelet\n" || m.read("etc/containerd/config.toml") != "version = 2\n# mine\n" {
		t.Error("an administrator's file is overwritten")
	}
	if !strings.Contains(m.read("etc/systemd/system/kubelet.service.d/90-kpssh.conf"), "ExecStart=\nExecStart=") {
		t.Error("no drop-in after kubeadm's that resets its command")
	}
	m.must(Leave)
	if !m.exists("etc/systemd/system/kubelet.service") || m.exists("etc/systemd/system/kubelet.service.d/90-kpssh.conf") {
		t.Error("leave removes an administrator's unit, or leaves our drop-in")
	}

	m.write("etc/containerd/config.toml", `disabled_plugins = ["cri"]`+"\n", 0o644)
	if code, out := m.run(Join); code == 0 || !strings.Contains(out, "remove it from disabled_plugins") {
		t.Errorf("containerd without cri: exit %d\n%s", code, out)
	}
	// The same file as the package brought it is nobody's work.
	m.write("conffiles", " "+m.root+"/etc/containerd/config.toml 3e0d6bbc4a5a3b1e0b1f0a0a0a0a0a0a\n", 0o644)
	if code, _ := m.run(Join); code == 0 {
		t.Error("a changed conffile is taken for the package's")
	}
	sum, err := exec.CommandContext(t.Context(), "md5sum", filepath.Join(m.root, "etc/containerd/config.toml")).Output()
	if err != nil {
		t.Fatal(err)
	}
	m.write("conffiles", " "+m.root+"/etc/containerd/config.toml "+strings.Fields(string(sum))[0]+"\n", 0o644)
	m.in.Vars = map[string]string{"CGROUP_DRIVER": "cgroupfs", "SANDBOX_IMAGE": "registry.local/pause:1", "CLUSTER_DNS": "10.0.0.10,fd00::10"}
	m.must(Join)
	if config := m.read("etc/containerd/config.toml"); !strings.Contains(config, "SystemdCgroup = false") || !strings.Contains(config, `sandbox_image = "registry.local/pause:1"`) {
		t.Errorf("containerd's configuration:\n%s", config)
	}
	if config := m.read("var/lib/kubelet/config.yaml"); !strings.Contains(config, "cgroupDriver: cgroupfs") || !strings.Contains(config, "- \"10.0.0.10\"\n- \"fd00::10\"\n") {
		t.Errorf("kubelet's configuration:\n%s", config)
	}
}

func TestJoinRefusesAControlPlane(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "tls-bootstrap")
	m.write("etc/kubernetes/manifests/kube-apiserver.yaml", "", 0o600)
	for _, phase := range []Phase{Install, Join} {
		if code, out := m.run(phase); code == 0 || !strings.Contains(out, "control plane") {
			t.Errorf("%s: exit %d\n%s", phase, code, out)
		}
	}
}

// Section 2 #45: what left stays out over a reboot; and a leave may come twice, or to a machine that never joined.
func TestLeaveUndoesJoin(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "tls-bootstrap")
	m.must(Leave)
	m.must(Join)
	m.register(m.in.NodeName, m.in.ClusterEndpoint, m.in.ClusterCA, 365*24*time.Hour)
	m.write("containers", "c1\nc2\n", 0o644)
	m.write("etc/cni/net.d/10-flannel.conflist", "{}", 0o644)
	m.write("var/lib/kubelet/pods/uid/volume", "", 0o600)
	m.write("var/lib/kubelet/cpu_manager_state", "", 0o600)
	m.write("var/lib/cni/networks/pods/10.244.1.2", "c1\neth0", 0o600)
	m.write("var/lib/cni/networks/pods/10.244.1.3", "somebody\neth0", 0o600)
	m.calls()
	m.must(Leave)
	for _, unit := range []string{"kubelet", "containerd"} {
		if m.exists("state/"+unit+"/enabled") || m.exists("state/"+unit+"/active") {
			t.Errorf("%s is still enabled or runs", unit)
		}
	}
	calls := m.calls()
	if strings.Index(calls, "disable --now kubelet") > strings.Index(calls, "ctr ") {
		t.Errorf("containers are killed under a running kubelet, which starts them again:\n%s", calls)
	}
	for _, gone := range []string{
		"etc/kubernetes/kubelet.conf", "etc/kubernetes/bootstrap-kubelet.conf", "var/lib/kubelet/pki", "var/lib/kubelet/config.yaml", "var/lib/kubelet/pods",
		"var/lib/kubelet/cpu_manager_state", "run/netns/cni-0a1b", "var/lib/cni/networks/pods/10.244.1.2", "etc/systemd/system/kubelet.service",
	} {
		if m.exists(gone) {
			t.Errorf("%s is left", gone)
		}
	}
	for _, stays := range []string{"etc/cni/net.d/10-flannel.conflist", "var/lib/cni/networks/pods/10.244.1.3", "usr/local/bin/kubelet"} {
		if !m.exists(stays) {
			t.Errorf("%s is not ours, and gone", stays)
		}
	}
	m.must(Leave)
	m.must(Join)
	if !m.exists("state/kubelet/active") {
		t.Error("it cannot join again")
	}
}

func TestLeaveKeepsContainerdForOthers(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*machine){
		"docker": func(m *machine) {
			m.write("usr/lib/systemd/system/docker.service", "", 0o644)
			m.write("state/docker/enabled", "", 0o644)
		},
		"another namespace": func(m *machine) { m.write("namespaces", "moby\n", 0o644) },
	} {
		m := newMachine(t, "tls-bootstrap")
		m.must(Join)
		prepare(m)
		m.must(Leave)
		if !m.exists("state/containerd/active") || m.exists("state/kubelet/active") {
			t.Errorf("%s: containerd runs %v, kubelet runs %v", name, m.exists("state/containerd/active"), m.exists("state/kubelet/active"))
		}
	}
}

// D12 and what else install meets.
func TestInstallFetchesWhatIsMissing(t *testing.T) {
	t.Parallel()
	const download = "#!/bin/sh\necho Kubernetes v1.36\n"
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(download)))
	for _, test := range []struct {
		name    string
		prepare func(*machine)
		code    int
		says    string
		calls   []string
	}{
		{"packages", func(m *machine) { _ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback")) }, 0, "", []string{
			"apt-get -y -o DPkg::Lock::Timeout=300", "update", "install --no-install-recommends containernetworking-plugins",
		}},
		{"D12: the lock is held for a while", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback"))
			m.write("apt-says", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1\nE: Unable to acquire the dpkg frontend lock\n", 0o644)
		}, 0, "", []string{"install --no-install-recommends"}},
		{"D12: the lock is held for too long", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback"))
			m.in.Vars["APT_LOCK_SECONDS"] = "0"
			m.write("apt-says", "E: Could not get lock /var/lib/dpkg/lock-frontend\n", 0o644)
		}, 75, "PackageManagerBusy", nil},
		{"an install that was cut off", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback"))
			m.write("apt-says", "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'\n", 0o644)
		}, 0, "", []string{"dpkg --force-confold --configure -a"}},
		{"no such package", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback"))
			m.write("apt-says", "E: Unable to locate package containernetworking-plugins\n", 0o644)
		}, 1, "Unable to locate package", nil},
		{"section 2 #51: no memory cgroup", func(m *machine) { m.write("sys/fs/cgroup/cgroup.controllers", "cpu pids\n", 0o644) }, 1, "memory cgroup is off", nil},
		{"no kubelet and no address", func(m *machine) { _ = os.Remove(filepath.Join(m.root, "usr/local/bin/kubelet")) }, 1, "set vars KUBELET_URL and KUBELET_SHA256", nil},
		{"an address without a checksum", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/local/bin/kubelet"))
			m.in.Vars["KUBELET_URL"] = "https://mirror/kubelet"
		}, 1, "KUBELET_SHA256", nil},
		{"a kubelet", func(m *machine) {
			_ = os.Remove(filepath.Join(m.root, "usr/local/bin/kubelet"))
			m.in.Vars["KUBELET_URL"], m.in.Vars["KUBELET_SHA256"] = "https://mirror/kubelet", sum
		}, 0, "Kubernetes v1.36", []string{"https://mirror/kubelet"}},
		{"another version than is there", func(m *machine) {
			m.in.Vars["KUBELET_URL"], m.in.Vars["KUBELET_SHA256"] = "https://mirror/kubelet", sum
		}, 0, "Kubernetes v1.36", []string{"https://mirror/kubelet"}},
		{"a tampered kubelet", func(m *machine) {
			m.in.Vars["KUBELET_URL"], m.in.Vars["KUBELET_SHA256"] = "https://mirror/kubelet", strings.Repeat("0", 64)
		}, 1, "does not have the checksum", nil},
		{"the administrator's kubelet is another", func(m *machine) {
			m.in.Vars["KUBELET_PATH"] = m.root + "/usr/bin/kubelet"
			m.write("usr/bin/kubelet", "#!/bin/sh\n", 0o755)
			m.in.Vars["KUBELET_SHA256"] = sum
		}, 1, "is not the kubelet of KPSSH_VAR_KUBELET_SHA256", nil},
		{"the administrator's kubelet", func(m *machine) {
			m.in.Vars["KUBELET_PATH"] = m.root + "/usr/bin/kubelet"
			m.write("usr/bin/kubelet", "#!/bin/sh\n", 0o755)
		}, 0, "is in place", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "tls-bootstrap")
			m.write("download", download, 0o644)
			test.prepare(m)
			code, out := m.run(Install)
			if code != test.code || !strings.Contains(out, test.says) {
				t.Errorf("exit %d, want %d, saying %q:\n%s", code, test.code, test.says, out)
			}
			calls := m.calls()
			for _, call := range test.calls {
				if !strings.Contains(calls, call) {
					t.Errorf("no %q in\n%s", call, calls)
				}
			}
		})
	}
}

// Section 3 #43: not only apt. What is called by another name there is asked for by that.
func TestInstallKnowsTheSystem(t *testing.T) {
	t.Parallel()
	for system, want := range map[string][]string{
		"debian":   {"apt-get", "install --no-install-recommends containernetworking-plugins"},
		"ubuntu":   {"apt-get", "install --no-install-recommends containernetworking-plugins"},
		"raspbian": {"apt-get", "install --no-install-recommends containernetworking-plugins"},
		"rhel":     {"dnf -y --setopt=exit_on_lock=1", "install containernetworking-plugins"},
		"rocky":    {"dnf -y --setopt=exit_on_lock=1", "install containernetworking-plugins"},
		"stream":   {"dnf -y --setopt=exit_on_lock=1", "install containernetworking-plugins"},
	} {
		m := newMachine(t, "tls-bootstrap")
		withoutPlugins(m)
		m.write("etc/os-release", systems[system], 0o644)
		m.must(Install)
		calls := m.calls()
		for _, call := range want {
			if !strings.Contains(calls, call) {
				t.Errorf("%s: no %q in\n%s", system, call, calls)
			}
		}
	}
	m := newMachine(t, "tls-bootstrap")
	withoutPlugins(m)
	m.write("etc/os-release", systems["alpine"], 0o644)
	if code, out := m.run(Install); code == 0 || !strings.Contains(out, "neither") {
		t.Errorf("alpine: exit %d\n%s", code, out)
	}
	m = newMachine(t, "tls-bootstrap")
	m.write("etc/os-release", systems["rocky"], 0o644)
	m.write("usr/libexec/cni/loopback", "", 0o755)
	withoutPlugins(m)
	m.must(Install)
	if calls := m.calls(); strings.Contains(calls, "dnf") || !m.exists("opt/cni/bin/loopback") {
		t.Errorf("plugins where RHEL has them are not found:\n%s", calls)
	}
}

// D12, on the RHEL family.
func TestInstallWaitsForDNF(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, says, lock string
		code             int
		out              string
	}{
		{"for a while", "200 Failed to obtain the transaction lock\n", "300", 0, ""},
		{"rpm itself", "1 RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock\n", "300", 0, ""},
		{"for too long", "200 Failed to obtain the transaction lock\n", "0", 75, "PackageManagerBusy"},
		{"no such package", "1 No match for argument: containerd.io\n", "300", 1, "No match for argument"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t, "tls-bootstrap")
			withoutPlugins(m)
			m.write("etc/os-release", systems["rocky"], 0o644)
			m.write("dnf-says", test.says, 0o644)
			m.in.Vars["APT_LOCK_SECONDS"] = test.lock
			if code, out := m.run(Install); code != test.code || !strings.Contains(out, test.out) {
				t.Errorf("exit %d, want %d, saying %q:\n%s", code, test.code, test.out, out)
			}
		})
	}
}
