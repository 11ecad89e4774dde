package ssh

import (
	"crypto/hmac"
	"crypto/sha1" // as known_hosts does
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
)

// Keys from ssh-keygen, with their fingerprints as it prints them.
const (
	edLine  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5kJYxHfQIxcdxQ5lGPYTbYS0ljGhxrgxEnOSzcIqMq"
	ed2Line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g"
	dsaLine = "ssh-dss AAAAB3NzaC1kc3M="
)

func keyFingerprint(t *testing.T, line string) string {
	t.Helper()
	key, _, _, _, err := gossh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	return gossh.FingerprintSHA256(key)
}

func hashedHost(name string) string {
	salt := []byte("0123456789abcdef0123")
	mac := hmac.New(sha1.New, salt)
	mac.Write([]byte(name))
	return "|1|" + base64.StdEncoding.EncodeToString(salt) + "|" + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func TestParsePins(t *testing.T) {
	t.Parallel()
	ed, ed2 := keyFingerprint(t, edLine), keyFingerprint(t, ed2Line)
	for name, tc := range map[string]struct {
		in      string
		address string // default 10.0.0.1
		port    int
		want    []string
		revoked int
		err     string // contained
	}{
		"nothing":                       {in: ""},
		"only comments and blank lines": {in: "# none\n\n  \t\r\n"},
		"public key":                    {in: edLine, want: []string{ed}},
		"public key with comment":       {in: "  " + edLine + " root@node 1\r\n", want: []string{ed}},
		"fingerprint":                   {in: ed, want: []string{ed}},
		"padded fingerprint":            {in: ed + "=", want: []string{ed}},
		"ssh-keygen -l":                 {in: "256 " + ed + " root@node (ED25519)", want: []string{ed}},
		"several":                       {in: "# old\n" + edLine + "\n# new\n" + ed2 + "\n", want: []string{ed, ed2}},
		"byte order mark":               {in: "\ufeff" + edLine, want: []string{ed}},

		"known_hosts":                 {in: "10.0.0.1 " + edLine, want: []string{ed}},
		"list of names":               {in: "node1,10.0.0.1,10.0.0.2 " + edLine + " c", want: []string{ed}},
		"bracketed with default port": {in: "[10.0.0.1]:22 " + edLine, want: []string{ed}},
		"other port":                  {in: "[10.0.0.1]:2222 " + edLine, port: 2222, want: []string{ed}},
		"port that is not ours":       {in: "[10.0.0.1]:2222 " + edLine, err: "names 10.0.0.1:22"},
		"plain name for another port": {in: "10.0.0.1 " + edLine, port: 2222, err: "names 10.0.0.1:2222"},
		"name, whatever its case":     {in: "Node1.Example.COM " + edLine, address: "node1.example.com", want: []string{ed}},
		"wildcards":                   {in: "10.0.0.?,*.example " + edLine, want: []string{ed}},
		"negated":                     {in: "10.0.0.*,!10.0.0.1 " + edLine, err: "names"},
		"negated first":               {in: "!10.0.0.1,10.0.0.* " + edLine, err: "names"},
		"IPv6":                        {in: "2001:db8::11 " + edLine, address: "2001:db8::11", want: []string{ed}},
		"IPv6, other spelling":        {in: "2001:0db8:0:0::11 " + edLine, address: "[2001:db8::11]", want: []string{ed}},
		"IPv6 with port":              {in: "[2001:db8::11]:2222 " + edLine, address: "2001:db8::11", port: 2222, want: []string{ed}},
		"hashed":                      {in: hashedHost("10.0.0.1") + " " + edLine, want: []string{ed}},
		"hashed with port":            {in: hashedHost("[10.0.0.1]:2222") + " " + edLine, port: 2222, want: []string{ed}},
		"hashed, another machine":     {in: hashedHost("10.0.0.2") + " " + edLine, err: "names"},
		"a whole file":                {in: "10.0.0.9 " + ed2Line + "\n10.0.0.1 " + edLine, want: []string{ed}},
		"a file of others":            {in: "10.0.0.8 " + ed2Line + "\n10.0.0.9 " + edLine, err: "none of the 2 lines"},

		"revoked and another":    {in: "@revoked 10.0.0.1 " + ed2Line + "\n" + edLine, want: []string{ed}, revoked: 1},
		"revoked everywhere":     {in: "@revoked " + ed2Line, revoked: 1},
		"revoked, all hosts":     {in: "@revoked * " + ed2Line, revoked: 1},
		"revoked for others":     {in: "@revoked 10.0.0.9 " + ed2Line + "\n" + edLine, want: []string{ed}},
		"certificate authority":  {in: "@cert-authority * " + edLine, err: "line 1 of knownHost is a @cert-authority"},
		"unknown marker":         {in: "@other * " + edLine, err: "neither"},
		"MD5":                    {in: edLine + "\nMD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48", err: "line 2 of knownHost is an MD5"},
		"ssh-keygen -l with MD5": {in: "256 MD5:16:27 x (ED25519)", err: "MD5"},
		"short fingerprint":      {in: "SHA256:abc", err: "neither"},
		"mislabelled key":        {in: strings.Replace(edLine, "ssh-ed25519", "ssh-rsa", 1), err: "neither"},
		"truncated key":          {in: edLine[:40], err: "neither"},
		"host without key":       {in: "10.0.0.1 ssh-ed25519", err: "neither"},
		"one good, one broken":   {in: edLine + "\nrubbish", err: "line 2"},
		"DSA":                    {in: dsaLine, err: "still uses"},
		"DSA among others":       {in: "10.0.0.1 " + dsaLine + "\n10.0.0.1 " + edLine, want: []string{ed}},
		"others' unknown types":  {in: "10.0.0.7 ssh-future AAAAB3NzaC1kc3M= c\n10.0.0.1 " + edLine, want: []string{ed}},
		"own unknown type":       {in: "10.0.0.1 ssh-future AAAAB3NzaC1kc3M= c\n10.0.0.1 " + edLine, err: "line 1"},
		"private key by mistake": {in: "-----BEGIN OPENSSH PRIVATE KEY-----", err: "neither"},
		"zone in the address":    {in: edLine, address: "fe80::1%eth0", err: "zone"},
	} {
		if tc.address == "" {
			tc.address = "10.0.0.1"
		}
		pins, err := ParsePins([]byte(tc.in), tc.address, tc.port)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) || !fault.Is(err, fault.Configuration) {
				t.Errorf("%s: error %v, want %q", name, err, tc.err)
			}
			if !pins.Empty() {
				t.Errorf("%s: pins beside an error", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := pins.Fingerprints(); !slices.Equal(got, tc.want) || len(pins.revoked) != tc.revoked {
			t.Errorf("%s: %v, want %v; %d revoked", name, got, tc.want, len(pins.revoked))
		}
		if pins.Empty() != (len(tc.want) == 0) {
			t.Errorf("%s: empty is %v", name, pins.Empty())
		}
	}
}

// Whatever a Secret holds: no panic, no pin that is not in the text, and never "anything goes" for a text that says something.
func FuzzParsePins(f *testing.F) {
	for _, seed := range []string{
		"", "# c", edLine, "10.0.0.1 " + edLine, "@revoked * " + edLine, "@cert-authority * " + edLine, hashedHost("10.0.0.1") + " " + edLine,
		"[10.0.0.1]:2222," + strings.Repeat("*", 40) + "a " + edLine, "256 SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU x (ED25519)",
		"SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "|1|a|b " + edLine, "!," + edLine, "\x00 \xff\n@revoked\n", dsaLine,
	} {
		f.Add([]byte(seed), "10.0.0.1", 22)
	}
	f.Add([]byte("[2001:db8::11]:2222 "+edLine), "2001:db8::11", 2222)
	f.Fuzz(func(t *testing.T, in []byte, address string, port int) {
		pins, err := ParsePins(in, address, port)
		if err != nil {
			var known *fault.Error
			if !errors.As(err, &known) || known.Blame != fault.Configuration {
				t.Fatalf("%T %v", err, err)
			}
			if !pins.Empty() || len(pins.revoked) > 0 {
				t.Fatal("pins beside an error")
			}
			return
		}
		for _, fingerprint := range pins.fingerprints {
			if !fingerprintForm.MatchString(fingerprint) || !strings.Contains(string(in), strings.TrimRight(fingerprint, "=")) {
				t.Fatalf("fingerprint %q", fingerprint)
			}
		}
		for _, key := range pins.keys {
			if !strings.Contains(string(in), base64.StdEncoding.EncodeToString(key.Marshal())) {
				t.Fatal("a key that is not in the text")
			}
		}
		if !pins.Empty() || len(pins.revoked) > 0 {
			return
		}
		for _, line := range strings.Split(string(in), "\n") {
			line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff"))
			if line != "" && !strings.HasPrefix(line, "#") {
				t.Fatalf("%q pins nothing and is no error", line)
			}
		}
	})
}
