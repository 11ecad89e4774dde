// Command image puts compiled controllers into a container image without a container engine. It decides what is in the image: the
// static executable and its license, a user that is not root, and what says which source it was made of. The same executables,
// commit and version give the same bytes. It writes an OCI image layout, an archive of it, and, when told to, a registry.
//
// It is a module of its own, so that the controller's module does not depend on clients of registries.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run does what the arguments say, none of which are positional.
func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	c := content{annotations: map[string]string{}}
	flags.Func("binary", "`platform=path` of an executable, such as linux/amd64=bin/controller; one for each platform", func(value string) error {
		p, err := parseProgram(value)
		c.programs = append(c.programs, p)
		return err
	})
	flags.StringVar(&c.license, "license", "", "`path` of the license to put beside the executable")
	created := flags.Int64("created", 0, "time of the commit in `seconds` since 1970")
	for flagName, meaning := range map[string]string{
		"version":  "what the executable calls itself",
		"revision": "commit that it was built from",
		"source":   "URL of the repository",
		"licenses": "SPDX expression",
	} {
		flags.Func(flagName, "`value` of the annotation: "+meaning, func(value string) error {
			if value != "" {
				c.annotations["org.opencontainers.image."+flagName] = value
			}
			return nil
		})
	}
	reference := flags.String("tag", "", "`name` of the image, with tag")
	dir := flags.String("layout", "", "`directory` to write, which must not exist; the archive is written beside it, with .tar appended")
	push := flags.Bool("push", false, "push to the registry that the name says, with the credentials of docker login")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || len(c.programs) == 0 || c.license == "" || *dir == "" {
		return errors.New("needs -binary, -license, -tag and -layout, and nothing else but flags")
	}
	tag, err := name.NewTag(*reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("the image's name needs registry, repository and tag: %w", err)
	}
	c.created = time.Unix(*created, 0).UTC()

	index, err := c.index()
	if err != nil {
		return err
	}
	if err := writeLayout(*dir, index, tag); err != nil {
		return fmt.Errorf("writing %s: %w", *dir, err)
	}
	if err := writeTar(*dir+".tar", *dir, index, tag, c.created); err != nil {
		return fmt.Errorf("writing %s.tar: %w", *dir, err)
	}
	if *push {
		if err := remote.WriteIndex(tag, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
	}
	return report(index, tag, *push)
}

func parseProgram(value string) (program, error) {
	platform, path, found := strings.Cut(value, "=")
	if _, known := machines[platform]; !found || !known {
		return program{}, errors.New("want linux/amd64=path or linux/arm64=path")
	}
	system, architecture, _ := strings.Cut(platform, "/")
	return program{platform: &v1.Platform{OS: system, Architecture: architecture}, path: path}, nil
}

// report prints what was made: platforms with the size that a node downloads, and the name to deploy by.
func report(index v1.ImageIndex, tag name.Tag, pushed bool) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, descriptor := range manifest.Manifests {
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			return err
		}
		parts, err := image.Manifest()
		if err != nil {
			return err
		}
		var size int64
		for _, layer := range parts.Layers {
			size += layer.Size
		}
		fmt.Printf("%-12s %s  %.1f MB compressed\n", descriptor.Platform, descriptor.Digest, float64(size)/1e6)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	done := "built, not pushed (PUSH=1 pushes)"
	if pushed {
		done = "pushed"
	}
	fmt.Printf("%s@%s: %s\n", tag.String(), digest, done)
	return nil
}
