//go:build linux

package machine

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What a machine consists of. The cache's key is a hash of these three, so a change builds a new root file system.
var (
	rootfsSuite    = "bookworm"
	rootfsPackages = []string{
		"ca-certificates", "containerd", "containernetworking-plugins", "dbus", "iproute2", "iptables", "kmod", "mount",
		"openssh-server", "procps", "runc", "sudo", "systemd", "systemd-sysv",
	}
	// rootfsTrim drops what no machine needs, and the host keys: every machine gets its own.
	rootfsTrim = []string{
		"etc/ssh/ssh_host_*", "etc/machine-id", "usr/share/doc/*", "usr/share/locale/*", "usr/share/man/*",
		"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*.log",
		"etc/systemd/system/timers.target.wants/*", "etc/systemd/system/getty.target.wants/*",
		"etc/systemd/system/multi-user.target.wants/e2scrub_reap.service",
	}
)

// RootFS returns the path of a zstd-compressed tar of the machines' root file system. It is built by debootstrap when the cache has
// none for this recipe: some minutes, reported to log. KPSSH_DEBIAN_MIRROR replaces the mirror, KPSSH_ROOTFS the whole archive.
func RootFS(ctx context.Context, log io.Writer) (string, error) {
	if path := os.Getenv("KPSSH_ROOTFS"); path != "" {
		return path, nil
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	archive := filepath.Join(cache, "rootfs-"+rootfsKey()+".tar.zst")
	lock, err := os.OpenFile(archive+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	return archive, buildRootFS(ctx, cache, archive, log)
}

func rootfsKey() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{
		rootfsSuite, strings.Join(rootfsPackages, " "), strings.Join(rootfsTrim, " "),
	}, "\n")))
	return hex.EncodeToString(sum[:6])
}

func buildRootFS(ctx context.Context, cache, archive string, log io.Writer) error {
	start := time.Now()
	// On disk, in one piece with the archive: the rename below must not cross file systems.
	scratch := filepath.Join(cache, "rootfs-build-"+rootfsKey())
	// What a build that was killed has left; nobody else builds while the lock is held.
	if err := os.RemoveAll(scratch); err != nil {
		return err
	}
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	root := filepath.Join(scratch, "root")
	fmt.Fprintf(log, "root file system: debootstrap of Debian %s, once, for 1-6 minutes; kept as %s\n", rootfsSuite, archive)
	debootstrap := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(rootfsPackages, ","),
		rootfsSuite, root, mirror())
	debootstrap.Env = append(os.Environ(), proxyOfApt(ctx)...)
	if err := runWithProgress(debootstrap, log, start); err != nil {
		return fmt.Errorf("debootstrap: %w", err)
	}
	for _, pattern := range rootfsTrim {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return fmt.Errorf("trim %s: %w", pattern, err)
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("trim: %w", err)
			}
		}
	}
	packed := filepath.Join(scratch, "rootfs.tar.zst")
	out, err := exec.CommandContext(ctx, "tar", "--create", "--file", packed, "--use-compress-program", "zstd -T0 -6",
		"--numeric-owner", "--one-file-system", "--directory", root, ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pack the root file system: %w: %s", err, out)
	}
	if err := os.Rename(packed, archive); err != nil {
		return err
	}
	fmt.Fprintf(log, "root file system: done in %s\n", time.Since(start).Round(time.Second))
	return nil
}

func mirror() string {
	if m := os.Getenv("KPSSH_DEBIAN_MIRROR"); m != "" {
		return m
	}
	return "http://deb.debian.org/debian"
}

// proxyOfApt makes debootstrap, which knows only http_proxy, go the way that apt goes on this box.
func proxyOfApt(ctx context.Context) []string {
	if os.Getenv("http_proxy") != "" {
		return nil
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", `eval "$(apt-config shell P Acquire::http::Proxy)" && printf %s "$P"`).Output()
	if err != nil || len(out) == 0 {
		return nil
	}
	return []string{"http_proxy=" + string(out)}
}

// runWithProgress shows one of a program's lines every ten seconds, and the last of them when it fails.
func runWithProgress(cmd *exec.Cmd, log io.Writer, start time.Time) error {
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	var recent []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		shown := start
		scanner := bufio.NewScanner(reader)
		for scanner.Scan() {
			recent = append(recent, scanner.Text())
			if len(recent) > 20 {
				recent = recent[1:]
			}
			if time.Since(shown) > 10*time.Second {
				shown = time.Now()
				fmt.Fprintf(log, "  %4ds  %s\n", int(time.Since(start).Seconds()), scanner.Text())
			}
		}
		_, _ = io.Copy(io.Discard, reader)
	}()
	err := cmd.Run()
	_ = writer.Close() // never fails
	<-read
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, strings.Join(recent, "\n"))
	}
	return nil
}

func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		// Root under a CI runner or a unit often has no HOME.
		base = "/var/cache"
	}
	dir := filepath.Join(base, "kpssh")
	return dir, os.MkdirAll(dir, 0o755)
}
