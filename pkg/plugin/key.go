package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/term"
)

const passphraseEnv = "KPSSH_PASSPHRASE" //nolint:gosec // a variable's name

// openKey gives the signer of a private key's file, or of a public key's file (*.pub) whose private half the ssh-agent has. close ends its connection
// to the agent. No error holds key or passphrase.
func (s surroundings) openKey(path string) (key ssh.Signer, closeKey func(), err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if strings.HasSuffix(path, ".pub") {
		return s.agentKey(path, content)
	}
	key, err = ssh.ParsePrivateKey(content)
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		key, err = s.unlock(path, content)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: no private key that can be used: %w (keys in security tokens sign through the ssh-agent: name their .pub file)", path, err)
	}
	return key, func() {}, nil
}

func (s surroundings) unlock(path string, content []byte) (ssh.Signer, error) {
	passphrase := []byte(s.env(passphraseEnv))
	if len(passphrase) == 0 {
		var err error
		if passphrase, err = s.ask("Passphrase for " + path + ": "); err != nil {
			return nil, err
		}
	}
	return ssh.ParsePrivateKeyWithPassphrase(content, passphrase)
}

func (s surroundings) agentKey(path string, content []byte) (ssh.Signer, func(), error) {
	public, _, _, _, err := ssh.ParseAuthorizedKey(content)
	if err != nil {
		return nil, nil, fmt.Errorf("%s holds no public key", path)
	}
	socket := s.env("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, nil, fmt.Errorf("%s is a public key, and no ssh-agent runs that could have the private one (SSH_AUTH_SOCK is empty): name the private key", path)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("the ssh-agent cannot be reached: %w", err)
	}
	signers, err := agent.NewClient(conn).Signers()
	if err == nil {
		for _, signer := range signers {
			if bytes.Equal(signer.PublicKey().Marshal(), public.Marshal()) {
				return signer, func() { _ = conn.Close() }, nil
			}
		}
		err = fmt.Errorf("the ssh-agent does not have the key of %s: add it with ssh-add", path)
	}
	return nil, nil, errors.Join(err, conn.Close())
}

// askOnTerminal reads a line from the terminal, which does not show it; standard input may be something else.
func askOnTerminal(prompt string) ([]byte, error) {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("it has a passphrase, and there is no terminal to ask for it: set %s", passphraseEnv)
	}
	defer func() { _ = terminal.Close() }()
	_, _ = fmt.Fprint(terminal, prompt)
	defer func() { _, _ = fmt.Fprintln(terminal) }()
	return term.ReadPassword(int(terminal.Fd()))
}
