package profile

import (
	"bytes"
	"errors"
	"strings"
	"text/template"
	"time"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// maxRendered bounds a rendered script; a template that loops must not fill the controller's memory.
const maxRendered = 1 << 20

var errTooLong = errors.New("the rendered script is over 1 MiB")

// Rendered is a phase, ready to run.
type Rendered struct {
	// Body is bash. It may hold secrets that the template put there.
	Body string
	// Env is the environment, KPSSH_* names only. It holds secrets.
	Env map[string]string
	// Timeout after which the phase is ended, on the machine too.
	Timeout time.Duration
}

// fields are what templates may use. Names and types are part of the API.
type fields struct {
	ClusterEndpoint    string
	ClusterCACert      string // PEM
	BootstrapToken     string
	NodeName           string
	ProviderID         string
	NodeLabels         string // as KPSSH_NODE_LABELS
	RegisterWithTaints string // as KPSSH_TAINTS
	HostAddress        string
	NodeAddress        string
	Vars               map[string]string
	Secrets            map[string]string
}

// Validate tells whether a profile's scripts exist, parse, use fields that exist, and whether leave does with what leave is told.
// Errors are *fault.Error, Configuration/ProfileInvalid.
func Validate(profile *v1beta1.SSHJoinProfile) error {
	for _, phase := range Phases {
		parsed, err := parseScript(profile.Name, &profile.Spec, phase)
		if err != nil {
			return err
		}
		if phase != Leave {
			continue
		}
		in := Inputs{}.visible(Leave)
		if _, err := execute(profile.Name, Leave, parsed, in, ""); err != nil {
			return err
		}
	}
	return nil
}

// Render makes a phase of a revision ready to run. Inputs that the phase must not see are dropped here, so callers may pass all they
// have. Errors are *fault.Error of Configuration: ProfileInvalid, VarsInvalid or JoinSecretInvalid; they hold no secret.
func Render(revision Revision, phase Phase, in Inputs) (Rendered, error) {
	parsed, err := parseScript(revision.Profile, &revision.Spec, phase)
	if err != nil {
		return Rendered{}, err
	}
	in = in.visible(phase)
	env, err := environment(phase, in)
	if err != nil {
		return Rendered{}, err
	}
	body, err := execute(revision.Profile, phase, parsed, in, env["KPSSH_TAINTS"])
	if err != nil {
		return Rendered{}, err
	}
	return Rendered{Body: body, Env: env, Timeout: Timeout(&revision.Spec, phase)}, nil
}

func parseScript(name string, spec *v1beta1.SSHJoinProfileSpec, phase Phase) (*template.Template, error) {
	text := script(spec, phase)
	if strings.TrimSpace(text) == "" {
		return nil, invalid(name, phase, nil, "the script is empty")
	}
	parsed, err := template.New(string(phase)).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, invalid(name, phase, err, "the script is no Go template (write {{ `{{` }} for a literal brace pair)")
	}
	if problem := inspect(parsed, phase); problem != "" {
		return nil, invalid(name, phase, nil, problem)
	}
	return parsed, nil
}

func execute(name string, phase Phase, parsed *template.Template, in Inputs, taints string) (string, error) {
	secrets := make(map[string]string, len(in.Secrets))
	for key, value := range in.Secrets {
		secrets[key] = string(value)
	}
	var body limited
	err := parsed.Execute(&body, fields{
		ClusterEndpoint:    in.ClusterEndpoint,
		ClusterCACert:      string(in.ClusterCA),
		BootstrapToken:     in.BootstrapToken,
		NodeName:           in.NodeName,
		ProviderID:         in.ProviderID,
		NodeLabels:         labelList(in.NodeLabels),
		RegisterWithTaints: taints,
		HostAddress:        in.HostAddress,
		NodeAddress:        in.NodeAddress,
		Vars:               in.Vars,
		Secrets:            secrets,
	})
	if err != nil {
		// A template's functions may quote their arguments in errors, and these end up in conditions and events.
		err = errors.New(in.Redactor().String(err.Error()))
		return "", invalid(name, phase, err, "the template cannot be rendered; add what it misses to the class's vars or join Secret, or correct it")
	}
	return body.String(), nil
}

func invalid(name string, phase Phase, err error, problem string) error {
	return fault.New(fault.Configuration, v1beta1.ReasonProfileInvalid, err, "SSHJoinProfile %s, scripts.%s: %s", name, phase, problem)
}

// limited is a buffer that refuses to grow past maxRendered.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxRendered {
		return 0, errTooLong
	}
	return l.Buffer.Write(p)
}
