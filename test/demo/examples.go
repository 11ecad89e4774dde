package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
	"github.com/kpssh/karpenter-provider-ssh/test/lab/sim"
)

// applyExamples applies examples/ as a user would, but for what cannot be the same here: the hosts' names and addresses, the
// scripts, which are those of simulated machines, and the pace of scaling down.
func (s *stage) applyExamples(ctx context.Context, machines int) error {
	hosts, err := example[v1beta1.SSHHost]("host.yaml")
	if err != nil {
		return err
	}
	classes, err := example[v1beta1.SSHNodeClass]("nodeclass.yaml")
	if err != nil {
		return err
	}
	for i := range machines {
		if err := s.addMachine(ctx, &hosts[i%len(hosts)], i); err != nil {
			return err
		}
	}
	// Pins the host keys of all machines there are by now.
	if err := s.client.Create(ctx, s.fleet.LoginSecret(poolNamespace, hosts[0].Spec.SSHKeySecretRef.Name, true)); err != nil {
		return err
	}
	profile := sim.Profile()
	profile.Name = classes[0].Spec.JoinProfileRef.Name
	if err := s.client.Create(ctx, profile); err != nil {
		return err
	}
	for _, file := range []string{"bootstrap-rbac.yaml", "nodeclass.yaml", "nodepool.yaml"} {
		documents, err := readExample(file)
		if err != nil {
			return err
		}
		for i := range documents {
			if file == "nodepool.yaml" {
				if err := hasten(&documents[i]); err != nil {
					return err
				}
			}
			if err := s.client.Create(ctx, &documents[i]); err != nil {
				return fmt.Errorf("examples/%s: %w", file, err)
			}
		}
	}
	fmt.Printf("demo: applied examples/{host,bootstrap-rbac,nodeclass,nodepool}.yaml for %d simulated machines; to be quick, the NodePool gives up idle nodes after 5s and all at once\n", machines)
	return nil
}

// hasten shortens what would make the audience wait: karpenter's default is one node in ten at a time.
func hasten(pool *unstructured.Unstructured) error {
	if err := unstructured.SetNestedField(pool.Object, "5s", "spec", "disruption", "consolidateAfter"); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(pool.Object, []any{map[string]any{"nodes": "100%"}}, "spec", "disruption", "budgets")
}

// addMachine makes a machine as the example describes it, and the SSHHost for it.
func (s *stage) addMachine(ctx context.Context, example *v1beta1.SSHHost, index int) error {
	added, err := s.fleet.Add(sim.Spec{
		Name:   fmt.Sprintf("m%02d", index+1),
		CPU:    int(example.Spec.Capacity.Cpu().Value()),
		Memory: example.Spec.Capacity[corev1.ResourceMemory],
		// The machine has what its SSHHost promises.
		Resources: example.Spec.Capacity,
	})
	if err != nil {
		return err
	}
	machine := added[0]
	host := example.DeepCopy()
	host.Name = machine.Name()
	host.Spec.Address, host.Spec.Port, host.Spec.NodeAddress = machine.Address(), int32(machine.Port()), machine.NodeIP()
	if err := s.client.Create(ctx, host); err != nil {
		return fmt.Errorf("examples/host.yaml, as %s: %w", host.Name, err)
	}
	return nil
}

func readExample(file string) ([]unstructured.Unstructured, error) {
	root, err := lab.Root()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(root, "examples", file))
	if err != nil {
		return nil, err
	}
	var documents []unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var document unstructured.Unstructured
		if err := decoder.Decode(&document.Object); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, fmt.Errorf("examples/%s: %w", file, err)
		}
		if len(document.Object) > 0 {
			documents = append(documents, document)
		}
	}
}

// example reads a file of objects of one kind.
func example[T any](file string) ([]T, error) {
	documents, err := readExample(file)
	if err != nil {
		return nil, err
	}
	objects := make([]T, len(documents))
	for i := range documents {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(documents[i].Object, &objects[i], true); err != nil {
			return nil, fmt.Errorf("examples/%s: %w", file, err)
		}
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("examples/%s is empty", file)
	}
	return objects, nil
}
