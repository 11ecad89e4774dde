package ssh

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh/sshtest"
)

// hostKeys of one machine: RSA, ECDSA, ed25519, as a distribution's first boot makes them.
func hostKeys(t *testing.T) (rsaKey, ecdsaKey, edKey gossh.Signer) {
	t.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edKey, err = sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	return signer(t, r), signer(t, e), edKey
}

func signer(t *testing.T, key any) gossh.Signer {
	t.Helper()
	s, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func line(key gossh.Signer) string { return string(gossh.MarshalAuthorizedKey(key.PublicKey())) }

func fingerprint(key gossh.Signer) string { return gossh.FingerprintSHA256(key.PublicKey()) }

// D1, section 3 #8: a pin of any one of a machine's keys is enough, whatever type the two sides would have agreed on.
func TestPinnedKeyIsFoundAmongSeveral(t *testing.T) {
	t.Parallel()
	rsaKey, ecdsaKey, edKey := hostKeys(t)
	other, err := sshtest.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) { s.HostKeys = []gossh.Signer{rsaKey, ecdsaKey, edKey} })
	at := fmt.Sprintf("[127.0.0.1]:%d", m.Port())
	for name, tc := range map[string]struct {
		pins    string
		trusted string
		got     gossh.Signer // nil: mismatch
		conns   int
		revoked bool
	}{
		"ed25519 line":                         {pins: line(edKey), got: edKey, conns: 1},
		"RSA line":                             {pins: line(rsaKey), got: rsaKey, conns: 1},
		"ECDSA known_hosts line":               {pins: at + " " + line(ecdsaKey), got: ecdsaKey, conns: 1},
		"ed25519 fingerprint":                  {pins: fingerprint(edKey), got: edKey, conns: 1},
		"RSA fingerprint, two more handshakes": {pins: fingerprint(rsaKey), got: rsaKey, conns: 3},
		"seen first: ECDSA":                    {trusted: fingerprint(ecdsaKey), got: ecdsaKey, conns: 2},
		"nothing pinned":                       {got: edKey, conns: 1},
		"several, one right":                   {pins: line(other) + line(ecdsaKey), got: ecdsaKey, conns: 2},
		"wrong ed25519":                        {pins: line(other), conns: 1},
		"wrong fingerprint":                    {pins: fingerprint(other), conns: 4}, // the last finds no type left
		"wrong key seen first":                 {trusted: fingerprint(other), conns: 4},
		"pins outrank what was seen first":     {pins: line(edKey), trusted: fingerprint(other), got: edKey, conns: 1},
		"what was seen first adds nothing":     {pins: line(other), trusted: fingerprint(edKey), conns: 1},
		"revoked":                              {pins: "@revoked " + at + " " + line(edKey), conns: 1, revoked: true},
		"revoked beside its own pin":           {pins: line(edKey) + "@revoked * " + line(edKey), conns: 1, revoked: true},
	} {
		pins, err := ParsePins([]byte(tc.pins), m.Host(), m.Port())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		target := m.target()
		target.Pins, target.Trusted = pins, tc.trusted
		before, logins := m.Connections(), m.AuthAttempts()
		d := &Dialer{}
		conn, err := d.Dial(t.Context(), target)
		if got := m.Connections() - before; got != tc.conns {
			t.Errorf("%s: %d connections, want %d", name, got, tc.conns)
		}
		if tc.got != nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if conn.HostKeyFingerprint() != fingerprint(tc.got) {
				t.Errorf("%s: connected with %s", name, conn.HostKeyFingerprint())
			}
			_ = conn.Close()
			// The second time the key's type is known.
			before = m.Connections()
			if conn, err = d.Dial(t.Context(), target); err != nil {
				t.Errorf("%s, again: %v", name, err)
				continue
			}
			_ = conn.Close()
			if again := m.Connections() - before; again > 1 {
				t.Errorf("%s, again: %d connections", name, again)
			}
			continue
		}
		if m.AuthAttempts() != logins {
			t.Errorf("%s: it tried to log in to a machine that it did not recognise", name)
		}
		if tc.revoked {
			wantFault(t, err, fault.Host, "HostKeyRevoked", fingerprint(edKey))
			continue
		}
		// D18: a person who must decide sees the old and the new.
		wantFault(t, err, fault.Host, "HostKeyMismatch", fingerprint(other), fingerprint(edKey))
		var mismatch *HostKeyMismatch
		if !errors.As(err, &mismatch) || len(mismatch.Presented) == 0 || mismatch.Expected[0] != fingerprint(other) {
			t.Errorf("%s: cause %+v", name, mismatch)
		}
	}
}

// D18: a machine installed anew, also with a key of another type only, is refused with both fingerprints.
func TestPinnedTypeIsGone(t *testing.T) {
	t.Parallel()
	rsaKey, _, edKey := hostKeys(t)
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) { s.HostKeys = []gossh.Signer{rsaKey} })
	pins, err := ParsePins([]byte(line(edKey)), m.Host(), m.Port())
	if err != nil {
		t.Fatal(err)
	}
	target := m.target()
	target.Pins = pins
	_, err = (&Dialer{}).Dial(t.Context(), target)
	wantFault(t, err, fault.Host, "HostKeyMismatch", fingerprint(edKey), fingerprint(rsaKey))
}

// D2: what both sides offer is in the message, and so is the setting.
func TestNoCommonAlgorithmNamesBothOffers(t *testing.T) {
	t.Parallel()
	rsaKey, _, _ := hostKeys(t)
	algorithmic, ok := rsaKey.(gossh.AlgorithmSigner)
	if !ok {
		t.Fatal("not an algorithm signer")
	}
	only := func(algorithm string) gossh.Signer {
		s, err := gossh.NewSignerWithAlgorithms(algorithmic, []string{algorithm})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, tc := range map[string]struct {
		configure func(*gossh.ServerConfig)
		hostKey   gossh.Signer
		words     []string // empty: it connects
	}{
		"only rsa-sha2-512": {hostKey: only(gossh.KeyAlgoRSASHA512)},
		"only rsa-sha2-256": {hostKey: only(gossh.KeyAlgoRSASHA256)},
		"only ssh-rsa":      {hostKey: only(gossh.KeyAlgoRSA), words: []string{"host key", "offers ssh-rsa", "ssh-ed25519", "HostKeyAlgorithms"}},
		"only diffie-hellman-group-exchange-sha256": {configure: func(c *gossh.ServerConfig) { c.KeyExchanges = []string{gossh.KeyExchangeDHGEXSHA256} }},
		"only a SHA-1 key exchange": {configure: func(c *gossh.ServerConfig) { c.KeyExchanges = []string{gossh.InsecureKeyExchangeDH14SHA1} },
			words: []string{"key exchange", "diffie-hellman-group14-sha1", "curve25519-sha256", "KexAlgorithms"}},
		"only a CBC cipher": {configure: func(c *gossh.ServerConfig) { c.Ciphers = []string{gossh.InsecureCipherAES128CBC} },
			words: []string{"cipher", "aes128-cbc", "aes128-gcm@openssh.com", "Ciphers"}},
	} {
		m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) {
			s.Configure = tc.configure
			if tc.hostKey != nil {
				s.HostKeys = []gossh.Signer{tc.hostKey}
			}
		})
		conn, err := (&Dialer{}).Dial(t.Context(), m.target())
		if len(tc.words) == 0 {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			_ = conn.Close()
			continue
		}
		wantFault(t, err, fault.Host, "NoCommonAlgorithm", append(tc.words, "handshake")...)
	}
}

// D3, section 3 #7.
func TestIPv6Literals(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) { s.Listen = "[::1]:0" })
	for _, address := range []string{"::1", "[::1]", "0:0:0:0:0:0:0:1"} {
		target := m.target()
		target.Address = address
		pins, err := ParsePins([]byte(line(m.HostKeys[0])), address, m.Port())
		if err != nil {
			t.Fatal(err)
		}
		target.Pins = pins
		conn, err := (&Dialer{}).Dial(t.Context(), target)
		if err != nil {
			t.Fatalf("%s: %v", address, err)
		}
		if _, err := conn.Run(t.Context(), Script{Phase: "probe", Body: "true", Timeout: time.Minute}); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		_ = conn.Close()
	}
}

func TestAddressesThatCannotBeDialled(t *testing.T) {
	t.Parallel()
	key, _ := newKey(t)
	for address, word := range map[string]string{
		"fe80::1%eth0": "zone", "[fe80::1%eth0]": "zone", "": "neither", "10.0.0.1:22": "port field",
		"a b": "neither", "root@host": "neither", "2001:db8::zz": "neither",
	} {
		_, err := (&Dialer{}).Dial(t.Context(), Target{Address: address, Key: key})
		wantFault(t, err, fault.Configuration, "AddressInvalid", word)
	}
	_, err := (&Dialer{}).Dial(t.Context(), Target{Address: "127.0.0.1", Port: 70000, Key: key})
	wantFault(t, err, fault.Configuration, "AddressInvalid", "70000")
	_, err = (&Dialer{}).Dial(t.Context(), Target{Address: "127.0.0.1"})
	wantFault(t, err, fault.Configuration, "KeyInvalid")
}

func TestUnreachableMachines(t *testing.T) {
	t.Parallel()
	key, _ := newKey(t)
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, ok := closed.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal("no TCP address")
	}
	_ = closed.Close()
	_, err = (&Dialer{}).Dial(t.Context(), Target{Address: "127.0.0.1", Port: addr.Port, Key: key})
	wantFault(t, err, fault.Network, "DialFailed", "TCP connect", "refused")

	missing := &Dialer{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}}
	}}
	_, err = missing.Dial(t.Context(), Target{Address: "nowhere.invalid", Key: key})
	wantFault(t, err, fault.Network, "DialFailed", "does not resolve")
}

// D6: one identity, one attempt; the message names the key, the user and what the machine allows.
func TestWrongKeyIsOfferedOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	stranger, _ := newKey(t)
	target := m.target()
	target.Key = stranger
	_, err := (&Dialer{}).Dial(t.Context(), target)
	wantFault(t, err, fault.Host, "AuthenticationFailed", "authentication", "user root", stranger.Fingerprint(), "publickey", "authorized_keys")
	if m.AuthAttempts() != 1 || m.Connections() != 1 {
		t.Errorf("%d attempts on %d connections", m.AuthAttempts(), m.Connections())
	}
}

func TestMachineWithoutPublicKeyLogin(t *testing.T) {
	t.Parallel()
	m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) {
		s.Configure = func(c *gossh.ServerConfig) {
			c.PublicKeyCallback = nil
			c.PasswordCallback = func(gossh.ConnMetadata, []byte) (*gossh.Permissions, error) { return nil, errors.New("no") }
		}
	})
	_, err := (&Dialer{}).Dial(t.Context(), m.target())
	wantFault(t, err, fault.Host, "AuthenticationFailed", "it allows: password")
}

// RSA login keys sign with SHA-2, also for servers that do not say which signatures they take.
func TestLoginKeys(t *testing.T) {
	t.Parallel()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	var keys []Signer
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		e, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, parsed(t, e))
	}
	keys = append(keys, parsed(t, r))
	for _, key := range keys {
		for _, accepted := range [][]string{nil, {gossh.KeyAlgoRSASHA256, gossh.KeyAlgoECDSA256, gossh.KeyAlgoECDSA384, gossh.KeyAlgoECDSA521}} {
			m := newMachine(t, func(s *sshtest.Server, _ *sshtest.Shell) {
				s.AuthorizedKeys = []gossh.PublicKey{key.inner.PublicKey()}
				s.Configure = func(c *gossh.ServerConfig) { c.PublicKeyAuthAlgorithms = accepted }
			})
			target := m.target()
			target.Key = key
			conn, err := (&Dialer{}).Dial(t.Context(), target)
			if err != nil {
				t.Errorf("%s: %v", key.Type(), err)
				continue
			}
			_ = conn.Close()
		}
	}
}

func parsed(t *testing.T, private any) Signer {
	t.Helper()
	block, err := gossh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseKey(pem.EncodeToMemory(block), nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestNothingPrintsAKey(t *testing.T) {
	t.Parallel()
	key, _ := newKey(t)
	target := Target{Address: "10.0.0.1", User: "admin", Key: key}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if got := fmt.Sprintf(format, target); !strings.Contains(got, "admin@10.0.0.1:22") || len(got) > 60 {
			t.Errorf("%s prints %s", format, got)
		}
		if got := fmt.Sprintf(format, key); !strings.Contains(got, key.Fingerprint()) || len(got) > 100 {
			t.Errorf("%s prints %s", format, got)
		}
	}
}

// A cancelled dial returns at once, whatever it waits for.
func TestDialHonoursItsContext(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, stage := range []sshtest.Stage{sshtest.StallHandshake, sshtest.StallAuthentication} {
		m.Stall(stage)
		ctx, cancel := context.WithCancel(t.Context())
		before, handshakes := m.Connections(), m.Handshakes()
		ended := make(chan error, 1)
		go func() {
			_, err := (&Dialer{Timeouts: Timeouts{Handshake: time.Hour, Auth: time.Hour}}).Dial(ctx, m.target())
			ended <- err
		}()
		await(t, "the stall", func() bool {
			return m.Connections() > before && (stage == sshtest.StallHandshake || m.Handshakes() > handshakes)
		})
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := (&Dialer{}).Dial(ctx, m.target())
	wantFault(t, err, fault.Network, "AuthenticationTimeout")
}
