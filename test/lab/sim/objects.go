package sim

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

//go:embed profile.yaml
var profileYAML []byte

// Profile is the join profile of simulated machines.
func Profile() *v1beta1.SSHJoinProfile {
	profile := &v1beta1.SSHJoinProfile{}
	if err := yaml.UnmarshalStrict(profileYAML, profile); err != nil {
		panic("the embedded profile is a constant: " + err.Error())
	}
	return profile
}

// LoginSecret is the Secret that opens every machine of the fleet, and pins the host keys of those there are, if asked to.
func (f *Fleet) LoginSecret(namespace, name string, pinned bool) *corev1.Secret {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"privateKey": bytes.Clone(f.loginKeyPEM)}, // the caller may do with it as it likes
	}
	if pinned {
		var lines strings.Builder
		for _, m := range f.Machines() {
			key := m.HostKey()
			fmt.Fprintf(&lines, "[%s]:%d %s %s\n", m.Address(), m.Port(), key.Type(), base64.StdEncoding.EncodeToString(key.Marshal()))
		}
		secret.Data["knownHost"] = []byte(lines.String())
	}
	return secret
}

// Host is the SSHHost that describes the machine.
func (m *Machine) Host(namespace, loginSecret string) *v1beta1.SSHHost {
	return &v1beta1.SSHHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: m.Name()},
		Spec: v1beta1.SSHHostSpec{
			Address: m.Address(), Port: int32(m.Port()), User: "root",
			NodeAddress:     m.NodeIP(),
			SSHKeySecretRef: v1beta1.SecretReference{Name: loginSecret},
			Capacity:        m.spec.capacity(),
		},
	}
}

// LoginSecretName is the Secret that Register makes.
const LoginSecretName = "simulated-login"

// Register creates, in a namespace that exists, the login Secret (host keys pinned), an SSHHost for every machine, and the join
// profile, unless they exist.
func (f *Fleet) Register(ctx context.Context, c client.Client, namespace string) error {
	objects := []client.Object{Profile(), f.LoginSecret(namespace, LoginSecretName, true)}
	for _, m := range f.Machines() {
		objects = append(objects, m.Host(namespace, LoginSecretName))
	}
	for _, object := range objects {
		if err := c.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}
