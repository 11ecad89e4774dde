// Package credentials says how to log in to a machine, and which host key to expect there: it turns an SSHHost into an ssh.Target.
// The login key and the pinned host keys come from the Secret that the host names; where the Secret pins nothing, the key that the
// status remembers is expected, or the one that a person quoted in an annotation. The package writes nothing and dials nothing.
//
// Key bytes and passphrases stay in here: the parsed signer is kept, once per version of the Secret, and no error carries them.
package credentials

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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
)

// Reasons of the faults that Target returns, besides those of ssh.ParseKey and ssh.ParsePins.
const (
	ReasonSecretNotFound      = "SSHKeySecretNotFound"
	ReasonSecretInvalid       = "SSHKeySecretInvalid"
	ReasonSecretUnreadable    = "SSHKeySecretUnreadable"
	ReasonKnownHostInvalid    = "KnownHostInvalid"
	ReasonExecModeUnsupported = "ExecModeUnsupported"
)

// Resolver resolves SSHHosts to Targets. It is safe for concurrent use.
type Resolver struct {
	secrets client.Reader

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

	once   sync.Once
	signer ssh.Signer
	err    error
}

// NewResolver makes a Resolver that reads Secrets through a reader which can see the pool namespace, best a cache of it.
func NewResolver(secrets client.Reader) *Resolver {
	return &Resolver{secrets: secrets, keys: map[types.NamespacedName]*parsedKey{}}
}

// Target says how to reach a machine. Errors are *fault.Error: Configuration when a person must edit the host or its Secret, Cluster
// when the Secret could not be read this time.
func (r *Resolver) Target(ctx context.Context, host *v1beta1.SSHHost) (ssh.Target, error) {
	if host.Spec.ExecMode == v1beta1.ExecModeVerified {
		// Sending an unsigned script to a machine whose owner asked for signed ones would be a silent downgrade.
		return ssh.Target{}, fault.New(fault.Configuration, ReasonExecModeUnsupported, nil,
			"SSHHost %s asks for execMode Verified, which this version does not speak: use Raw, or keep the host in maintenance", host.Name)
	}
	key := types.NamespacedName{Namespace: host.Namespace, Name: host.Spec.SSHKeySecretRef.Name}
	secret := &corev1.Secret{}
	if err := r.secrets.Get(ctx, key, secret); err != nil {
		if !apierrors.IsNotFound(err) {
			return ssh.Target{}, fault.New(fault.Cluster, ReasonSecretUnreadable, err, "reading Secret %s of SSHHost %s", key, host.Name)
		}
		r.forget(key)
		return ssh.Target{}, fault.New(fault.Configuration, ReasonSecretNotFound, nil,
			"Secret %s does not exist: create it with entry %s, or correct spec.sshKeySecretRef of SSHHost %s", key, PrivateKeyEntry, host.Name)
	}
	signer, err := r.signer(key, secret)
	if err != nil {
		return ssh.Target{}, err
	}
	target := ssh.Target{Address: host.Spec.Address, Port: int(host.Spec.Port), User: host.Spec.User, Key: signer}
	if target.Port == 0 {
		target.Port = 22
	}
	if target.User == "" {
		target.User = "root"
	}
	expected := expectedHostKey(secret.Data[KnownHostEntry], host)
	target.Trusted = expected.trusted
	if len(expected.pins) > 0 {
		if target.Pins, err = ssh.ParsePins(expected.pins, target.Address, target.Port); err != nil {
			return ssh.Target{}, within(err, ReasonKnownHostInvalid, fmt.Sprintf("entry %s of Secret %s", KnownHostEntry, key))
		}
	}
	return target, nil
}

func (r *Resolver) signer(key types.NamespacedName, secret *corev1.Secret) (ssh.Signer, error) {
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
		var err error
		if parsed.signer, err = ssh.ParseKey(pem, secret.Data[PassphraseEntry]); err != nil {
			parsed.err = within(err, ReasonSecretInvalid, fmt.Sprintf("entry %s of Secret %s", PrivateKeyEntry, key))
		}
	})
	return parsed.signer, parsed.err
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
	return fault.New(found.Blame, found.Reason, found.Err, "%s: %s", place, found.Message)
}
