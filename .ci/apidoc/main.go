// Command apidoc prints the API reference, in Markdown, from the CRDs that controller-gen makes of the types. Arguments are their files.
package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const introduction = `# API reference

Generated from the CRDs by ` + "`make generate`" + `. The same text is in the cluster: ` + "`kubectl explain sshhost.spec`" + `. Examples: [SSHHost](../examples/host.yaml),
[SSHNodeClass](../examples/nodeclass.yaml), [SSHJoinProfile](../examples/profiles/tls-bootstrap.yaml). What the objects are for: [concepts](concepts.md).

A name in bold is required, once what it is in is there.
`

func main() {
	fmt.Print(introduction)
	for _, file := range os.Args[1:] {
		if err := document(os.Stdout, file); err != nil {
			fmt.Fprintf(os.Stderr, "apidoc: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func document(out io.Writer, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(raw, crd); err != nil {
		return err
	}
	names := crd.Spec.Names
	for _, version := range crd.Spec.Versions {
		schema := version.Schema.OpenAPIV3Schema
		fmt.Fprintf(out, "\n## %s\n\n%s\n\n`%s/%s`, %s, `kubectl get %s`", names.Kind, plain(schema.Description), crd.Spec.Group, version.Name,
			strings.ToLower(string(crd.Spec.Scope)), names.Plural)
		for _, short := range names.ShortNames {
			fmt.Fprintf(out, " or `%s`", short)
		}
		fmt.Fprintln(out)
		for _, part := range []string{"spec", "status"} {
			property, found := schema.Properties[part]
			if !found {
				continue
			}
			fmt.Fprintf(out, "\n### %s.%s\n\n%s\n\n| Field | Type | Meaning |\n|---|---|---|\n", names.Kind, part, meaning(&property))
			rows(out, "", &property)
		}
	}
	return nil
}

// rows prints the fields of an object, those of objects in it after them.
func rows(out io.Writer, prefix string, object *apiextensionsv1.JSONSchemaProps) {
	fields := slices.SortedFunc(maps.Keys(object.Properties), func(a, b string) int {
		return cmp.Or(-boolCompare(slices.Contains(object.Required, a), slices.Contains(object.Required, b)), cmp.Compare(a, b))
	})
	for _, name := range fields {
		field := object.Properties[name]
		path := prefix + name
		shown := "`" + path + "`"
		if slices.Contains(object.Required, name) {
			shown = "**" + shown + "**"
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", shown, kind(&field), strings.ReplaceAll(meaning(&field), "|", `\|`))
		inner, below := &field, path+"."
		if field.Items != nil && field.Items.Schema != nil {
			inner, below = field.Items.Schema, path+"[]."
		}
		if !known(name, inner) {
			rows(out, below, inner)
		}
	}
}

// known objects are Kubernetes' own, which people know or look up there.
func known(name string, object *apiextensionsv1.JSONSchemaProps) bool {
	_, selector := object.Properties["matchExpressions"]
	return selector || name == "conditions"
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func kind(s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.Items != nil && s.Items.Schema != nil:
		return "list of " + kind(s.Items.Schema)
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		return "map of " + kind(s.AdditionalProperties.Schema)
	case s.XIntOrString:
		return "quantity"
	case s.Format != "":
		return s.Format
	}
	return s.Type
}

// meaning is the description with what the schema checks.
func meaning(s *apiextensionsv1.JSONSchemaProps) string {
	sentences := []string{plain(s.Description)}
	if len(s.Enum) > 0 {
		var values []string
		for _, value := range s.Enum {
			values = append(values, "`"+unquoted(value.Raw)+"`")
		}
		sentences = append(sentences, "One of "+strings.Join(values, ", ")+".")
	}
	if s.Pattern != "" {
		sentences = append(sentences, "Matches `"+s.Pattern+"`.")
	}
	for _, rule := range s.XValidations {
		if rule.Message != "" {
			sentences = append(sentences, "Checked: "+strings.TrimSuffix(rule.Message, ".")+".")
		}
	}
	if s.Default != nil && !strings.Contains(s.Description, "Default") && s.Type != "object" {
		if value := unquoted(s.Default.Raw); value != "" {
			sentences = append(sentences, "Default: `"+value+"`.")
		}
	}
	return strings.TrimSpace(strings.Join(sentences, " "))
}

func unquoted(raw []byte) string {
	if text, err := strconv.Unquote(string(raw)); err == nil {
		return text
	}
	return string(raw)
}

// plain is a description on one line.
func plain(text string) string { return strings.Join(strings.Fields(text), " ") }
