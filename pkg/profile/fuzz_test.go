package profile

import (
	"strings"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Whatever a template is, rendering it ends, within its bounds, with a script or with a fault of the configuration that shows no secret; and a leave
// that Validate lets pass renders with what a leave is told.
func FuzzTemplates(f *testing.F) {
	for _, seed := range []string{
		"echo {{ .NodeName }}", "{{ range $k, $v := .Vars }}{{ $k }}={{ $v }}\n{{ end }}", "{{ .Secrets.token }}", "{{ if .ProviderID }}a{{ else }}b{{ end }}",
		"{{", "{{ .Nope }}", "{{ define \"x\" }}{{ template \"x\" }}{{ end }}{{ template \"x\" }}", "{{ printf \"%1000000000d\" 1 }}", "{{ index .Vars 1 }}", "{{ call .NodeName }}",
		"{{ len .Secrets.token }}{{ slice .Secrets.token 1 }}",
	} {
		f.Add(seed)
	}
	const secret = "hunter2hunter2"
	in := Inputs{NodeName: "n", Vars: map[string]string{"a": "b"}, Secrets: map[string][]byte{"token": []byte(secret)}}
	f.Fuzz(func(t *testing.T, text string) {
		profile := &v1beta1.SSHJoinProfile{Spec: v1beta1.SSHJoinProfileSpec{Version: "1", Scripts: v1beta1.Scripts{Install: "true", Join: text, Leave: text}}}
		profile.Name = "p"
		rendered, err := Render(RevisionOf(profile), Join, in)
		switch {
		case err != nil && fault.Of(err).Blame != fault.Configuration:
			t.Fatalf("blames %s: %v", fault.Of(err).Blame, err)
		case err != nil && strings.Contains(err.Error(), secret):
			t.Fatalf("shows a secret: %v", err)
		case len(rendered.Body) > maxRendered:
			t.Fatalf("%d bytes", len(rendered.Body))
		}
		if Validate(profile) == nil {
			if _, err := Render(RevisionOf(profile), Leave, Inputs{}); err != nil {
				t.Fatalf("valid, and leave does not render: %v", err)
			}
		}
	})
}
