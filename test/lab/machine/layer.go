//go:build linux

package machine

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// image holds the files that make a plain Debian a machine of the lab.
//
//go:embed image
var image embed.FS

// User is an account with sudo and without a password; LoginKey logs in as this user, too.
const User = "ops"

const userID = 1000

// writeCommonLayer makes the middle of every machine's three layers: between Debian, which is cached, and what the machine writes.
func (s *Site) writeCommonLayer() error {
	err := fs.WalkDir(image, "image", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(s.common, strings.TrimPrefix(path, "image"))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		content, err := image.ReadFile(path)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		switch {
		case strings.Contains(path, "/sbin/"):
			mode = 0o755
		case strings.Contains(path, "/sudoers.d/"):
			mode = 0o440
		}
		return os.WriteFile(target, content, mode)
	})
	if err != nil {
		return fmt.Errorf("write the common layer: %w", err)
	}
	for link, target := range map[string]string{
		"etc/systemd/system/sysinit.target.wants/lab-prepare.service":  "../lab-prepare.service",
		"etc/systemd/system/multi-user.target.wants/lab-image.service": "../lab-image.service",
		// Nothing to wait for, nobody to log in, no other clock than the box's.
		"etc/systemd/system/systemd-logind.service":    "/dev/null",
		"etc/systemd/system/console-getty.service":     "/dev/null",
		"etc/systemd/system/systemd-timesyncd.service": "/dev/null",
	} {
		path := filepath.Join(s.common, link)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	if err := s.writeAccounts(); err != nil {
		return fmt.Errorf("write accounts: %w", err)
	}
	share := filepath.Join(s.common, "usr/local/share/lab")
	if err := os.MkdirAll(share, 0o755); err != nil {
		return err
	}
	if err := writeImage(filepath.Join(share, "pause.tar"), PauseImage, s.options.Pause); err != nil {
		return fmt.Errorf("write the pause image: %w", err)
	}
	return nil
}

func (s *Site) writeAccounts() error {
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("%s:x:%d:%d::/home/%s:/bin/bash\n", User, userID, userID, User),
		"group":  fmt.Sprintf("%s:x:%d:\n", User, userID),
		"shadow": User + ":*:19000:0:99999:7:::\n",
	} {
		content, err := os.ReadFile(filepath.Join(s.rootfs, "etc", name))
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if name == "shadow" {
			mode = 0o600
		}
		if err := os.WriteFile(filepath.Join(s.common, "etc", name), append(content, line...), mode); err != nil {
			return err
		}
	}
	keys := ssh.MarshalAuthorizedKey(s.login.PublicKey())
	for home, id := range map[string]int{"root": 0, "home/" + User: userID} {
		dir := filepath.Join(s.common, home, ".ssh")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "authorized_keys"), keys, 0o600); err != nil {
			return err
		}
		for _, path := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "authorized_keys")} {
			if err := os.Chown(path, id, id); err != nil {
				return err
			}
		}
	}
	return nil
}
