package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeLayout writes an OCI image layout into dir, which must not exist: what lay there would stay and be shipped.
func writeLayout(dir string, index v1.ImageIndex, tag name.Tag) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag.TagStr(),
		// Where containerd, and Docker on top of it, look for the whole name.
		"io.containerd.image.name": tag.String(),
	}))
}

// writeTar packs the layout in dir. Readers of OCI layouts (containerd, Podman, Docker with containerd's image store) see every
// platform under the tag. Docker with its older store reads manifest.json and no index, so there each platform needs a name of
// its own: the first has the tag, the others the tag with "-" and their architecture appended.
func writeTar(path, dir string, index v1.ImageIndex, tag name.Tag, modified time.Time) error {
	var files []file
	err := filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, p)
		files = append(files, file{name: filepath.ToSlash(relative), mode: 0o644, data: data})
		return err
	})
	if err != nil {
		return err
	}
	docker, err := dockerManifest(index, tag)
	if err != nil {
		return err
	}
	packed, err := archive(modified, append(files, file{name: "manifest.json", mode: 0o644, data: docker})...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, packed, 0o644)
}

func dockerManifest(index v1.ImageIndex, tag name.Tag) ([]byte, error) {
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var manifest tarball.Manifest
	for i, descriptor := range list.Manifests {
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			return nil, err
		}
		parts, err := image.Manifest()
		if err != nil {
			return nil, err
		}
		entry := tarball.Descriptor{Config: blob(parts.Config.Digest), RepoTags: []string{tag.String()}}
		if i > 0 {
			entry.RepoTags[0] += "-" + descriptor.Platform.Architecture
		}
		for _, layer := range parts.Layers {
			entry.Layers = append(entry.Layers, blob(layer.Digest))
		}
		manifest = append(manifest, entry)
	}
	return json.Marshal(manifest)
}

func blob(digest v1.Hash) string {
	return fmt.Sprintf("blobs/%s/%s", digest.Algorithm, digest.Hex)
}
