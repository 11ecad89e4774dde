package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile takes an exclusive lock that the kernel releases when this process dies. waiting is called once, with the process ID
// of the holder, when somebody else has it.
func lockFile(ctx context.Context, path string, waiting func(owner string)) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			owner, _ := os.ReadFile(path)
			waiting(strings.TrimSpace(string(owner)))
			told = true
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	// Whom to name when others have to wait. Failing to write it loses nothing but that.
	if file.Truncate(0) == nil {
		_, _ = file.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	return func() { file.Close() }, nil
}
