package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// documents are a file's YAML documents, with their comments and their order.
type documents []*yaml.Node

// read reads a file, or standard input for "-".
func (s streams) read(path string) (documents, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(s.in)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	var docs documents
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		doc := &yaml.Node{}
		switch err := decoder.Decode(doc); {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		docs = append(docs, doc)
	}
}

// profiles are those documents that are SSHJoinProfiles, decoded, beside their nodes.
func (d documents) profiles() ([]document, error) {
	var found []document
	for _, doc := range d {
		if len(doc.Content) == 0 || text(doc.Content[0], "kind") != "SSHJoinProfile" || !strings.HasPrefix(text(doc.Content[0], "apiVersion"), v1beta1.Group+"/") {
			continue
		}
		one, err := decode(doc.Content[0])
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	if len(found) == 0 {
		return nil, errors.New("there is no SSHJoinProfile in it")
	}
	return found, nil
}

// document is an SSHJoinProfile in a file.
type document struct {
	node    *yaml.Node
	profile *v1beta1.SSHJoinProfile
}

func decode(node *yaml.Node) (document, error) {
	encoded, err := yaml.Marshal(node)
	if err != nil {
		return document{}, err
	}
	profile := &v1beta1.SSHJoinProfile{}
	if err := kyaml.UnmarshalStrict(encoded, profile); err != nil {
		return document{}, fmt.Errorf("SSHJoinProfile %s: %w", text(node, "metadata", "name"), err)
	}
	if profile.Name == "" {
		return document{}, errors.New("an SSHJoinProfile has no metadata.name")
	}
	if profile.Spec.Version == "" {
		profile.Spec.Version = "1" // the API server's default
	}
	return document{node: node, profile: profile}, nil
}

// set puts a text at a path of the document, in the form of a block.
func (d document) set(value string, path ...string) {
	node := d.node
	for index, key := range path {
		child := child(node, key)
		if child == nil {
			child = &yaml.Node{Kind: yaml.MappingNode}
			node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, child)
		}
		if index == len(path)-1 {
			*child = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: value}
		}
		node = child
	}
}

// drop takes a path out of the document.
func (d document) drop(path ...string) {
	node := d.node
	for index, key := range path {
		if node == nil || node.Kind != yaml.MappingNode {
			return
		}
		if index < len(path)-1 {
			node = child(node, key)
			continue
		}
		for at := 0; at+1 < len(node.Content); at += 2 {
			if node.Content[at].Value == key {
				node.Content = append(node.Content[:at], node.Content[at+2:]...)
				return
			}
		}
	}
}

// write writes documents as they were read, but for what was set.
func (d documents) write(to io.Writer) error {
	encoder := yaml.NewEncoder(to)
	encoder.SetIndent(2)
	for _, doc := range d {
		if err := encoder.Encode(doc); err != nil {
			return err
		}
	}
	return encoder.Close()
}

func child(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for at := 0; at+1 < len(node.Content); at += 2 {
		if node.Content[at].Value == key {
			return node.Content[at+1]
		}
	}
	return nil
}

func text(node *yaml.Node, path ...string) string {
	for _, key := range path {
		node = child(node, key)
	}
	if node == nil || node.Kind != yaml.ScalarNode {
		return ""
	}
	return node.Value
}
