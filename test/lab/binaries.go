package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Applets are the programs of the multi-call binary; each is a file name in the directory that Binaries returns.
func Applets() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"}
}

// Binaries returns a directory that holds every applet, usable as KUBEBUILDER_ASSETS, building the multi-call binary when it is
// not cached: ten minutes or more on two cores, with progress lines on log. In order, the directory comes from
//
//	KPSSH_KUBEBIN       the path of a finished multi-call binary
//	KUBEBUILDER_ASSETS  a directory that holds etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl
//	the cache           <user cache>/kpssh/<hash of the binary's sources, go.sum and toolchain>
//
// Any number of processes may call it at once: one builds, the others wait.
func Binaries(ctx context.Context, log io.Writer) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	if override := os.Getenv("KPSSH_KUBEBIN"); override != "" {
		path, err := filepath.Abs(override)
		if err != nil {
			return "", err
		}
		if err := executable(path); err != nil {
			return "", fmt.Errorf("KPSSH_KUBEBIN: %w", err)
		}
		sum := sha256.Sum256([]byte(path))
		return link(filepath.Join(cache, "override-"+hex.EncodeToString(sum[:6])), path)
	}
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		missing := missingApplets(assets)
		if len(missing) == 0 {
			return assets, nil
		}
		fmt.Fprintf(log, "lab: KUBEBUILDER_ASSETS=%s is not used, it lacks %v\n", assets, missing)
	}
	source, err := findSource(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, source.key)
	binary := filepath.Join(dir, "kubebin")
	if executable(binary) != nil {
		if err := source.buildOnce(ctx, dir, binary, log); err != nil {
			return "", err
		}
	}
	return link(filepath.Join(dir, "bin"), binary)
}

// missingApplets leaves the kubelet out: it runs on Linux only, and control planes do without.
func missingApplets(dir string) []string {
	return slices.DeleteFunc(Applets(), func(name string) bool {
		return name == "kubelet" || executable(filepath.Join(dir, name)) == nil
	})
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// link makes dir a directory of symbolic links to the binary. It is renamed into place, so that nobody sees half of it.
func link(dir, binary string) (string, error) {
	if linked(dir, binary) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".links-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	for _, name := range Applets() {
		if err := os.Symlink(binary, filepath.Join(tmp, name)); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, dir); err != nil && !linked(dir, binary) {
		// An older set of links is in the way (other applets): it holds nothing but links.
		if err := errors.Join(os.RemoveAll(dir), os.Rename(tmp, dir)); err != nil && !linked(dir, binary) {
			return "", err
		}
	}
	return dir, nil
}

func linked(dir, binary string) bool {
	return !slices.ContainsFunc(Applets(), func(name string) bool {
		target, err := os.Readlink(filepath.Join(dir, name))
		return err != nil || target != binary
	})
}

// cacheDir is <user cache>/kpssh. Without a home directory (some CI runners) the temporary directory has to do.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "kpssh")
	return dir, os.MkdirAll(dir, 0o755)
}
