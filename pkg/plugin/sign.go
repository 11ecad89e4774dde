package plugin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// signing is what `sign` is asked for.
type signing struct {
	surroundings
	file, key, output, expires string
	manifest                   bool
	phases                     []string
}

func signCommand(s surroundings) *cobra.Command {
	o := signing{surroundings: s}
	cmd := &cobra.Command{
		Use:   "sign -f FILE -i KEY",
		Short: "Sign the scripts of SSHJoinProfiles, for hosts with execMode Verified",
		Long: `Signs the scripts of the SSHJoinProfiles in a file, and writes the file with their signatures. Everything else in it stays as it was.

With --manifest, a manifest is signed too. It says which profile, version and phase a script is for, and until when, and goes before the signature.
KEY is a private key, or the .pub file of a key that the ssh-agent has. A passphrase is asked for, or taken from ` + passphraseEnv + `.`,
		Example: `  kubectl kpssh sign -f profile.yaml -i ~/.ssh/signing -o profile.yaml
  kubectl kpssh sign -f profile.yaml -i ~/.ssh/signing.pub --manifest --expires 90d | kubectl apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "YAML file with SSHJoinProfiles; - is standard input")
	flags.StringVarP(&o.key, "identity", "i", "", "private key, or a .pub file of a key in the ssh-agent")
	flags.StringVarP(&o.output, "output", "o", "-", "file to write; may be the same; - is standard output")
	flags.BoolVar(&o.manifest, "manifest", false, "sign manifests too")
	flags.StringVar(&o.expires, "expires", never, "with --manifest, until when it holds: days such as 90d, an RFC 3339 time, or never")
	flags.StringSliceVar(&o.phases, "phases", nil, "phases to sign: "+strings.Join(verified.Phases, ", ")+". Default: all that have a script")
	_ = cmd.MarkFlagRequired("filename")
	_ = cmd.MarkFlagRequired("identity")
	return cmd
}

func (o signing) run(ctx context.Context) error {
	until, err := o.until()
	if err != nil {
		return err
	}
	for _, phase := range o.phases {
		if !slices.Contains(verified.Phases, phase) {
			return fmt.Errorf("--phases: there is no phase %q: they are %s", phase, strings.Join(verified.Phases, ", "))
		}
	}
	documents, err := o.documents(o.file)
	if err != nil {
		return err
	}
	key, closeKey, err := o.openKey(o.key)
	if err != nil {
		return err
	}
	defer closeKey()
	for index := range documents {
		if documents[index].profile == nil {
			continue
		}
		if err := o.sign(ctx, &documents[index], key, until); err != nil {
			return fmt.Errorf("SSHJoinProfile %s: %w", documents[index].profile.Name, err)
		}
	}
	if err := o.write(join(documents)); err != nil {
		return err
	}
	o.tell(key.PublicKey())
	if o.manifest && until.IsZero() {
		_, _ = fmt.Fprintln(o.err, "The manifests never expire: who has a machine's login key can run these versions there for ever. See --expires.")
	}
	return nil
}

const never = "never"

// until is when manifests expire; zero for never.
func (o signing) until() (time.Time, error) {
	if !o.manifest && o.expires != never {
		return time.Time{}, errors.New("--expires is for manifests: add --manifest")
	}
	return expiry(o.expires, o.now())
}

// expiry reads days such as 90d, a time of RFC 3339, or never, which is the zero time.
func expiry(text string, now time.Time) (time.Time, error) {
	if text == never {
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if number, days := strings.CutSuffix(text, "d"); days {
		const most = 36500
		count, bad := strconv.Atoi(number)
		if bad != nil || count > most {
			return until, fmt.Errorf("--expires %s: no number of days up to %d", text, most)
		}
		until, err = now.UTC().Truncate(time.Second).AddDate(0, 0, count), nil
	}
	switch {
	case err != nil:
		return until, fmt.Errorf("--expires %s: give days such as 90d, a time such as 2027-01-01T00:00:00Z, or never", text)
	case !until.After(now):
		return until, fmt.Errorf("--expires %s: that is over", text)
	}
	return until, nil
}

// sign signs what it is asked to of a profile, and looks at the result as the controller will.
func (o signing) sign(ctx context.Context, doc *document, key ssh.Signer, until time.Time) error {
	before, phases := doc.text, o.phases
	if len(phases) == 0 {
		phases = slices.DeleteFunc(slices.Clone(verified.Phases), func(phase string) bool { return verified.Script(&doc.profile.Spec, phase) == "" })
	}
	for _, phase := range phases {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.signPhase(doc, phase, key, until); err != nil {
			return err
		}
	}
	if !sameBut(before, doc.text) {
		return errors.New("it is written in a way that cannot be edited without changing something else; write its spec as plain lines, with scripts as blocks (|)")
	}
	if err := doc.decode(); err != nil {
		return fmt.Errorf("it cannot be read any more after the edit: %w", err)
	}
	signers, err := verified.ParseSigners([]string{string(ssh.MarshalAuthorizedKey(key.PublicKey()))})
	if err != nil {
		return err
	}
	for _, phase := range phases {
		if _, err := verified.CheckScript(doc.profile.Name, &doc.profile.Spec, phase, signers, o.now()); err != nil {
			return err
		}
	}
	return nil
}

func (o signing) signPhase(doc *document, phase string, key ssh.Signer, until time.Time) error {
	name, spec := doc.profile.Name, &doc.profile.Spec
	script := verified.Script(spec, phase)
	if err := verified.Signable(name, phase, script); err != nil {
		return err
	}
	if !o.manifest && verified.HasManifest(spec, phase) {
		return fmt.Errorf("scripts.%s has a manifest, which goes before a signature: sign with --manifest, or take spec.manifests.%s out", phase, phase)
	}
	if !stops.MatchString(script) {
		_, _ = fmt.Fprintf(o.err, "warning: SSHJoinProfile %s: scripts.%s has no `set -e`: a command in it that fails does not fail the phase\n", name, phase)
	}
	signature, err := verified.Sign(rand.Reader, key, []byte(script), verified.ScriptNamespace)
	if err != nil {
		return err
	}
	if err := doc.set([]string{"spec", "signatures", phase}, signature); err != nil || !o.manifest {
		return err
	}
	text := verified.NewManifest(name, spec.Version, phase, script, until).String()
	if signature, err = verified.Sign(rand.Reader, key, []byte(text), verified.ManifestNamespace); err != nil {
		return err
	}
	if err := doc.set([]string{"spec", "manifests", phase, "manifest"}, text); err != nil {
		return err
	}
	return doc.set([]string{"spec", "manifests", phase, "signature"}, signature)
}

// stops finds what makes bash stop at the first failure. Nothing is put before a signed script, so it must have that itself (section 2 #58).
var stops = regexp.MustCompile(`(?m)^[ \t]*set[ \t]([^\n#]*[ \t])?(-[A-Za-z]*e[A-Za-z]*|-o[ \t]+errexit)\b`)

// tell says what must trust the key now.
func (o signing) tell(key ssh.PublicKey) {
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	_, _ = fmt.Fprintf(o.err, `Signed by %s.

An entry of spec.trustedSigners of SSHHosts, so that the controller sends it:
  %s
A line of /etc/kpssh/allowed_signers on the machines, so that they run it:
  %s namespaces="%s,%s" %s
`, ssh.FingerprintSHA256(key), line, verified.Principal, verified.ScriptNamespace, verified.ManifestNamespace, line)
}

// documents reads a file, or standard input.
func (s surroundings) documents(file string) ([]document, error) {
	var content []byte
	var err error
	if file == "-" {
		content, err = io.ReadAll(s.in)
	} else {
		content, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	all, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// write writes the whole file or leaves it as it was.
func (o signing) write(content []byte) error {
	if o.output == "-" {
		_, err := o.out.Write(content)
		return err
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(o.output); err == nil {
		mode = info.Mode().Perm()
	}
	file, err := os.CreateTemp(filepath.Dir(o.output), ".kpssh-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err == nil {
		err = os.Rename(file.Name(), o.output)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
