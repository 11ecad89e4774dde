package sshtest

import (
	"fmt"
	"os"
	"path/filepath"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/shim"
)

// InstallShim puts kpssh-shim and what it needs into a directory, as they are on a machine, for scripts that these keys sign. It gives the command line
// that starts the shim, and what a Shell's Env must have beside the rest.
func InstallShim(dir string, signers ...gossh.PublicKey) (command string, env []string, err error) {
	allowed := ""
	for _, signer := range signers {
		allowed += "kpssh " + string(gossh.MarshalAuthorizedKey(signer))
	}
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return "", nil, fmt.Errorf("installing the shim: %w", err)
	}
	for name, content := range map[string]string{"kpssh-shim": shim.Script, "allowed_signers": allowed} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return "", nil, fmt.Errorf("installing the shim: %w", err)
		}
	}
	return "sh " + filepath.Join(dir, "kpssh-shim"), []string{
		"KPSSH_SHIM_CONF=" + filepath.Join(dir, "shim.conf"), "KPSSH_SHIM_SUDO=", "TMPDIR=" + filepath.Join(dir, "tmp"), "KPSSH_PATH=" + os.Getenv("PATH"),
	}, nil
}

// OldShim makes of the shim at this place one as the existing provider's: it knows version 1 alone, and waits for the end of its input.
func OldShim(dir string) error {
	present := filepath.Join(dir, "present-shim")
	if err := os.Rename(filepath.Join(dir, "kpssh-shim"), present); err != nil {
		return fmt.Errorf("installing an old shim: %w", err)
	}
	text := fmt.Sprintf(`envelope=$(cat; echo end)
case $envelope in
*"kpssh-envelope: 1"*) ;;
*) echo 'malformed envelope' >&2; exit 4 ;;
esac
said=$(printf %%s "${envelope%%end}" | sh '%s')
status=$?
printf '%%s\n' "$said" | grep -v '^kpssh\.'
exit $status
`, present)
	if err := os.WriteFile(filepath.Join(dir, "kpssh-shim"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("installing an old shim: %w", err)
	}
	return nil
}
