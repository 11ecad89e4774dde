package probe

import (
	"os"
	"path/filepath"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// A host in Verified mode is asked by its shim's own probe, which needs no signer; one of the existing provider tells less, and that is enough.
func TestVerifiedHostsAreProbedByTheirShim(t *testing.T) {
	for _, old := range []bool{false, true} {
		m := newMachine(t)
		command, env, err := sshtest.InstallShim(filepath.Join(m.dir, "shim"))
		if err != nil {
			t.Fatal(err)
		}
		if old {
			if err := sshtest.OldShim(filepath.Join(m.dir, "shim")); err != nil {
				t.Fatal(err)
			}
		}
		path := m.dir + ":" + os.Getenv("PATH")
		m.Exec = sshtest.Shell{Dir: m.dir, Env: append(env, "PATH="+path, "KPSSH_PATH="+path, "HOME="+m.dir, "KPSSH_STATE_DIR="+m.dir)}.Exec
		m.host.Spec.ExecMode, m.host.Spec.TrustedSigners, m.host.Spec.ShimCommand = v1beta1.ExecModeVerified, []string{"ssh-ed25519 AAAA"}, command
		w := newWorld(t, clock.RealClock{}, m.host, m.secret)
		w.follow()
		w.step()
		h := w.get("h1")
		if h.Status.State != v1beta1.HostAvailable || h.Status.ObservedCapacity.Cpu().Value() < 1 || h.Status.ObservedArch == "" {
			t.Errorf("old %v: status is %+v", old, h.Status)
		}
		// An old shim does not tell the time.
		if !old && !apimeta.IsStatusConditionPresentAndEqual(h.Status.Conditions, v1beta1.ConditionClockSynced, metav1.ConditionTrue) {
			t.Errorf("conditions are %+v", h.Status.Conditions)
		}
	}
}

func TestFactsOfOldShims(t *testing.T) {
	t.Parallel()
	units := []string{"kubelet.service", "k3s.service"}
	f, err := parseOldFacts("4\n8123456\naarch64\nactive\n", units)
	if err != nil || f.cpu.Value() != 4 || f.memory.Value() != 8123456*1024 || f.arch != "arm64" || !f.units[0].running() || f.units[1].running() || !f.clock.IsZero() {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := parseOldFacts("4 8123456 x86_64", units); err != nil || f.units[0].running() || f.arch != "amd64" {
		t.Errorf("%+v, %v", f, err)
	}
	for _, odd := range []string{"", "4 8123456", "0 8123456 x86_64", "four 8123456 x86_64", "4 8123456 x86/64"} {
		if _, err := parseOldFacts(odd, units); err == nil {
			t.Errorf("%q is taken for facts", odd)
		}
	}
}
