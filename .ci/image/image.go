package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	entrypoint = "/controller"
	// A number, not a name: kubelet's runAsNonRoot can only judge a number, and a number needs no /etc/passwd.
	user = "65532:65532"
)

// machines are the platforms an image can be for, and how their executables say so.
var machines = map[string]elf.Machine{
	"linux/amd64": elf.EM_X86_64,
	"linux/arm64": elf.EM_AARCH64,
}

// program is the controller, compiled for one platform.
type program struct {
	platform *v1.Platform
	path     string
}

// content is all that decides the bytes of an image, and with them its digest. Names and tags are not part of it.
type content struct {
	programs    []program
	license     string
	created     time.Time
	annotations map[string]string
}

// index builds the image of every platform and the index that lists them.
func (c content) index() (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range c.programs {
		image, err := c.image(p)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", p.platform, err)
		}
		descriptor, err := partial.Descriptor(image)
		if err != nil {
			return nil, fmt.Errorf("describing the image for %s: %w", p.platform, err)
		}
		descriptor.Platform = p.platform
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: *descriptor})
	}
	return mutate.Annotations(index, c.annotations).(v1.ImageIndex), nil
}

func (c content) image(p program) (v1.Image, error) {
	executable, err := p.read()
	if err != nil {
		return nil, err
	}
	license, err := os.ReadFile(c.license)
	if err != nil {
		return nil, err
	}
	files, err := archive(c.created,
		file{name: "LICENSE", mode: 0o644, data: license},
		file{name: entrypoint[1:], mode: 0o755, data: executable})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: c.created}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: p.platform.Architecture,
		OS:           p.platform.OS,
		Created:      created,
		RootFS:       v1.RootFS{Type: "layers"},
		Config:       v1.Config{Entrypoint: []string{entrypoint}, User: user, WorkingDir: "/", Labels: c.annotations},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, c.annotations).(v1.Image), nil
}

// read returns the executable, if it can run in an image that holds nothing else.
func (p program) read() ([]byte, error) {
	data, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	parsed, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s is no Linux executable: %w", p.path, err)
	}
	if parsed.Machine != machines[p.platform.String()] {
		return nil, fmt.Errorf("%s is for %s, not for %s", p.path, parsed.Machine, p.platform)
	}
	for _, segment := range parsed.Progs {
		if segment.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is linked dynamically, and the image has no loader: build it with CGO_ENABLED=0", p.path)
		}
	}
	return data, nil
}

type file struct {
	name string
	mode int64
	data []byte
}

// archive is a tar of the files in the order given, with one time and no trace of who built it.
func archive(modified time.Time, files ...file) ([]byte, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: modified}
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := out.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
