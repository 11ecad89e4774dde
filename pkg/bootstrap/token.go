package bootstrap

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/pkg/fault"
	"github.com/kpssh/karpenter-provider-ssh/pkg/metrics"
)

const (
	// BaseGroup is the group of tokens of the default instance; other instances append :<instance>.
	BaseGroup = "system:bootstrappers:kpssh"
	// Lifetime of a token that nobody deletes.
	Lifetime = time.Hour
)

// Reasons of faults that have to do with tokens.
const (
	ReasonTokenForbidden = "TokenForbidden"
	ReasonTokenFailed    = "TokenFailed"
)

// Group is the group that an instance's tokens authenticate as.
func Group(instance string) string {
	if instance == "" || instance == v1beta1.DefaultInstance {
		return BaseGroup
	}
	return BaseGroup + ":" + instance
}

// NewTokenID is a random public half of a token: 6 characters. Record it where it survives a crash (SSHHost.status.bootstrapTokenID)
// before Mint, so that whoever comes after can delete the token without being able to list Secrets.
func NewTokenID() string {
	id, _ := generate()
	return id
}

// generate is a new token's public and secret half.
func generate() (id, secret string) {
	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		panic("bootstrap token: crypto/rand never fails: " + err.Error())
	}
	id, secret, _ = strings.Cut(token, ".")
	return id, secret
}

// Tokens makes and deletes one instance's bootstrap tokens. Errors are *fault.Error.
type Tokens struct {
	client   client.Client
	instance string
	clock    clock.PassiveClock
}

// NewTokens needs create and delete on Secrets in kube-system, and never reads one.
func NewTokens(c client.Client, instance string, clk clock.PassiveClock) *Tokens {
	return &Tokens{client: c, instance: instance, clock: clk}
}

// Mint makes the token of an id that has been recorded, for one NodeClaim, and returns <id>.<secret>. A token of that id that is
// left from an attempt before is replaced: its secret half died with the process that made it.
func (t *Tokens) Mint(ctx context.Context, id, nodeClaim string) (token string, err error) {
	defer func() { count("mint", err) }()
	if !bootstraputil.IsValidBootstrapTokenID(id) {
		return "", fault.New(fault.Cluster, ReasonTokenFailed, nil, "%q is no bootstrap token ID; a new one is made", id)
	}
	_, secret := generate()
	err = t.client.Create(ctx, t.object(id, secret, nodeClaim))
	if apierrors.IsAlreadyExists(err) {
		if err := t.Delete(ctx, id); err != nil {
			return "", err
		}
		err = t.client.Create(ctx, t.object(id, secret, nodeClaim))
	}
	if err != nil {
		return "", failed(err, "creating", id)
	}
	return bootstraputil.TokenFromIDAndSecret(id, secret), nil
}

// Delete revokes the token of an id. One that does not exist, or cannot (its ID is none), is no error.
func (t *Tokens) Delete(ctx context.Context, id string) error {
	if !bootstraputil.IsValidBootstrapTokenID(id) {
		return nil
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id),
	}}
	err := t.client.Delete(ctx, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	count("delete", err)
	if err != nil {
		return failed(err, "deleting", id)
	}
	return nil
}

func count(action string, err error) {
	outcome := metrics.Success
	if err != nil {
		outcome = metrics.Failure
	}
	metrics.TokenOperations.WithLabelValues(action, outcome).Inc()
}

func (t *Tokens) object(id, secret, nodeClaim string) *corev1.Secret {
	entries := map[string]string{
		bootstrapapi.BootstrapTokenIDKey:               id,
		bootstrapapi.BootstrapTokenSecretKey:           secret,
		bootstrapapi.BootstrapTokenExpirationKey:       t.clock.Now().Add(Lifetime).UTC().Format(time.RFC3339),
		bootstrapapi.BootstrapTokenUsageAuthentication: "true",
		bootstrapapi.BootstrapTokenUsageSigningKey:     "true",
		bootstrapapi.BootstrapTokenExtraGroupsKey:      Group(t.instance),
		bootstrapapi.BootstrapTokenDescriptionKey:      fmt.Sprintf("karpenter-provider-ssh, instance %s: NodeClaim %s", t.instance, nodeClaim),
	}
	data := make(map[string][]byte, len(entries))
	for key, value := range entries {
		data[key] = []byte(value)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem,
			Name:      bootstraputil.BootstrapTokenSecretName(id),
			Labels:    map[string]string{v1beta1.InstanceLabel: t.instance},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: data,
	}
}

// failed names the Secret by its ID only; the API server's errors do not repeat the data of Secrets.
func failed(err error, doing, id string) error {
	what := fmt.Sprintf("%s Secret %s/%s", doing, metav1.NamespaceSystem, bootstraputil.BootstrapTokenSecretName(id))
	if apierrors.IsForbidden(err) {
		return fault.New(fault.Configuration, ReasonTokenForbidden, err,
			"%s: grant the controller create and delete on secrets in namespace %s", what, metav1.NamespaceSystem)
	}
	return fault.New(fault.Cluster, ReasonTokenFailed, err, "%s failed; it is tried again", what)
}
