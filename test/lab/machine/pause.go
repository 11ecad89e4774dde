//go:build linux

package machine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// PauseImage is an image that every machine has: it does nothing until it is told to stop.
const PauseImage = "lab.kpssh/pause:1"

// Pause builds the static program in PauseImage, below the cache, and returns its path. root is the project's directory.
func Pause(ctx context.Context, root string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "pause")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", path, "./test/lab/machine/pause")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the pause program: %w: %s", err, out)
	}
	return path, nil
}

// writeImage writes a docker archive, as `ctr images import` reads it, of an image that holds one program and runs it.
func writeImage(path, name, program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, []file{{"pause", 0o755, content}}); err != nil {
		return err
	}
	sum := sha256.Sum256(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := writeTar(out, []file{
		{"config.json", 0o644, config}, {"layer.tar", 0o644, layer.Bytes()}, {"manifest.json", 0o644, manifest},
	}); err != nil {
		return err
	}
	return out.Close()
}

type file struct {
	path    string
	mode    os.FileMode
	content []byte
}

func writeTar(w io.Writer, files []file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{Name: f.path, Mode: int64(f.mode), Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	return archive.Close()
}
