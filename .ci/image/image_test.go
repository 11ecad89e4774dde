package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const commitTime = 1700000000

// executable writes the least that counts as an executable for the machine, with the given kinds of segments.
func executable(t *testing.T, machine elf.Machine, segments ...elf.ProgType) string {
	t.Helper()
	header := elf.Header64{
		Ident:   [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_EXEC),
		Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segments)), Shentsize: 64,
	}
	var buffer bytes.Buffer
	must(t, binary.Write(&buffer, binary.LittleEndian, header))
	for _, kind := range segments {
		must(t, binary.Write(&buffer, binary.LittleEndian, elf.Prog64{Type: uint32(kind)}))
	}
	path := filepath.Join(t.TempDir(), "controller")
	must(t, os.WriteFile(path, buffer.Bytes(), 0o600))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// build runs the command as `make image` does and returns the directory of the layout.
func build(t *testing.T, tag string, more ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bin", "image")
	license := filepath.Join(t.TempDir(), "LICENSE")
	must(t, os.WriteFile(license, []byte("do as you please"), 0o600))
	must(t, run(append([]string{
		"-binary", "linux/amd64=" + executable(t, elf.EM_X86_64),
		"-binary", "linux/arm64=" + executable(t, elf.EM_AARCH64, elf.PT_LOAD),
		"-license", license, "-created", "1700000000", "-layout", dir, "-tag", tag,
		"-version", "v1.2.3", "-revision", "abc", "-source", "https://example.org/source", "-licenses", "Apache-2.0",
	}, more...)))
	return dir
}

// readIndex returns the index of images in the layout, after a check of every digest and size.
func readIndex(t *testing.T, dir string) v1.ImageIndex {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	must(t, validate.Index(outer))
	manifest, err := outer.IndexManifest()
	must(t, err)
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the layout names %d images, want 1", len(manifest.Manifests))
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	must(t, err)
	return index
}

func images(t *testing.T, index v1.ImageIndex) map[string]v1.Image {
	t.Helper()
	manifest, err := index.IndexManifest()
	must(t, err)
	found := map[string]v1.Image{}
	for _, descriptor := range manifest.Manifests {
		image, err := index.Image(descriptor.Digest)
		must(t, err)
		found[descriptor.Platform.String()] = image
	}
	return found
}

// A node of either platform gets the executable of its own, as a user that is not root, and can tell where it comes from.
func TestImageRunsTheControllerOfEachPlatformAsNonRoot(t *testing.T) {
	want := map[string]string{
		"org.opencontainers.image.version":  "v1.2.3",
		"org.opencontainers.image.revision": "abc",
		"org.opencontainers.image.source":   "https://example.org/source",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	found := images(t, readIndex(t, build(t, "registry.example/kpssh:dev")))
	if len(found) != 2 {
		t.Fatalf("%d platforms, want 2", len(found))
	}
	for platform, machine := range machines {
		t.Run(platform, func(t *testing.T) {
			image := found[platform]
			if image == nil {
				t.Fatal("missing")
			}
			config, err := image.ConfigFile()
			must(t, err)
			if got := config.OS + "/" + config.Architecture; got != platform {
				t.Errorf("the config says %s", got)
			}
			if got := config.Config.Entrypoint; len(got) != 1 || got[0] != "/controller" || len(config.Config.Cmd) != 0 {
				t.Errorf("entrypoint %q, command %q", got, config.Config.Cmd)
			}
			if config.Config.User != "65532:65532" {
				t.Errorf("user %q", config.Config.User)
			}
			if !config.Created.Equal(time.Unix(commitTime, 0)) {
				t.Errorf("created %s", config.Created)
			}
			manifest, err := image.Manifest()
			must(t, err)
			for key, value := range want {
				if config.Config.Labels[key] != value || manifest.Annotations[key] != value {
					t.Errorf("%s: label %q, annotation %q, want %q", key, config.Config.Labels[key], manifest.Annotations[key], value)
				}
			}
			assertFiles(t, image, machine)
		})
	}
}

// assertFiles says what may be in the file system: one executable, for the right machine, and a license.
func assertFiles(t *testing.T, image v1.Image, machine elf.Machine) {
	t.Helper()
	layers, err := image.Layers()
	must(t, err)
	if len(layers) != 1 {
		t.Fatalf("%d layers, want 1", len(layers))
	}
	content, err := layers[0].Uncompressed()
	must(t, err)
	modes := map[string]int64{}
	for in := tar.NewReader(content); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		modes[header.Name] = header.Mode
		if header.Typeflag != tar.TypeReg || header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != commitTime {
			t.Errorf("%s: type %c, owner %d:%d, time %s", header.Name, header.Typeflag, header.Uid, header.Gid, header.ModTime)
		}
		if header.Name == "controller" {
			data, err := io.ReadAll(in)
			must(t, err)
			parsed, err := elf.NewFile(bytes.NewReader(data))
			must(t, err)
			if parsed.Machine != machine {
				t.Errorf("the executable is for %s", parsed.Machine)
			}
		}
	}
	if len(modes) != 2 || modes["controller"] != 0o755 || modes["LICENSE"] != 0o644 {
		t.Errorf("files %v, want controller with 0755 and LICENSE with 0644", modes)
	}
}

// One commit is one digest: whoever builds it again can check what was published. What it is called is no part of it.
func TestSameInputsGiveSameBytes(t *testing.T) {
	first, second := build(t, "registry.example/kpssh:dev"), build(t, "registry.example/kpssh:dev")
	one, err := os.ReadFile(first + ".tar")
	must(t, err)
	two, err := os.ReadFile(second + ".tar")
	must(t, err)
	if !bytes.Equal(one, two) {
		t.Error("two builds differ")
	}
	digest, err := readIndex(t, first).Digest()
	must(t, err)
	renamed, err := readIndex(t, build(t, "other.example/name:tag")).Digest()
	must(t, err)
	if digest != renamed {
		t.Errorf("digest %s, under another name %s", digest, renamed)
	}
	other, err := readIndex(t, build(t, "registry.example/kpssh:dev", "-revision", "def")).Digest()
	must(t, err)
	if digest == other {
		t.Error("two commits have one digest")
	}
}

// Docker with its older image store reads no OCI layouts: the archive has to speak its format too.
func TestArchiveIsReadableByOlderDocker(t *testing.T) {
	dir := build(t, "registry.example/kpssh:dev")
	found := images(t, readIndex(t, dir))
	for reference, platform := range map[string]string{
		"registry.example/kpssh:dev":       "linux/amd64",
		"registry.example/kpssh:dev-arm64": "linux/arm64",
	} {
		tag, err := name.NewTag(reference)
		must(t, err)
		image, err := tarball.ImageFromPath(dir+".tar", &tag)
		must(t, err)
		must(t, validate.Image(image))
		got, err := image.ConfigName()
		must(t, err)
		want, err := found[platform].ConfigName()
		must(t, err)
		if got != want {
			t.Errorf("%s is %s, want the image for %s, %s", reference, got, platform, want)
		}
	}
}

func TestPushPutsEveryPlatformIntoTheRegistry(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	reference := strings.TrimPrefix(server.URL, "http://") + "/kpssh:dev"
	tag, err := name.NewTag(reference)
	must(t, err)

	dir := build(t, reference)
	if _, err := remote.Index(tag); err == nil {
		t.Fatal("pushed without -push")
	}
	build(t, reference, "-push")
	pushed, err := remote.Index(tag)
	must(t, err)
	must(t, validate.Index(pushed))
	got, err := pushed.Digest()
	must(t, err)
	want, err := readIndex(t, dir).Digest()
	must(t, err)
	if got != want {
		t.Errorf("the registry has %s, the layout %s", got, want)
	}
}

// What could not start in an empty image is refused when it is built, not on a node.
func TestExecutablesThatCannotRunAreRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "controller")
	must(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600))
	for problem, value := range map[string]string{
		"linked dynamically":  "linux/amd64=" + executable(t, elf.EM_X86_64, elf.PT_LOAD, elf.PT_INTERP),
		"is for EM_AARCH64":   "linux/amd64=" + executable(t, elf.EM_AARCH64),
		"no Linux executable": "linux/amd64=" + text,
		"want linux/amd64":    "darwin/arm64=" + text,
	} {
		dir := filepath.Join(t.TempDir(), "image")
		err := run([]string{"-binary", value, "-license", text, "-layout", dir, "-tag", "registry.example/kpssh:dev"})
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: error %v, want one that says %q", value, err, problem)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: written all the same", value)
		}
	}
}
