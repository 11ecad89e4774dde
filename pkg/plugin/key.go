package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/term"
)

// passphraseVariable holds the passphrase of a key where there is no terminal to ask at.
const passphraseVariable = "KPSSH_PASSPHRASE"

// signer reads a private key, or finds in the SSH agent the one of a public key (path ends in .pub).
func (s streams) signer(ctx context.Context, path string) (ssh.Signer, error) {
	content, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(path, ".pub") {
		return fromAgent(ctx, path, content)
	}
	key, err := ssh.ParsePrivateKey(content)
	var locked *ssh.PassphraseMissingError
	if !errors.As(err, &locked) {
		if err != nil {
			return nil, fmt.Errorf("%s holds no private key that can be read: %w", path, err)
		}
		return key, nil
	}
	passphrase, err := s.passphrase(path)
	if err != nil {
		return nil, err
	}
	if key, err = ssh.ParsePrivateKeyWithPassphrase(content, passphrase); err != nil {
		return nil, fmt.Errorf("%s cannot be decrypted: the passphrase is wrong", path)
	}
	return key, nil
}

func (s streams) passphrase(path string) ([]byte, error) {
	if given, there := os.LookupEnv(passphraseVariable); there {
		return []byte(given), nil
	}
	terminal, ok := s.in.(*os.File)
	if !ok || !term.IsTerminal(int(terminal.Fd())) {
		return nil, fmt.Errorf("%s has a passphrase, and there is no terminal to ask for it: set %s, or name the .pub file of a key in the SSH agent", path, passphraseVariable)
	}
	fmt.Fprintf(s.err, "Passphrase of %s: ", path)
	defer fmt.Fprintln(s.err)
	return term.ReadPassword(int(terminal.Fd()))
}

func fromAgent(ctx context.Context, path string, content []byte) (ssh.Signer, error) {
	public, _, _, _, err := ssh.ParseAuthorizedKey(content)
	if err != nil {
		return nil, fmt.Errorf("%s holds no public key", path)
	}
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, fmt.Errorf("%s is a public key, and no SSH agent runs (SSH_AUTH_SOCK) that could sign with its private one", path)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("reaching the SSH agent: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, fmt.Errorf("asking the SSH agent for its keys: %w", err)
	}
	for _, one := range signers {
		if bytes.Equal(one.PublicKey().Marshal(), public.Marshal()) {
			return one, nil
		}
	}
	return nil, fmt.Errorf("the SSH agent does not have the key of %s (%s)", path, ssh.FingerprintSHA256(public))
}
