package profile

import (
	"strings"
	"testing"
)

func TestNodeadmGetsThisClaimsConfiguration(t *testing.T) {
	t.Parallel()
	m, _ := newKind(t, "nodeadm-ssm")
	m.in.ProviderID = "" // nodeadm's own: providerIDSource Adopt
	m.must(Install)
	if calls := m.calls(); !strings.Contains(calls, "nodeadm install 1.35 --credential-provider ssm --region eu-central-1") {
		t.Errorf("calls:\n%s", calls)
	}
	m.must(Join)
	config := m.read("nodeadm-saw")
	for _, line := range []string{
		`    name: "my-cluster"`, `    region: "eu-central-1"`, `      activationCode: "s3cr3t-code"`, `      activationId: "s3cr3t-id"`,
		`    - "--register-with-taints=karpenter.sh/unregistered:NoExecute,dedicated=gpu:NoSchedule"`, `    - "--node-labels=app.example/tier=web,team=a"`, `    - "--node-ip=10.0.0.11"`,
	} {
		if !strings.Contains(config, line+"\n") {
			t.Errorf("no %q in\n%s", line, config)
		}
	}
	if m.exists("etc/kpssh/nodeConfig.yaml") {
		t.Error("the activation outlives the join")
	}
	m.must(Leave)
	if calls := m.calls(); strings.Contains(calls, "nodeadm uninstall") {
		t.Errorf("leave spends a registration:\n%s", calls)
	}
}

// Section 3 #43: what `latest` gives today is not what was tested.
func TestNodeadmIsPinned(t *testing.T) {
	t.Parallel()
	m, _ := newKind(t, "nodeadm-ssm")
	m.in.Vars["NODEADM_SHA256"] = strings.Repeat("0", 64)
	if code, out := m.run(Install); code == 0 || !strings.Contains(out, "does not have the checksum") || m.exists("usr/local/bin/nodeadm") {
		t.Errorf("exit %d\n%s", code, out)
	}
	for _, missing := range []string{"NODEADM_URL", "NODEADM_SHA256", "KUBERNETES_VERSION", "REGION"} {
		m, _ := newKind(t, "nodeadm-ssm")
		delete(m.in.Vars, missing)
		if code, out := m.run(Install); code == 0 || !strings.Contains(out, missing) {
			t.Errorf("without %s: exit %d\n%s", missing, code, out)
		}
	}
	m, _ = newKind(t, "nodeadm-ssm")
	m.must(Install)
	m.in.Secrets = map[string][]byte{"activation-code": []byte("s3cr3t-code")}
	if code, out := m.run(Join); code == 0 || !strings.Contains(out, "activation-id") {
		t.Errorf("without activation: exit %d\n%s", code, out)
	}
}
