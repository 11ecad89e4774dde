package sim

import (
	"bytes"
	"io"
	"strings"
)

// Files of /proc that say what the machine is. There is no way to shadow them without root, so a command that is sent to a
// machine finds a variable in their place. It is as long as the path, because senders announce how much they send.
const (
	memInfoPath = "/proc/meminfo"
	bootIDPath  = "/proc/sys/kernel/random/boot_id"
)

var (
	memInfoVariable = variableFor(memInfoPath)
	bootIDVariable  = variableFor(bootIDPath)
	replacements    = [][2][]byte{
		{[]byte(bootIDPath), []byte(`"$` + bootIDVariable + `"`)},
		{[]byte(memInfoPath), []byte(`"$` + memInfoVariable + `"`)},
	}
)

// variableFor makes a name so long that `"$name"` is as long as the path.
func variableFor(path string) string {
	name := "SIM_" + strings.ToUpper(path[strings.LastIndex(path, "/")+1:][:4])
	return name + strings.Repeat("_", len(path)-len(name)-3)
}

// replacer replaces paths in a stream. It never holds back more than a path that may be half there, because what is
// sent to a machine is a conversation.
type replacer struct {
	source io.Reader
	ready  []byte // replaced, not yet read
	held   []byte // may become a path
	err    error
}

func (r *replacer) Read(p []byte) (int, error) {
	buffer := make([]byte, 32*1024)
	for len(r.ready) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.source.Read(buffer)
		data := append(r.held, buffer[:n]...)
		for _, replacement := range replacements {
			data = bytes.ReplaceAll(data, replacement[0], replacement[1])
		}
		hold := 0
		if err == nil {
			hold = unfinished(data)
		}
		r.ready, r.held, r.err = data[:len(data)-hold], bytes.Clone(data[len(data)-hold:]), err
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// unfinished is the length of the longest end of data that a path begins with.
func unfinished(data []byte) int {
	longest := 0
	for _, replacement := range replacements {
		path := replacement[0]
		for n := min(len(path)-1, len(data)); n > longest; n-- {
			if bytes.HasSuffix(data, path[:n]) {
				longest = n
			}
		}
	}
	return longest
}
