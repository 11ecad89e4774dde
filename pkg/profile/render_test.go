package profile

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// full are inputs with something in every field.
func full() Inputs {
	return Inputs{
		ClusterEndpoint: "https://api.example:6443",
		ClusterCA:       []byte("-----BEGIN CERTIFICATE-----\n"),
		BootstrapToken:  "abcdef.0123456789abcdef",
		NodeName:        "pool-x7k2p",
		ProviderID:      "kpssh://kpssh-system/m01",
		NodeLabels:      map[string]string{"team": "a", "kubernetes.io/arch": "amd64", "app.example/tier": "web"},
		Taints:          []corev1.Taint{{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule}},
		HostAddress:     "192.0.2.11",
		NodeAddress:     "10.0.0.11",
		Vars:            map[string]string{"Mixed_case1": "v a'l"},
		Secrets:         map[string][]byte{"activation-code.v1": []byte("s3cret-value")},
	}
}

func scriptsOf(install, join, leave string) Revision {
	p := sound()
	p.Spec.Scripts = v1beta1.Scripts{Install: install, Join: join, Leave: leave}
	return RevisionOf(p)
}

// The environment contract, name by name (compat B.7).
func TestEnvironmentOfEachPhase(t *testing.T) {
	const ca = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="
	type row map[Phase]string
	absent := "\x00absent"
	want := map[string]row{
		"KPSSH_CLUSTER_ENDPOINT":          {Install: "https://api.example:6443", Join: "https://api.example:6443", Leave: ""},
		"KPSSH_CLUSTER_CA_B64":            {Install: ca, Join: ca, Leave: ""},
		"KPSSH_BOOTSTRAP_TOKEN":           {Install: "", Join: "abcdef.0123456789abcdef", Leave: ""},
		"KPSSH_NODE_NAME":                 {Install: "pool-x7k2p", Join: "pool-x7k2p", Leave: ""},
		"KPSSH_PROVIDER_ID":               {Install: "kpssh://kpssh-system/m01", Join: "kpssh://kpssh-system/m01", Leave: ""},
		"KPSSH_NODE_LABELS":               {Install: "app.example/tier=web,team=a", Join: "app.example/tier=web,team=a", Leave: ""},
		"KPSSH_TAINTS":                    {Install: "karpenter.sh/unregistered:NoExecute,dedicated=gpu:NoSchedule", Join: "karpenter.sh/unregistered:NoExecute,dedicated=gpu:NoSchedule", Leave: ""},
		"KPSSH_HOST_ADDRESS":              {Install: "192.0.2.11", Join: "192.0.2.11", Leave: "192.0.2.11"},
		"KPSSH_NODE_ADDRESS":              {Install: "10.0.0.11", Join: "10.0.0.11", Leave: "10.0.0.11"},
		"KPSSH_VAR_Mixed_case1":           {Install: "v a'l", Join: "v a'l", Leave: absent},
		"KPSSH_SECRET_ACTIVATION_CODE_V1": {Install: "s3cret-value", Join: "s3cret-value", Leave: absent},
	}
	for _, phase := range Phases {
		rendered, err := Render(RevisionOf(sound()), phase, full())
		if err != nil {
			t.Fatalf("%s: %v", phase, err)
		}
		for name, row := range want {
			got, found := rendered.Env[name]
			if !found {
				got = absent
			}
			if got != row[phase] {
				t.Errorf("%s: %s = %q, want %q", phase, name, got, row[phase])
			}
			delete(rendered.Env, name)
		}
		if len(rendered.Env) > 0 {
			t.Errorf("%s: more than the contract: %v", phase, slices.Sorted(maps.Keys(rendered.Env)))
		}
		if rendered.Timeout != Timeout(&v1beta1.SSHJoinProfileSpec{}, phase) {
			t.Errorf("%s: timeout %s", phase, rendered.Timeout)
		}
	}
}

func TestTemplateFieldsOfEachPhase(t *testing.T) {
	const all = "{{.ClusterEndpoint}}|{{.ClusterCACert}}|{{.BootstrapToken}}|{{.NodeName}}|{{.ProviderID}}|{{.NodeLabels}}|{{.RegisterWithTaints}}|{{.HostAddress}}|{{.NodeAddress}}"
	const known = "https://api.example:6443|-----BEGIN CERTIFICATE-----\n|%|pool-x7k2p|kpssh://kpssh-system/m01|app.example/tier=web,team=a|karpenter.sh/unregistered:NoExecute,dedicated=gpu:NoSchedule|192.0.2.11|10.0.0.11"
	const more = `|{{.Vars.Mixed_case1}}|{{index .Secrets "activation-code.v1"}}`
	revision := scriptsOf(all+more, all+more, all)
	for phase, want := range map[Phase]string{
		Install: strings.Replace(known, "%", "", 1) + "|v a'l|s3cret-value",
		Join:    strings.Replace(known, "%", "abcdef.0123456789abcdef", 1) + "|v a'l|s3cret-value",
		Leave:   "|||||||192.0.2.11|10.0.0.11",
	} {
		rendered, err := Render(revision, phase, full())
		if err != nil {
			t.Fatalf("%s: %v", phase, err)
		}
		if rendered.Body != want {
			t.Errorf("%s:\n got %q\nwant %q", phase, rendered.Body, want)
		}
	}
}

func TestNodeAddressIsTheHostAddressUnlessGiven(t *testing.T) {
	in := full()
	in.NodeAddress = ""
	for _, phase := range Phases {
		rendered, err := Render(RevisionOf(sound()), phase, in)
		if err != nil || rendered.Env["KPSSH_NODE_ADDRESS"] != "192.0.2.11" {
			t.Errorf("%s: %q, %v", phase, rendered.Env["KPSSH_NODE_ADDRESS"], err)
		}
	}
}

func TestRenderBlamesTheConfiguration(t *testing.T) {
	with := func(edit func(*Inputs)) Inputs {
		in := full()
		edit(&in)
		return in
	}
	for _, test := range []struct {
		name   string
		join   string
		in     Inputs
		reason string
		says   string
	}{
		{"a var that the class does not have", "{{ .Vars.missing }}", full(), v1beta1.ReasonProfileInvalid, `map has no entry for key "missing"`},
		{"a secret that the Secret does not have", "{{ .Secrets.missing }}", full(), v1beta1.ReasonProfileInvalid, "add what it misses"},
		{"a template without end", `{{ define "x" }}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{{ template "x" . }}{{ end }}{{ template "x" . }}`, full(), v1beta1.ReasonProfileInvalid, "over 1 MiB"},
		{"section 2 #32: entries that become one variable", "true", with(func(in *Inputs) {
			in.Secrets = map[string][]byte{"a-b": nil, "a.b": nil}
		}), v1beta1.ReasonJoinSecretInvalid, `entries "a-b" and "a.b" both become KPSSH_SECRET_A_B`},
		{"entries that differ in case only", "true", with(func(in *Inputs) {
			in.Secrets = map[string][]byte{"key": nil, "KEY": nil}
		}), v1beta1.ReasonJoinSecretInvalid, `entries "KEY" and "key" both become KPSSH_SECRET_KEY`},
		{"an entry's name", "true", with(func(in *Inputs) { in.Secrets = map[string][]byte{"a;id": nil} }), v1beta1.ReasonJoinSecretInvalid, "cannot be the environment variable"},
		{"a NUL in a secret", "true", with(func(in *Inputs) { in.Secrets = map[string][]byte{"a": []byte("x\x00y")} }), v1beta1.ReasonJoinSecretInvalid, "NUL"},
		{"a secret that is a file", "true", with(func(in *Inputs) { in.Secrets = map[string][]byte{"a": make128k()} }), v1beta1.ReasonJoinSecretInvalid, "over 128 KiB"},
		{"many secrets that are files", "true", with(func(in *Inputs) {
			in.Secrets = map[string][]byte{"a": make128k()[:100<<10], "b": make128k()[:100<<10], "c": make128k()[:100<<10]}
		}), v1beta1.ReasonJoinSecretInvalid, "256 KiB together"},
		{"a NUL in a var", "true", with(func(in *Inputs) { in.Vars = map[string]string{"a": "x\x00y"} }), ReasonVarsInvalid, "NUL"},
		{"a var's name", "true", with(func(in *Inputs) { in.Vars = map[string]string{"a-b": ""} }), ReasonVarsInvalid, "no shell identifier"},
		{"a var's empty name", "true", with(func(in *Inputs) { in.Vars = map[string]string{"": ""} }), ReasonVarsInvalid, "no shell identifier"},
		{"code in a var's name", "true", with(func(in *Inputs) { in.Vars = map[string]string{"x;id": ""} }), ReasonVarsInvalid, "no shell identifier"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Render(scriptsOf("true", test.join, "true"), Join, test.in)
			wantFault(t, err, fault.Configuration, test.reason, test.says)
		})
	}
}

func make128k() []byte { return []byte(strings.Repeat("k", 128<<10)) }

// S7: a template can put a secret into its own error.
func TestRenderErrorsHoldNoSecret(t *testing.T) {
	for _, join := range []string{
		`{{ index .Secrets.x .Secrets.x }}`,
		`{{ index .Vars 1 .BootstrapToken }}`,
		`{{ .Secrets.x.field }}`,
		`{{ call .Secrets.x }}`,
		`{{ template (print .Secrets.x) }}`,
		`{{ index .Vars .Secrets.x | len | printf "%d" | slice .Secrets.x 999 }}`,
		`{{ printf "%s" .Secrets.x | index .Vars 3 }}`,
	} {
		in := full()
		in.Secrets = map[string][]byte{"x": []byte("s3cret-value")}
		_, err := Render(scriptsOf("true", join, "true"), Join, in)
		if err == nil {
			t.Errorf("%s rendered", join)
			continue
		}
		for _, secret := range []string{"s3cret-value", "0123456789abcdef"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", join, err)
			}
		}
	}
}

func TestLeaveNeedsNothingButAddresses(t *testing.T) {
	rendered, err := Render(scriptsOf("{{ .Vars.x }}", "{{ .Secrets.y }}", "leave {{ .HostAddress }}"), Leave, Inputs{HostAddress: "2001:db8::1"})
	if err != nil || rendered.Body != "leave 2001:db8::1" {
		t.Errorf("%q, %v", rendered.Body, err)
	}
}

func TestInputsRedactorHidesTokenItsSecretHalfAndSecrets(t *testing.T) {
	got := full().Redactor().String("abcdef.0123456789abcdef 0123456789abcdef s3cret-value abcdef v a'l")
	if want := "[REDACTED] [REDACTED] [REDACTED] abcdef v a'l"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (Inputs{}).Redactor().String("nothing to hide"); got != "nothing to hide" {
		t.Errorf("got %q", got)
	}
}
