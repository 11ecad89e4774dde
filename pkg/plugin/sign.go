package plugin

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

// phases whose scripts can be signed.
var phases = []string{"install", "join", "leave", "uninstall"}

type signOptions struct {
	file, key, output, expires string
	manifest                   bool
	phases                     []string
}

func signCommand(s streams) *cobra.Command {
	o := signOptions{}
	cmd := &cobra.Command{
		Use:   "sign -f FILE -i KEY",
		Short: "Sign the scripts of SSHJoinProfiles, for hosts in Verified mode.",
		Long: `Sign the scripts of the SSHJoinProfiles in a file, for hosts in Verified mode.

The file's other documents, its comments and its order stay. Without --output the signed file goes to standard output.
With --manifest each script gets a manifest that says what it is for and until when; an old one cannot be put back then.`,
		Example: `  kubectl kpssh sign -f profile.yaml -i ~/.ssh/signing --manifest --expires 90d -o profile.yaml
  kubectl kpssh sign -f profile.yaml -i signing.pub | kubectl apply -f -     # the key is in the SSH agent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.sign(cmd.Context(), o) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "file with SSHJoinProfiles, - for standard input")
	flags.StringVarP(&o.key, "identity", "i", "", "private key file, or the .pub file of a key in the SSH agent")
	flags.StringVarP(&o.output, "output", "o", "", "file to write; it may be the one that was read (default: standard output)")
	flags.BoolVar(&o.manifest, "manifest", false, "sign manifests: phase, version, expiry and digest of each script")
	flags.StringVar(&o.expires, "expires", "never", "with --manifest, how long or until when it holds: 90d, 12h, an RFC 3339 time, or never")
	flags.StringSliceVar(&o.phases, "phases", phases, "phases to sign; those without a script are passed over")
	for _, required := range []string{"filename", "identity"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // a flag of that name does not exist
		}
	}
	return cmd
}

func (s streams) sign(ctx context.Context, o signOptions) error {
	expires, err := parseExpiry(o.expires, s.now())
	if err != nil {
		return err
	}
	if !o.manifest && !expires.IsZero() {
		return errors.New("--expires needs --manifest: a bare signature holds for ever")
	}
	docs, err := s.read(o.file)
	if err != nil {
		return err
	}
	profiles, err := docs.profiles()
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	key, err := s.signer(ctx, o.key)
	if err != nil {
		return err
	}
	for _, one := range profiles {
		if err := s.signProfile(one, key, o, expires); err != nil {
			return fmt.Errorf("SSHJoinProfile %s: %w", one.profile.Name, err)
		}
	}
	var signed bytes.Buffer
	if err := docs.write(&signed); err != nil {
		return err
	}
	if err := s.unharmed(signed.String(), profiles); err != nil {
		return err
	}
	if err := s.put(o.output, signed.Bytes()); err != nil {
		return err
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))
	fmt.Fprintf(s.err, "Signed by %s.\nspec.trustedSigners of the SSHHosts needs:   %s\n/etc/kpssh/allowed_signers on them needs:   %s %s\n",
		ssh.FingerprintSHA256(key.PublicKey()), line, verified.Principal, line)
	return nil
}

func (s streams) signProfile(d document, key ssh.Signer, o signOptions, expires time.Time) error {
	scripts := scriptsOf(d.profile)
	signed := 0
	for _, phase := range o.phases {
		script, known := scripts[phase]
		switch {
		case !known:
			return fmt.Errorf("there is no phase %q: %s", phase, strings.Join(phases, ", "))
		case script == "":
			continue
		case strings.Contains(script, "{{"):
			return fmt.Errorf("its %s script is a template, and what is signed runs as it is: take its values from the environment (KPSSH_...)", phase)
		case !strict.MatchString(script):
			fmt.Fprintf(s.err, "warning: the %s script of %s has no `set -e`: it goes on after a command that fails\n", phase, d.profile.Name)
		}
		if err := signPhase(d, phase, script, key, o.manifest, expires); err != nil {
			return err
		}
		signed++
	}
	if signed == 0 {
		return errors.New("it has no script of these phases")
	}
	return nil
}

// strict is how scripts ask bash to stop at the first failure.
var strict = regexp.MustCompile(`(?m)^\s*set\s+-[a-z]*e`)

func signPhase(d document, phase, script string, key ssh.Signer, manifest bool, expires time.Time) error {
	if !manifest {
		signature, err := verified.Sign(rand.Reader, key, []byte(script), verified.ScriptNamespace)
		if err != nil {
			return err
		}
		d.drop("spec", "manifests", phase) // it would go before the new signature
		d.set(signature, "spec", "signatures", phase)
		return nil
	}
	text := verified.NewManifest(d.profile.Name, d.profile.Spec.Version, phase, script, expires).String()
	signature, err := verified.Sign(rand.Reader, key, []byte(text), verified.ManifestNamespace)
	if err != nil {
		return err
	}
	d.set(text, "spec", "manifests", phase, "manifest")
	d.set(signature, "spec", "manifests", phase, "signature")
	return nil
}

// unharmed tells whether the scripts are in the written file what they were when they were signed.
func (s streams) unharmed(text string, before []document) error {
	docs, err := streams{in: strings.NewReader(text)}.read("-")
	if err != nil {
		return fmt.Errorf("what was written cannot be read: %w", err)
	}
	after, err := docs.profiles()
	if err != nil {
		return fmt.Errorf("what was written cannot be read: %w", err)
	}
	for index := range before {
		if after[index].profile.Spec.Scripts != before[index].profile.Spec.Scripts {
			return fmt.Errorf("SSHJoinProfile %s: a script would not be written as it was signed", before[index].profile.Name)
		}
	}
	return nil
}

// put writes a file whole or not at all, or standard output.
func (s streams) put(path string, content []byte) error {
	if path == "" || path == "-" {
		_, err := s.out.Write(content)
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".kpssh-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	mode := os.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	if _, err = temporary.Write(content); err == nil {
		err = temporary.Chmod(mode)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

func scriptsOf(p *v1beta1.SSHJoinProfile) map[string]string {
	s := p.Spec.Scripts
	return map[string]string{"install": s.Install, "join": s.Join, "leave": s.Leave, "uninstall": s.Uninstall}
}

var daysForm = regexp.MustCompile(`^([0-9]{1,5})d$`)

// parseExpiry reads --expires; zero means never.
func parseExpiry(given string, now time.Time) (time.Time, error) {
	var at time.Time
	switch days := daysForm.FindStringSubmatch(given); {
	case given == "never":
		return time.Time{}, nil
	case days != nil:
		count, err := strconv.Atoi(days[1])
		if err != nil {
			return at, err
		}
		at = now.AddDate(0, 0, count)
	default:
		if length, err := time.ParseDuration(given); err == nil {
			at = now.Add(length)
		} else if at, err = time.Parse(time.RFC3339, given); err != nil {
			return at, fmt.Errorf("--expires %q is none of 90d, 12h, 2027-01-01T00:00:00Z, never", given)
		}
	}
	if !at.After(now) {
		return at, fmt.Errorf("--expires %q lies in the past", given)
	}
	return at, nil
}

type verifyOptions struct {
	file    string
	signers string
	phases  []string
}

func verifyCommand(s streams) *cobra.Command {
	o := verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify -f FILE --signers FILE",
		Short: "Check the signatures of SSHJoinProfiles as a host in Verified mode would.",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return s.verify(o) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "file with SSHJoinProfiles, - for standard input")
	flags.StringVar(&o.signers, "signers", "", "file of public keys or allowed_signers lines that are trusted")
	flags.StringSliceVar(&o.phases, "phases", phases, "phases to check; uninstall only if it has a script")
	for _, required := range []string{"filename", "signers"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // a flag of that name does not exist
		}
	}
	return cmd
}

func (s streams) verify(o verifyOptions) error {
	content, err := os.ReadFile(o.signers)
	if err != nil {
		return err
	}
	lines := slices.DeleteFunc(strings.Split(string(content), "\n"), func(line string) bool {
		line = strings.TrimSpace(line)
		return line == "" || strings.HasPrefix(line, "#")
	})
	signers, err := verified.ParseSigners(lines)
	if err != nil {
		return fmt.Errorf("%s: %w", o.signers, err)
	}
	docs, err := s.read(o.file)
	if err != nil {
		return err
	}
	profiles, err := docs.profiles()
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	bad := 0
	for _, one := range profiles {
		for _, phase := range o.phases {
			if phase == "uninstall" && one.profile.Spec.Scripts.Uninstall == "" {
				continue
			}
			proof, err := verified.CheckScript(one.profile.Name, &one.profile.Spec, phase, signers, s.now())
			if err != nil {
				bad++
				fmt.Fprintf(s.out, "%s\t%s\tREFUSED\t%v\n", one.profile.Marker(), phase, err)
				continue
			}
			form := "signature"
			if proof.Manifest != "" {
				form = "manifest"
			}
			fmt.Fprintf(s.out, "%s\t%s\tok\t%s by %s\n", one.profile.Marker(), phase, form, proof.Signer)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d scripts would be refused", bad)
	}
	return nil
}
