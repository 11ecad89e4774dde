package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// aliveFile in a temporary directory is locked for as long as its process lives.
const aliveFile = ".alive"

// TempDir makes a temporary directory, after removing those of the same prefix whose processes were killed before they could do it
// themselves. remove is to be called once.
func TempDir(prefix string) (dir string, remove func() error, err error) {
	sweep(prefix)
	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, err
	}
	alive, err := os.Create(filepath.Join(dir, aliveFile))
	if err != nil {
		return "", nil, err
	}
	if err := unix.Flock(int(alive.Fd()), unix.LOCK_EX); err != nil {
		alive.Close()
		return "", nil, fmt.Errorf("lock %s: %w", alive.Name(), err)
	}
	return dir, func() error {
		defer alive.Close()
		return os.RemoveAll(dir)
	}, nil
}

func sweep(prefix string) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if abandoned(dir) {
			_ = os.RemoveAll(dir) // another sweep may be at it, or it is another user's
		}
	}
}

// abandoned errs on the side of keeping: a directory without the file may be a second old.
func abandoned(dir string) bool {
	alive, err := os.Open(filepath.Join(dir, aliveFile))
	if err != nil {
		info, statErr := os.Stat(dir)
		return statErr == nil && info.IsDir() && time.Since(info.ModTime()) > time.Hour
	}
	defer alive.Close()
	return unix.Flock(int(alive.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
