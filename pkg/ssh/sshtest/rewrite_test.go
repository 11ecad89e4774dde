package sshtest

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// A stream that was cut anywhere is rewritten like one that was not, and keeps the length that its sender announced.
func TestAStreamIsRewrittenWithoutChangingItsLength(t *testing.T) {
	replacements := append([]Replacement{{"/proc/meminfo", `"$A_MEMINFO_"`}}, Bash3WithoutProc...)
	input := "cat /proc/meminfo; cat </proc/uptime; ((BASH_VERSINFO[0] < 4)); read -rN 5; ls /proc /pro /proc\n/"
	want := `cat "$A_MEMINFO_"; cat </none/uptime; ((               3 < 4)); read -rX 5; ls /proc /pro /proc` + "\n/"
	if len(want) != len(input) {
		t.Fatalf("%d bytes became %d", len(input), len(want))
	}
	if got := Rewrite(input, replacements); got != want {
		t.Errorf("%q", got)
	}
	for name, reader := range map[string]io.Reader{
		"whole":        strings.NewReader(input),
		"byte by byte": iotest.OneByteReader(strings.NewReader(input)),
		"halves":       iotest.HalfReader(strings.NewReader(input)),
	} {
		got, err := io.ReadAll(RewriteStream(reader, replacements))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// What is sent is a conversation: a line must not wait for the next one.
func TestALineIsPassedOnAtOnce(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close()
	go func() { _, _ = writer.Write([]byte("go\n")) }()
	buffer := make([]byte, 10)
	n, err := RewriteStream(reader, Bash3WithoutProc).Read(buffer)
	if err != nil || string(buffer[:n]) != "go\n" {
		t.Errorf("%q, %v", buffer[:n], err)
	}
}
