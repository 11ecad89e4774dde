package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// document is one of a file's documents, with the separator before it. Joined, a file's documents are the file.
type document struct {
	text string
	// profile is nil for all other kinds. Its version is set, as the API server sets it.
	profile *v1beta1.SSHJoinProfile
}

// parse splits a file into its documents. It is an error if none is an SSHJoinProfile.
func parse(content []byte) ([]document, error) {
	var all []document
	found := false
	for _, text := range split(string(content)) {
		doc := document{text: text}
		if err := doc.decode(); err != nil {
			return nil, fmt.Errorf("document %d: %w", len(all)+1, err)
		}
		found = found || doc.profile != nil
		all = append(all, doc)
	}
	if !found {
		return nil, errors.New("there is no SSHJoinProfile in the file")
	}
	return all, nil
}

// split cuts before each line that begins a document. Nothing that is inside one can stand at the beginning of a line and look so.
func split(text string) []string {
	parts := []string{""}
	for line := range strings.Lines(text) {
		if rest, dashes := strings.CutPrefix(line, "---"); dashes && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			parts = append(parts, "")
		}
		parts[len(parts)-1] += line
	}
	return parts
}

func (d *document) decode() error {
	var kind struct{ APIVersion, Kind string }
	if err := sigsyaml.Unmarshal([]byte(d.text), &kind); err != nil {
		return err
	}
	if kind.Kind != "SSHJoinProfile" || kind.APIVersion != v1beta1.GroupVersion.String() {
		return nil
	}
	d.profile = &v1beta1.SSHJoinProfile{}
	if err := sigsyaml.UnmarshalStrict([]byte(d.text), d.profile); err != nil {
		return err
	}
	if d.profile.Name == "" {
		return errors.New("the SSHJoinProfile has no name")
	}
	if d.profile.Spec.Version == "" {
		d.profile.Spec.Version = "1"
	}
	return nil
}

// set puts a text at a path of mappings, as a block of lines. The text ends with one newline. Everything else stays as it is, byte for byte.
func (d *document) set(path []string, text string) error {
	edited, err := setText(d.text, path, text)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(path, "."), err)
	}
	d.text = edited
	return nil
}

func setText(doc string, path []string, text string) (string, error) {
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(doc), &root); err != nil {
		return "", err
	}
	lines := slices.Collect(strings.Lines(doc))
	if last := len(lines) - 1; !strings.HasSuffix(lines[last], "\n") {
		lines[last] += "\n"
	}
	mapping, start, end := root.Content[0], 0, endOf(lines)
	for depth, key := range path {
		if mapping.Kind != yaml.MappingNode || mapping.Style&yaml.FlowStyle != 0 || len(mapping.Content) == 0 {
			return "", errors.New("what is around it is not written in lines of its own (key: value), and only that can be edited")
		}
		indent := mapping.Content[0].Column - 1
		var value *yaml.Node
		value, start, end = entry(mapping, key, lines, end)
		if depth == len(path)-1 || value == nil || value.Tag == "!!null" || value.Kind == yaml.MappingNode && len(value.Content) == 0 {
			return strings.Join(slices.Concat(lines[:start], block(path[depth:], text, indent), lines[end:]), ""), nil
		}
		mapping = value
	}
	return "", errors.New("no path")
}

// entry finds a key's value in a mapping that ends before line end, and the lines that it takes. Without the key, they are none, at the mapping's end.
func entry(mapping *yaml.Node, key string, lines []string, end int) (value *yaml.Node, from, to int) {
	indent := mapping.Content[0].Column - 1
	end = trim(lines, end, indent)
	for at := 0; at < len(mapping.Content); at += 2 {
		if mapping.Content[at].Value != key {
			continue
		}
		if at+2 < len(mapping.Content) {
			end = trim(lines, mapping.Content[at+2].Line-1, indent)
		}
		return mapping.Content[at+1], mapping.Content[at].Line - 1, end
	}
	return nil, end, end
}

// endOf is the line after a document's last; a document may end with a line of three dots.
func endOf(lines []string) int {
	for index, line := range lines {
		if strings.TrimRight(line, " \t\r\n") == "..." {
			return index
		}
	}
	return len(lines)
}

// trim takes from a mapping's end what does not belong to its last value: empty lines, and comments that are not deeper than the mapping's keys. Deeper
// ones may be a script's.
func trim(lines []string, end, indent int) int {
	for ; end > 0; end-- {
		bare := strings.TrimLeft(lines[end-1], " ")
		if strings.TrimSpace(bare) != "" && (!strings.HasPrefix(bare, "#") || len(lines[end-1])-len(bare) > indent) {
			break
		}
	}
	return end
}

// block writes nested keys, and the text as the last one's value.
func block(path []string, text string, indent int) []string {
	var lines []string
	for depth, key := range path {
		lines = append(lines, strings.Repeat(" ", indent+2*depth)+key+":\n")
	}
	lines[len(lines)-1] = strings.TrimSuffix(lines[len(lines)-1], "\n") + " |\n"
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Repeat(" ", indent+2*len(path))+line)
	}
	return lines
}

// sameBut tells whether two documents say the same, but for their signatures and manifests.
func sameBut(a, b string) bool {
	var both [2]map[string]any
	for index, text := range []string{a, b} {
		if err := sigsyaml.Unmarshal([]byte(text), &both[index]); err != nil {
			return false
		}
		if spec, ok := both[index]["spec"].(map[string]any); ok {
			delete(spec, "signatures")
			delete(spec, "manifests")
		}
	}
	return reflect.DeepEqual(both[0], both[1])
}

func join(documents []document) []byte {
	var b bytes.Buffer
	for _, doc := range documents {
		b.WriteString(doc.text)
	}
	return b.Bytes()
}
