package profile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What one agent's profile has to do, the other's has too.
func ofAgents(t *testing.T, run func(t *testing.T, name string)) {
	t.Helper()
	for _, name := range []string{"k3s", "rke2"} {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t, name) })
	}
}

func TestAgentJoinWritesItsConfiguration(t *testing.T) {
	ofAgents(t, func(t *testing.T, name string) {
		m, k := newKind(t, name)
		m.must(Install)
		m.must(Join)
		config := strings.ReplaceAll(m.read(k.config), m.root, "")
		for _, line := range []string{
			`server: "https://servers.example:9345"`, "token-file: /etc/rancher/" + name + "/kpssh-token", `node-name: "pool-x7k2p"`,
			"node-taint:", `- "dedicated=gpu:NoSchedule"`, "kubelet-arg:", `- "provider-id=kpssh://kpssh-system/m01"`,
		} {
			if !strings.Contains(config, line+"\n") {
				t.Errorf("no %q in\n%s", line, config)
			}
		}
		for _, file := range []string{"etc/rancher/" + name + "/kpssh-token", k.config} {
			if info, err := os.Stat(filepath.Join(m.root, file)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
		if calls := m.calls(); !strings.Contains(calls, "restart --no-block "+name+"-agent.service") {
			t.Errorf("join waits for the node, or does not start it:\n%s", calls)
		}
	})
}

func TestAgentNeedsItsTokenAndAPinnedDownload(t *testing.T) {
	ofAgents(t, func(t *testing.T, name string) {
		m, _ := newKind(t, name)
		m.must(Install)
		m.in.Secrets = nil
		if code, out := m.run(Join); code == 0 || !strings.Contains(out, name+"-token") {
			t.Errorf("without token: exit %d\n%s", code, out)
		}
		variable := strings.ToUpper(name) + "_SHA256"
		m, _ = newKind(t, name)
		m.in.Vars[variable] = strings.Repeat("0", 64)
		if code, out := m.run(Install); code == 0 || !strings.Contains(out, "does not have the checksum") {
			t.Errorf("a tampered download: exit %d\n%s", code, out)
		}
		delete(m.in.Vars, variable)
		if code, out := m.run(Install); code == 0 || !strings.Contains(out, variable) {
			t.Errorf("without checksum: exit %d\n%s", code, out)
		}
	})
}

func TestAgentIsNotPutOnAServer(t *testing.T) {
	ofAgents(t, func(t *testing.T, name string) {
		for _, unit := range []string{"k3s", "rke2-server"} {
			m, _ := newKind(t, name)
			m.write("usr/lib/systemd/system/"+unit+".service", "", 0o644)
			m.must(Install) // a unit alone is none
			m.write("state/"+unit+"/enabled", "", 0o644)
			if code, out := m.run(Install); code == 0 || !strings.Contains(out, "is a server of a cluster") {
				t.Errorf("%s: exit %d\n%s", unit, code, out)
			}
		}
	})
}

func TestAgentLeavesNoIdentity(t *testing.T) {
	ofAgents(t, func(t *testing.T, name string) {
		m, k := newKind(t, name)
		m.must(Install)
		m.must(Join)
		agent := "var/lib/rancher/" + name + "/agent/"
		for _, file := range []string{"client-kubelet.crt", "client-kubelet.key", "kubelet.kubeconfig", "etc/" + name + "-agent-load-balancer.json", "containerd/image"} {
			m.write(agent+file, "x", 0o600)
		}
		m.write("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/c1/config.json", `{"path":"`+m.root+`/run/netns/cni-0a1b"}`, 0o600)
		m.write("run/netns/cni-ffff", "", 0o644)
		m.must(Leave)
		for _, gone := range []string{k.config, agent + "client-kubelet.crt", agent + "client-kubelet.key", agent + "kubelet.kubeconfig", agent + "etc/" + name + "-agent-load-balancer.json", "run/netns/cni-0a1b"} {
			if m.exists(gone) {
				t.Errorf("%s is left", gone)
			}
		}
		for _, stays := range []string{agent + "containerd/image", "run/netns/cni-ffff"} {
			if !m.exists(stays) {
				t.Errorf("%s is gone: an image of ours that costs a download, or a network of somebody else's", stays)
			}
		}
	})
}

// Shims outlive the agent; what other units run stays.
func TestAgentLeavesNoContainer(t *testing.T) {
	ofAgents(t, func(t *testing.T, name string) {
		m, _ := newKind(t, name)
		shim, other := exec.CommandContext(t.Context(), "sleep", "300"), exec.CommandContext(t.Context(), "sleep", "300")
		for cgroup, process := range map[string]*exec.Cmd{"system.slice/" + name + "-agent.service": shim, "system.slice/containerd.service": other} {
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			m.write("sys/fs/cgroup/"+cgroup+"/cgroup.procs", fmt.Sprintln(process.Process.Pid), 0o644)
		}
		m.must(Leave)
		if err := shim.Wait(); err == nil {
			t.Error("the shim ended by itself")
		}
		if err := other.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("another unit's process was ended: %v", err)
		}
		_ = other.Process.Kill()
		_ = other.Wait()
	})
}

func TestK3sOfSomebodyElseIsLeftAlone(t *testing.T) {
	t.Parallel()
	m, _ := newKind(t, "k3s")
	m.write("etc/systemd/system/k3s-agent.service", "[Service]\nExecStart=/usr/local/bin/k3s agent\n", 0o644)
	if code, out := m.run(Install); code == 0 || !strings.Contains(out, "somebody installed a k3s agent") {
		t.Errorf("exit %d\n%s", code, out)
	}
	m.must(Leave)
	if !m.exists("etc/systemd/system/k3s-agent.service") {
		t.Error("leave removes somebody else's unit")
	}
}
