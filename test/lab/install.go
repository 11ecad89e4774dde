package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"
)

// CRDs are this project's, from the working tree, and karpenter's, from its module.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	own, err := OwnCRDs()
	return slices.Concat(karpapis.CRDs, own), err
}

// OwnCRDs are this project's, from the working tree.
func OwnCRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	return ReadCRDs(filepath.Join(root, "charts", "karpenter-provider-ssh", "crds"))
}

// ReadCRDs are those of a directory, one in each YAML file.
func ReadCRDs(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no CRDs in %s: run `make generate` if they are this project's", dir)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// InstallCRDs creates CRDs, those of CRDs if none is given, and returns when all are served.
func (cp *ControlPlane) InstallCRDs(ctx context.Context, crds ...*apiextensionsv1.CustomResourceDefinition) (err error) {
	if len(crds) == 0 {
		if crds, err = CRDs(); err != nil {
			return err
		}
	}
	client, err := apiextensions.NewForConfig(cp.admin)
	if err != nil {
		return err
	}
	api := client.ApiextensionsV1().CustomResourceDefinitions()
	group, ctx := errgroup.WithContext(ctx)
	for _, crd := range crds {
		group.Go(func() error {
			if _, err := api.Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create CRD %s: %w", crd.Name, err)
			}
			err := wait.PollUntilContextTimeout(ctx, pollInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
				current, err := api.Get(ctx, crd.Name, metav1.GetOptions{})
				return err == nil && established(current), err
			})
			if err != nil {
				return fmt.Errorf("CRD %s is not established: %w", crd.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensionsv1.Established {
			return condition.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

// bootstrapGroup is the group of bootstrap tokens; an instance may have one of its own below it.
const bootstrapGroup = "system:bootstrappers:kpssh"

// InstallBootstrap creates what a cluster needs for machines to join with bootstrap tokens of group system:bootstrappers:kpssh or
// system:bootstrappers:kpssh:<any of instances>: the RBAC that lets a token ask for a certificate and lets the certificate be
// approved and renewed, and ConfigMap kube-public/cluster-info.
func (cp *ControlPlane) InstallBootstrap(ctx context.Context, instances ...string) error {
	client, err := kubernetes.NewForConfig(cp.admin)
	if err != nil {
		return err
	}
	groups := []rbacv1.Subject{groupSubject(bootstrapGroup)}
	for _, instance := range instances {
		groups = append(groups, groupSubject(bootstrapGroup+":"+instance))
	}
	group, ctx := errgroup.WithContext(ctx)
	for name, binding := range map[string]struct {
		role     string
		subjects []rbacv1.Subject
	}{
		"kpssh:node-bootstrapper":          {"system:node-bootstrapper", groups},
		"kpssh:node-autoapprove-bootstrap": {"system:certificates.k8s.io:certificatesigningrequests:nodeclient", groups},
		"kpssh:node-autoapprove-renewal": {"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
			[]rbacv1.Subject{groupSubject("system:nodes")}},
	} {
		group.Go(func() error {
			desired := &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.role},
				Subjects:   binding.subjects,
			}
			api := client.RbacV1().ClusterRoleBindings()
			_, err := api.Create(ctx, desired, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				_, err = api.Update(ctx, desired, metav1.UpdateOptions{})
			}
			return err
		})
	}
	group.Go(func() error { return cp.PublishClusterInfo(ctx) })
	return group.Wait()
}

func groupSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

// PublishClusterInfo writes ConfigMap kube-public/cluster-info as kubeadm would: where the API server is and who signs its certificate.
func (cp *ControlPlane) PublishClusterInfo(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(cp.admin)
	if err != nil {
		return err
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"": {Server: cp.Endpoint, CertificateAuthorityData: cp.CA()}},
	})
	if err != nil {
		return err
	}
	// kube-apiserver creates the namespace itself, some time after it is ready.
	if err := EnsureNamespace(ctx, client, metav1.NamespacePublic); err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": string(kubeconfig)},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// EnsureNamespace creates a namespace unless it exists.
func EnsureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}
