package profile

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// wantFault checks blame and reason, and that the message helps.
func wantFault(t *testing.T, err error, blame fault.Blame, reason, says string) {
	t.Helper()
	var got *fault.Error
	if !errors.As(err, &got) {
		t.Fatalf("want a fault, got %v", err)
	}
	if got.Blame != blame || got.Reason != reason {
		t.Errorf("got %s/%s, want %s/%s", got.Blame, got.Reason, blame, reason)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("%q does not say %q", err, says)
	}
}

func TestValidateRefusesWhatWouldFailLater(t *testing.T) {
	for _, test := range []struct {
		name    string
		scripts v1beta1.Scripts
		says    string // empty: valid
	}{
		{"plain scripts", v1beta1.Scripts{Install: "true", Join: "true", Leave: "true"}, ""},
		{"all fields", v1beta1.Scripts{Install: "true", Join: "{{.ClusterEndpoint}}{{.ClusterCACert}}{{.BootstrapToken}}{{.NodeName}}{{.ProviderID}}{{.NodeLabels}}" +
			"{{.RegisterWithTaints}}{{.HostAddress}}{{.NodeAddress}}{{.Vars.a}}{{.Secrets.b}}", Leave: "true"}, ""},
		{"no install", v1beta1.Scripts{Join: "true", Leave: "true"}, "scripts.install: the script is empty"},
		{"no join", v1beta1.Scripts{Install: "true", Join: " \n", Leave: "true"}, "scripts.join: the script is empty"},
		{"no leave", v1beta1.Scripts{Install: "true", Join: "true"}, "scripts.leave: the script is empty"},
		{"nothing at all", v1beta1.Scripts{}, "scripts.install: the script is empty"},
		{"no template", v1beta1.Scripts{Install: "true", Join: "echo {{ .NodeName", Leave: "true"}, "no Go template"},
		{"own functions", v1beta1.Scripts{Install: "true", Join: "{{ env \"HOME\" }}", Leave: "true"}, `function "env" not defined`},
		{"unknown field", v1beta1.Scripts{Install: "true", Join: "{{ .NodeLables }}", Leave: "true"}, "there is no field .NodeLables"},
		{"unknown field in a condition", v1beta1.Scripts{Install: "true", Join: "{{ if eq .NodeNam \"x\" }}a{{ end }}", Leave: "true"}, "there is no field .NodeNam"},
		{"unknown field in a branch not taken", v1beta1.Scripts{Install: "true", Join: "{{ if .NodeName }}{{ .Nope }}{{ end }}", Leave: "true"}, "there is no field .Nope"},
		{"unknown field behind $", v1beta1.Scripts{Install: "true", Join: "{{ range .Vars }}{{ $.Nope }}{{ end }}", Leave: "true"}, "there is no field .Nope"},
		{"a key of a var is no field", v1beta1.Scripts{Install: "true", Join: "{{ with .Vars }}{{ .mine }}{{ end }}{{ range $k, $v := .Vars }}{{ $k }}{{ end }}", Leave: "true"}, ""},
		{"a field within define", v1beta1.Scripts{Install: "true", Join: `{{ define "x" }}{{ .mine }}{{ end }}{{ template "x" .Vars }}`, Leave: "true"}, ""},
		{"section 2 #31: leave uses a var", v1beta1.Scripts{Install: "true", Join: "true", Leave: "{{ .Vars.a }}"}, "leave must not use .Vars"},
		{"section 2 #31: leave uses a secret", v1beta1.Scripts{Install: "true", Join: "true", Leave: "{{ .Secrets.a }}"}, "leave must not use .Secrets"},
		{"leave uses a var in some cases only", v1beta1.Scripts{Install: "true", Join: "true", Leave: `{{ if eq .HostAddress "192.0.2.1" }}{{ .Vars.a }}{{ end }}`}, "leave must not use .Vars"},
		{"leave uses a var by index", v1beta1.Scripts{Install: "true", Join: "true", Leave: `{{ index .Vars "a" }}`}, "leave must not use .Vars"},
		{"leave uses a var behind $", v1beta1.Scripts{Install: "true", Join: "true", Leave: `{{ with .HostAddress }}{{ $.Vars.a }}{{ end }}`}, "leave must not use .Vars"},
		{"leave uses addresses", v1beta1.Scripts{Install: "true", Join: "true", Leave: "{{ .HostAddress }} {{ .NodeAddress }}"}, ""},
		{"leave fails on what it gets", v1beta1.Scripts{Install: "true", Join: "true", Leave: "{{ slice .NodeName 0 3 }}"}, "cannot be rendered"},
		{"an endless leave", v1beta1.Scripts{Install: "true", Join: "true", Leave: "{{ range 1000000000000 }}{{ end }}"}, "range over a number"},
		{"an endless recursion", v1beta1.Scripts{Install: "true", Join: "true", Leave: `{{ define "x" }}a{{ template "x" . }}{{ end }}{{ template "x" . }}`}, "cannot be rendered"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &v1beta1.SSHJoinProfile{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm"}}
			p.Spec.Scripts = test.scripts
			err := Validate(p)
			if test.says == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			wantFault(t, err, fault.Configuration, v1beta1.ReasonProfileInvalid, test.says)
			if !strings.Contains(err.Error(), "SSHJoinProfile kubeadm, scripts.") {
				t.Errorf("%q does not name profile and script", err)
			}
		})
	}
}

func TestTimeoutsFallBack(t *testing.T) {
	given := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	for _, test := range []struct {
		name                 string
		timeouts             v1beta1.Timeouts
		install, join, leave time.Duration
	}{
		{"none given", v1beta1.Timeouts{}, 10 * time.Minute, 5 * time.Minute, 3 * time.Minute},
		{"all given", v1beta1.Timeouts{Install: given(time.Hour), Join: given(time.Second), Leave: given(90 * time.Second)}, time.Hour, time.Second, 90 * time.Second},
		{"zero", v1beta1.Timeouts{Install: given(0), Join: given(0), Leave: given(0)}, 10 * time.Minute, 5 * time.Minute, 3 * time.Minute},
		{"negative", v1beta1.Timeouts{Join: given(-time.Second)}, 10 * time.Minute, 5 * time.Minute, 3 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := &v1beta1.SSHJoinProfileSpec{Timeouts: test.timeouts}
			for phase, want := range map[Phase]time.Duration{Install: test.install, Join: test.join, Leave: test.leave} {
				if got := Timeout(spec, phase); got != want {
					t.Errorf("%s: %s, want %s", phase, got, want)
				}
			}
		})
	}
}
