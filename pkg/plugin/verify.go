package plugin

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/verified"
)

func verifyCommand(s surroundings) *cobra.Command {
	var file, signers string
	cmd := &cobra.Command{
		Use:   "verify -f FILE --signers FILE",
		Short: "Check the signatures of SSHJoinProfiles as the controller does",
		Long: `Checks each script of the SSHJoinProfiles in a file as the controller does before it dials a machine with execMode Verified, and says for each
whether it would be sent. Exits with 1 if one would not. An uninstall script, which no controller runs, may be unsigned.`,
		Example: "  kubectl get sshjoinprofile NAME -o yaml | kubectl kpssh verify -f - --signers allowed_signers",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return s.verify(file, signers) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&file, "filename", "f", "", "YAML file with SSHJoinProfiles; - is standard input")
	flags.StringVar(&signers, "signers", "", "file of public keys, one a line, or an allowed_signers file")
	_ = cmd.MarkFlagRequired("filename")
	_ = cmd.MarkFlagRequired("signers")
	return cmd
}

func (s surroundings) verify(file, signersFile string) error {
	signers, err := readSigners(signersFile)
	if err != nil {
		return err
	}
	documents, err := s.documents(file)
	if err != nil {
		return err
	}
	refused := false
	for _, doc := range documents {
		if doc.profile != nil && !s.verifyProfile(doc.profile, signers) {
			refused = true
		}
	}
	if refused {
		return errors.New("not every script would be sent")
	}
	return nil
}

// verifyProfile says what would become of each script, and whether all would be sent.
func (s surroundings) verifyProfile(profile *v1beta1.SSHJoinProfile, signers verified.Signers) bool {
	good := true
	for _, phase := range verified.Phases {
		optional := phase == "uninstall"
		if optional && verified.Script(&profile.Spec, phase) == "" {
			continue
		}
		proof, err := verified.CheckScript(profile.Name, &profile.Spec, phase, signers, s.now())
		verdict := "ok, " + proof.Signer
		switch {
		case err != nil && optional && fault.Of(err).Reason == verified.ReasonSignatureMissing:
			verdict = "not signed"
		case err != nil:
			good, verdict = false, fault.Of(err).Reason+": "+err.Error()
		case proof.Manifest != "":
			verdict += ", by a manifest that expires: " + expires(proof.Manifest)
		}
		_, _ = fmt.Fprintf(s.out, "%s %s: %s\n", profile.Name, phase, verdict)
	}
	return good
}

// expires is what a manifest that was checked says.
func expires(manifest string) string {
	_, after, _ := strings.Cut(manifest, "\nexpires: ")
	return strings.TrimSpace(after)
}

// readSigners reads public keys, or an allowed_signers file: empty lines and comments do not count.
func readSigners(path string) (verified.Signers, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return verified.Signers{}, err
	}
	var lines []string
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	signers, err := verified.ParseSigners(lines)
	if err != nil {
		return signers, fmt.Errorf("%s: %w", path, err)
	}
	return signers, nil
}
