package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const modulePath = "github.com/kpssh/karpenter-provider-ssh"

// Root is the directory of this project's go.mod, found upwards of the working directory: the lab builds from sources and
// installs generated files of the working tree, which no embedding could reach from here.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module "+modulePath+"\n")) {
			return dir, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod of %s in %s or above: run this from inside the repository", modulePath, start)
		}
	}
}
