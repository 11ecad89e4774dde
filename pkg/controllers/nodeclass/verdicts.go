package nodeclass

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/profile"
)

// verdicts remembers, of each profile, whether its present version is sound.
type verdicts struct {
	mu    *sync.Mutex
	known map[string]verdict
	// validate is profile.Validate; counted by a test.
	validate func(*v1beta1.SSHJoinProfile) error
	// lint is profile.Lint.
	lint func(*v1beta1.SSHJoinProfile) []profile.Finding
}

type verdict struct {
	uid        types.UID
	generation int64
	// err is what Validate refuses; findings are what Lint has to say.
	err      error
	findings []profile.Finding
}

func newVerdicts() verdicts {
	return verdicts{mu: &sync.Mutex{}, known: map[string]verdict{}, validate: profile.Validate, lint: profile.Lint}
}

// of is what is wrong with a profile, and what is not wrong but should not stay.
func (v verdicts) of(p *v1beta1.SSHJoinProfile) verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	last, found := v.known[p.Name]
	if !found || last.uid != p.UID || last.generation != p.Generation || p.Generation == 0 {
		last = verdict{uid: p.UID, generation: p.Generation, err: v.validate(p), findings: v.lint(p)}
		v.known[p.Name] = last
	}
	return last
}
