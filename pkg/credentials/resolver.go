// Package credentials says how to log in to a machine, and which host key to expect there: it turns an SSHHost into an ssh.Target.
// The login key and the pinned host keys come from the Secret that the host names; where the Secret pins nothing, the key that the
// status remembers is expected, or the one that a person quoted in an annotation. The package writes nothing and dials nothing.
//
// Key bytes and passphrases stay in here: the parsed signer is kept, once per version of the Secret, and no error carries them.
package credentials

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/ssh"
)

// Entries of the Secret that SSHHost.spec.sshKeySecretRef names.
const (
	// PrivateKeyEntry holds the login key, PEM. Required.
	PrivateKeyEntry = "privateKey"
	// PassphraseEntry holds the passphrase of an encrypted login key.
	PassphraseEntry = "passphrase"
	// KnownHostEntry holds the pinned host keys, one a line. Optional; outranks everything that was seen on the network.
	KnownHostEntry = "knownHost"
	// HostCAEntry holds the keys of the authorities whose host certificates are accepted, one a line. Optional; like knownHost.
	HostCAEntry = "hostCA"
)

// Reasons of the faults that Target returns, besides those of ssh.ParseKey and ssh.ParsePins.
const (
	ReasonSecretNotFound     = "SSHKeySecretNotFound"
	ReasonSecretInvalid      = "SSHKeySecretInvalid"
	ReasonSecretUnreadable   = "SSHKeySecretUnreadable"
	ReasonKnownHostInvalid   = "KnownHostInvalid"
	ReasonHostCAInvalid      = "HostCAInvalid"
	ReasonCertificateInvalid = "CertificateInvalid"
)

// Resolver resolves SSHHosts to Targets. It is safe for concurrent use.
type Resolver struct {
	secrets client.Reader
	// Clock judges certificates; it may be set before the first use. Default: the real one.
	Clock clock.PassiveClock

	mu   sync.Mutex
	keys map[types.NamespacedName]*parsedKey
}

// parsedKey is the signer of one version of one Secret. Decrypting a key is made slow on purpose (bcrypt), and a fleet shares few
// keys, so each version is parsed once, by whoever comes first.
type parsedKey struct {
	uid     types.UID
	version string
	// expires is when the key's certificate does; zero if it has none.
	expires time.Time

	once        sync.Once
	signer      ssh.Signer
	certificate ssh.Certificate
	err         error
}

// NewResolver makes a Resolver that reads Secrets through a reader which can see the pool namespace, best a cache of it.
func NewResolver(secrets client.Reader) *Resolver {
	return &Resolver{secrets: secrets, Clock: clock.RealClock{}, keys: map[types.NamespacedName]*parsedKey{}}
}

// Target says how to reach a machine. Errors are *fault.Error: Configuration when a person must edit the host or its Secret, Cluster
// when the Secret could not be read this time.
func (r *Resolver) Target(ctx context.Context, host *v1beta1.SSHHost) (ssh.Target, error) {
	target := ssh.Target{Address: host.Spec.Address, Port: int(host.Spec.Port), User: host.Spec.User}
	secret, err := r.login(ctx, host, host.Spec.SSHKeySecretRef.Name, &target)
	if err != nil {
		return ssh.Target{}, err
	}
	expected := expectedHostKey(secret, host)
	target.Trusted = expected.trusted
	if err := pin(&target, expected, secret); err != nil {
		return ssh.Target{}, err
	}
	for i, jump := range host.Spec.JumpHosts {
		hop := ssh.Target{Address: jump.Address, Port: int(jump.Port), User: jump.User}
		if err := r.jumpHost(ctx, host, jump.SSHKeySecretRef.Name, &hop); err != nil {
			// Nothing was asked of the machine, so nothing is held against it.
			found := fault.Of(err)
			return ssh.Target{}, fault.New(found.Blame, found.Reason, found.Err, "%s: %s", ssh.JumpName(i, len(host.Spec.JumpHosts), hop), found.Message).BeforeMachine()
		}
		target.Jumps = append(target.Jumps, hop)
	}
	return target, nil
}

// jumpHost fills in how to log in to one jump host. Its Secret alone says which host keys are good: there is no status of a jump host
// to remember one in, and one that is seen first through a host that was listed a moment ago proves nothing.
func (r *Resolver) jumpHost(ctx context.Context, host *v1beta1.SSHHost, secretName string, hop *ssh.Target) error {
	secret, err := r.login(ctx, host, secretName, hop)
	if err != nil {
		return err
	}
	return pin(hop, expectation{pins: secret.Data[KnownHostEntry]}, secret)
}

// login fills in user and key from one Secret in the host's namespace.
func (r *Resolver) login(ctx context.Context, host *v1beta1.SSHHost, secretName string, target *ssh.Target) (*corev1.Secret, error) {
	if target.Port == 0 {
		target.Port = 22
	}
	if target.User == "" {
		target.User = "root"
	}
	key := types.NamespacedName{Namespace: host.Namespace, Name: secretName}
	secret := &corev1.Secret{}
	if err := r.secrets.Get(ctx, key, secret); err != nil {
		if !apierrors.IsNotFound(err) {
			return nil, fault.New(fault.Cluster, ReasonSecretUnreadable, err, "reading Secret %s of SSHHost %s", key, host.Name)
		}
		r.forget(key)
		return nil, fault.New(fault.Configuration, ReasonSecretNotFound, nil,
			"Secret %s does not exist: create it with entry %s, or correct the sshKeySecretRef in SSHHost %s", key, PrivateKeyEntry, host.Name)
	}
	parsed := r.parsed(key, secret)
	if parsed.err != nil {
		return nil, parsed.err
	}
	if !parsed.certificate.IsZero() {
		if err := parsed.certificate.Check(target.User, r.Clock.Now()); err != nil {
			return nil, within(err, ReasonCertificateInvalid, fmt.Sprintf("entry %s of Secret %s", CertificateEntry, key))
		}
	}
	target.Key = parsed.signer
	return secret, nil
}

// pin fills in which host keys are good.
func pin(target *ssh.Target, expected expectation, secret *corev1.Secret) (err error) {
	place := func(entry string) string {
		return fmt.Sprintf("entry %s of Secret %s/%s", entry, secret.Namespace, secret.Name)
	}
	if len(bytes.TrimSpace(expected.pins)) > 0 {
		if target.Pins, err = ssh.ParsePins(expected.pins, target.Address, target.Port); err != nil {
			return within(err, ReasonKnownHostInvalid, place(KnownHostEntry))
		}
	}
	if authorities := secret.Data[HostCAEntry]; len(bytes.TrimSpace(authorities)) > 0 {
		if target.Pins, err = target.Pins.WithAuthorities(authorities, target.Address, target.Port); err != nil {
			return within(err, ReasonHostCAInvalid, place(HostCAEntry))
		}
	}
	return nil
}

func (r *Resolver) parsed(key types.NamespacedName, secret *corev1.Secret) *parsedKey {
	r.mu.Lock()
	parsed := r.keys[key]
	if parsed == nil || parsed.uid != secret.UID || parsed.version != secret.ResourceVersion {
		parsed = &parsedKey{uid: secret.UID, version: secret.ResourceVersion, expires: certificateExpiry(secret.Data[CertificateEntry])}
		r.keys[key] = parsed
	}
	r.mu.Unlock()

	parsed.once.Do(func() {
		pem := secret.Data[PrivateKeyEntry]
		if len(pem) == 0 {
			parsed.err = fault.New(fault.Configuration, ReasonSecretInvalid, nil,
				"Secret %s has no entry %s: add the PEM of the login key", key, PrivateKeyEntry)
			return
		}
		if parsed.signer, parsed.err = ssh.ParseKey(pem, secret.Data[PassphraseEntry]); parsed.err != nil {
			parsed.err = within(parsed.err, ReasonSecretInvalid, fmt.Sprintf("entry %s of Secret %s", PrivateKeyEntry, key))
			return
		}
		entry := secret.Data[CertificateEntry]
		if len(bytes.TrimSpace(entry)) == 0 {
			return
		}
		if parsed.certificate, parsed.err = ssh.ParseCertificate(entry); parsed.err == nil {
			parsed.signer, parsed.err = parsed.signer.WithCertificate(parsed.certificate)
		}
		if parsed.err != nil {
			parsed.err = within(parsed.err, ReasonCertificateInvalid, fmt.Sprintf("entry %s of Secret %s", CertificateEntry, key))
		}
	})
	return parsed
}

func (r *Resolver) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, key)
}

// within names the place of a parse error. Party and reason stay those of the parser; a plain error is the person's who wrote it.
func within(err error, reason, place string) error {
	found := fault.Of(err)
	if found.Blame != fault.Configuration {
		return fault.New(fault.Configuration, reason, err, "%s cannot be used", place)
	}
	placed := fault.New(found.Blame, found.Reason, found.Err, "%s: %s", place, found.Message)
	placed.Before = found.Before
	return placed
}
