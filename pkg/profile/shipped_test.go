package profile

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// downloaded is what stand-ins of downloads give, a script that tells how it is called; what it gets to read is kept as <name>-saw.
	downloaded = `#!/bin/bash
name=${0##*/}
echo "$name $*" >>"$ROOT/calls"
echo "$name $*" >>"$ROOT/argv"
case "$1" in
--version) echo "$name version" ;;
install) if [[ -s $ROOT/apt-says ]]; then head -n 1 "$ROOT/apt-says" >&2; sed -i 1d "$ROOT/apt-says"; exit 1; fi ;;
init) cp "${3#file://}" "$ROOT/$name-saw" ;;
esac
`
	always = 365 * 24 * time.Hour
)

// kind is what the tests of all profiles know of one.
type kind struct {
	// prepare completes a machine and its inputs.
	prepare func(*machine)
	// config is the file in which a join says what the kubelet is told; unit runs it.
	config, unit string
	// nodeIP, label and taint are as config spells them.
	nodeIP, label, taint string
	// manager is the variable for how long install waits for other package managers; empty if it installs no packages.
	lock string
	// installs makes install want packages.
	installs func(*machine)
}

func withoutPlugins(m *machine) { _ = os.Remove(filepath.Join(m.root, "usr/lib/cni/loopback")) }

func fetched(url, sum, secret string) func(*machine) {
	return func(m *machine) {
		m.write("download", downloaded, 0o644)
		m.in.Vars[url], m.in.Vars[sum] = "https://mirror/it", fmt.Sprintf("%x", sha256.Sum256([]byte(downloaded)))
		m.in.Vars["SERVER"] = "https://servers.example:9345"
		if secret != "" {
			m.in.Secrets = map[string][]byte{secret: []byte("s3cr3t-agents-token")}
		}
	}
}

var kinds = map[string]kind{
	"tls-bootstrap": {
		prepare: func(*machine) {}, config: "etc/systemd/system/kubelet.service.d/90-kpssh.conf", unit: "kubelet",
		nodeIP: "--node-ip=", label: "team=a", lock: "APT_LOCK_SECONDS", installs: withoutPlugins,
	},
	"sbc": {
		prepare: func(*machine) {}, config: "etc/systemd/system/kubelet.service.d/90-kpssh.conf", unit: "kubelet",
		nodeIP: "--node-ip=", label: "team=a", lock: "APT_LOCK_SECONDS", installs: withoutPlugins,
	},
	"kubeadm": {
		prepare: func(m *machine) {
			m.write("bin/kubelet", "#!/bin/sh\n", 0o755)
			m.write("usr/lib/systemd/system/kubelet.service", "", 0o644)
		},
		config: "kubeadm-saw", unit: "kubelet", nodeIP: `- {name: node-ip, value: "`, label: "team=a", taint: `- key: "karpenter.sh/unregistered"`,
		lock: "APT_LOCK_SECONDS", installs: withoutPlugins,
	},
	"k3s": {
		prepare: fetched("K3S_URL", "K3S_SHA256", "k3s-token"), config: "etc/rancher/k3s/config.yaml.d/90-kpssh.yaml", unit: "k3s-agent",
		nodeIP: `node-ip: "`, label: `- "team=a"`, taint: `- "karpenter.sh/unregistered:NoExecute"`,
	},
	"rke2": {
		prepare: fetched("RKE2_URL", "RKE2_SHA256", "rke2-token"), config: "etc/rancher/rke2/config.yaml.d/90-kpssh.yaml", unit: "rke2-agent",
		nodeIP: `node-ip: "`, label: `- "team=a"`, taint: `- "karpenter.sh/unregistered:NoExecute"`,
	},
	"nodeadm-ssm": {
		prepare: func(m *machine) {
			fetched("NODEADM_URL", "NODEADM_SHA256", "")(m)
			m.in.Vars["KUBERNETES_VERSION"], m.in.Vars["CLUSTER_NAME"], m.in.Vars["REGION"] = "1.35", "my-cluster", "eu-central-1"
			m.in.Secrets = map[string][]byte{"activation-code": []byte("s3cr3t-code"), "activation-id": []byte("s3cr3t-id")}
			m.write("usr/lib/systemd/system/kubelet.service", "", 0o644)
		},
		config: "nodeadm-saw", unit: "kubelet", nodeIP: "--node-ip=", label: "team=a", taint: "--register-with-taints=karpenter.sh/unregistered:NoExecute",
		lock: "LOCK_SECONDS", installs: func(*machine) {},
	},
}

func newKind(t *testing.T, name string) (*machine, kind) {
	t.Helper()
	m := newMachine(t, name)
	kinds[name].prepare(m)
	return m, kinds[name]
}

// ofEach runs a test for each shipped profile.
func ofEach(t *testing.T, run func(*testing.T, string)) {
	t.Helper()
	for name := range examples(t) {
		if _, known := kinds[name]; !known {
			t.Errorf("profile %s is shipped and not tested", name)
			continue
		}
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t, name) })
	}
}

// Section 2 #1: that nothing secret is printed or on a command line is checked by every run of every phase.
func TestEveryShippedProfileJoins(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		m, k := newKind(t, name)
		m.must(Install)
		if m.exists("state/" + k.unit + "/enabled") {
			t.Error("install enables the kubelet: the machine would be a node after a reboot, before it is one")
		}
		m.must(Join)
		if !m.exists("state/" + k.unit + "/enabled") {
			t.Errorf("join does not enable %s", k.unit)
		}
		config := m.read(k.config)
		for _, want := range []string{k.nodeIP + "10.0.0.11", k.label, k.taint} {
			if !strings.Contains(config, want) {
				t.Errorf("%s lacks %q (section 2 #28, section 3 #44):\n%s", k.config, want, config)
			}
		}
		if strings.Contains(config, "kubernetes.io/arch") {
			t.Error("section 2 #27: a label that the kubelet may not set")
		}
		_ = filepath.WalkDir(m.root, func(path string, entry os.DirEntry, _ error) error {
			if entry == nil || entry.IsDir() || strings.HasSuffix(path, "-saw") {
				return nil
			}
			raw, _ := os.ReadFile(path)
			info, err := os.Stat(path)
			if err == nil && info.Mode().Perm()&0o077 != 0 && (strings.Contains(string(raw), "s3cr3t-") || strings.Contains(string(raw), "0123456789abcdef")) {
				t.Errorf("%s holds a secret and has mode %s", path, info.Mode())
			}
			return nil
		})
	})
}

// Section 2 #50: a DNS name gives no node-ip, IP literals of both families do.
func TestEveryShippedProfileChecksTheNodeIP(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		for address, want := range map[string]string{"m01.example": "", "10.0.0.11": "10.0.0.11", "[2001:db8::11]": "2001:db8::11"} {
			m, k := newKind(t, name)
			m.must(Install)
			m.in.NodeAddress = address
			m.must(Join)
			config := m.read(k.config)
			if got := strings.Contains(config, k.nodeIP); got != (want != "") || !strings.Contains(config, want) {
				t.Errorf("%s: want node-ip %q in\n%s", address, want, config)
			}
		}
	})
}

// Section 3 #44: a machine that joins again, warm, is told of its present claim; and one that is asked twice is left in peace.
func TestEveryShippedProfileJoinsWarm(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		m, k := newKind(t, name)
		m.must(Install)
		m.must(Install)
		m.must(Join)
		if k.unit == "kubelet" {
			m.register(m.in.NodeName, m.in.ClusterEndpoint, m.in.ClusterCA, always)
		}
		m.calls()
		m.in.BootstrapToken = "fedcba.0123456789abcdef"
		if name != "tls-bootstrap" && name != "sbc" { // they keep the new token for a kubelet that may need it
			m.must(Join)
			if calls := m.calls(); strings.Contains(calls, "restart") || strings.Contains(calls, "systemctl stop") || strings.Contains(calls, "kubeadm join") {
				t.Errorf("the same join again disturbs the node:\n%s", calls)
			}
		}
		m.in.NodeName, m.in.Taints = "pool-other", []corev1.Taint{{Key: "second", Value: "claim", Effect: corev1.TaintEffectNoSchedule}}
		m.in.NodeLabels = map[string]string{"team": "second"}
		m.must(Leave)
		m.must(Join)
		config := m.read(k.config) + m.read("var/lib/kubelet/config.yaml")
		if !strings.Contains(config, "team=second") || !strings.Contains(config, "second") || strings.Contains(config, "dedicated") {
			t.Errorf("the kubelet is told of an earlier claim:\n%s", config)
		}
	})
}

// Section 2 #45 #46: after leave nothing makes the machine a node again, and leave may come twice, or to a machine that never joined.
func TestEveryShippedProfileLeaves(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		m, k := newKind(t, name)
		m.must(Leave)
		m.must(Install)
		m.must(Join)
		m.write("etc/rancher/node/password", "0badc0de", 0o600)
		m.write("etc/cni/net.d/10-calico.conflist", "{}", 0o644)
		m.write("etc/cni/net.d/90-mine.conflist", "{}", 0o644)
		m.in = Inputs{HostAddress: m.in.HostAddress, NodeAddress: m.in.NodeAddress, Secrets: m.in.Secrets}
		m.must(Leave)
		if m.exists("state/"+k.unit+"/enabled") || m.exists("state/"+k.unit+"/active") {
			t.Errorf("%s is still enabled or runs", k.unit)
		}
		for _, stays := range []string{"etc/rancher/node/password" /* E4 */, "etc/cni/net.d/10-calico.conflist", "etc/cni/net.d/90-mine.conflist"} {
			if !m.exists(stays) {
				t.Errorf("%s is not ours, and gone", stays)
			}
		}
		for _, secret := range []string{"etc/rancher/k3s/kpssh-token", "etc/rancher/rke2/kpssh-token", "etc/kubernetes/kpssh-discovery.conf", "etc/kubernetes/kpssh-join.yaml", "etc/kpssh/nodeConfig.yaml"} {
			if m.exists(secret) {
				t.Errorf("%s is left", secret)
			}
		}
		m.must(Leave)
	})
}

// D12: no machine is at fault because its own updates run.
func TestEveryShippedProfileWaitsForPackageManagers(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		if kinds[name].lock == "" {
			t.Skip("installs no packages")
		}
		m, k := newKind(t, name)
		k.installs(m)
		m.write("apt-says", "E: Could not get lock /var/lib/dpkg/lock-frontend\n", 0o644)
		m.must(Install)

		m, k = newKind(t, name)
		k.installs(m)
		m.in.Vars[k.lock] = "0"
		m.write("apt-says", "E: Could not get lock /var/lib/dpkg/lock-frontend\n", 0o644)
		if code, out := m.run(Install); code != 75 || !strings.Contains(out, "PackageManagerBusy") {
			t.Errorf("exit %d\n%s", code, out)
		}
	})
}

// Section 2 #51: and nothing is half done.
func TestEveryShippedProfileLooksForTheMemoryCgroup(t *testing.T) {
	ofEach(t, func(t *testing.T, name string) {
		m, _ := newKind(t, name)
		m.write("sys/fs/cgroup/cgroup.controllers", "cpu pids\n", 0o644)
		code, out := m.run(Install)
		if code == 0 || !strings.Contains(out, "memory cgroup is off") || !strings.Contains(out, "cgroup_enable=memory") {
			t.Errorf("exit %d\n%s", code, out)
		}
		if calls := m.calls(); strings.Contains(calls, "curl") || strings.Contains(calls, "apt-get") || strings.Contains(calls, "dnf") {
			t.Errorf("something was installed before:\n%s", calls)
		}
	})
}

func TestEveryShippedScriptIsSoundBash(t *testing.T) {
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Log("shellcheck is not installed (make e2e-deps): only the syntax is checked")
	}
	ofEach(t, func(t *testing.T, name string) {
		p := examples(t)[name]
		for _, phase := range append(slices.Clone(Phases[:]), uninstall) {
			check := func(command string, args ...string) {
				cmd := exec.CommandContext(t.Context(), command, args...)
				cmd.Stdin = strings.NewReader(script(&p.Spec, phase))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %s: %v\n%s", phase, command, err, out)
				}
			}
			check("bash", "-n")
			if shellcheck != "" {
				check(shellcheck, "--shell=bash", "-")
			}
		}
	})
}
