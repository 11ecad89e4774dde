package docs

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"
)

var (
	// fenced is a block, maybe in a list, and its mark: commands are marked sh, or not at all.
	fenced     = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	resource   = regexp.MustCompile(`\bkubectl (?:-n \S+ |--namespace \S+ )?(?:get|describe|delete|wait|annotate|label|edit|patch) ([a-z][a-z.,]*)`)
	makeTarget = regexp.MustCompile("(?m)(?:^|`|\\$ )make ([a-z][a-z0-9-]*)")
	chartValue = regexp.MustCompile(`--set(?:-string)?[ =]([A-Za-z][A-Za-z0-9.]*)=`)
	drawn      = regexp.MustCompile(`[│─▶◀┌└]`)
)

// What people copy parses, and names what exists: targets of the Makefile, kinds of the API, values of the chart.
func TestCommandsNameWhatExists(t *testing.T) {
	makefile := read(t, filepath.Join(root, "Makefile"))
	known := resources(t)
	values := map[string]any{} // of both charts: they have no key in common but global
	for _, name := range []string{"karpenter-provider-ssh", "karpenter-provider-ssh-crd"} {
		if err := yaml.Unmarshal([]byte(read(t, filepath.Join(root, "charts", name, "values.yaml"))), &values); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range markdown(t) {
		text := read(t, file)
		for _, match := range fenced.FindAllStringSubmatch(text, -1) {
			if match[1] != "" && match[1] != "sh" || drawn.MatchString(match[2]) {
				continue // no commands, or a drawing
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-n")
			cmd.Stdin = strings.NewReader(match[2])
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: not a script: %s\n%s", file, out, match[2])
			}
		}
		for _, match := range resource.FindAllStringSubmatch(text, -1) {
			for name := range strings.SplitSeq(match[1], ",") {
				if !known[name] {
					t.Errorf("%s: %q: no kind %q", file, match[0], name)
				}
			}
		}
		for _, match := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+match[1]+": ") {
				t.Errorf("%s says `make %s`; the Makefile has no such target", file, match[1])
			}
		}
		for _, match := range chartValue.FindAllStringSubmatch(text, -1) {
			if !valueExists(values, strings.Split(match[1], ".")) {
				t.Errorf("%s: the chart has no value %s", file, match[1])
			}
		}
	}
}

// valueExists follows a path through the chart's default values; below an empty map, and in labels of nodes, anything may be set.
func valueExists(values map[string]any, path []string) bool {
	value, found := values[path[0]]
	if !found || len(path) == 1 || path[0] == "nodeSelector" {
		return found
	}
	below, isMap := value.(map[string]any)
	return isMap && (len(below) == 0 || valueExists(below, path[1:]))
}

// resources are the names by which kubectl knows kinds: Kubernetes' own that the documentation needs, karpenter's and this project's.
func resources(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, name := range []string{
		"pod", "node", "namespace", "event", "secret", "service", "configmap", "deployment", "lease", "csr", "crd", "clusterrolebinding", "clusterrole",
		"validatingadmissionpolicy", "controllerrevision", "poddisruptionbudget", "networkpolicy",
	} {
		known[name], known[name+"s"] = true, true
	}
	known["validatingadmissionpolicies"] = true
	for _, crd := range karpapis.CRDs {
		known[crd.Spec.Names.Plural], known[crd.Spec.Names.Singular] = true, true
	}
	files, err := filepath.Glob(filepath.Join(root, "charts", "karpenter-provider-ssh", "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var crd struct {
			Spec struct {
				Names struct {
					Plural, Singular string
					ShortNames       []string
				}
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, file)), &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, name := range slices.Concat([]string{crd.Spec.Names.Plural, crd.Spec.Names.Singular}, crd.Spec.Names.ShortNames) {
			known[name] = true
		}
	}
	return known
}

// A newcomer finds every page from the index of the documentation, or from a page that it links.
func TestEveryPageIsTwoClicksAway(t *testing.T) {
	reached := map[string]bool{}
	follow := func(file string) (next []string) {
		for _, match := range link.FindAllStringSubmatch(withoutCode(read(t, file)), -1) {
			path, _, _ := strings.Cut(match[1], "#")
			if !strings.HasSuffix(path, ".md") || strings.Contains(path, "://") {
				continue
			}
			linked := filepath.Join(filepath.Dir(file), path)
			if !reached[linked] {
				reached[linked] = true
				next = append(next, linked)
			}
		}
		return next
	}
	for _, page := range follow(filepath.Join(root, "README.md")) {
		follow(page)
	}
	for _, file := range markdown(t) {
		if strings.HasPrefix(file, filepath.Join(root, "docs")+string(filepath.Separator)) && !reached[file] {
			t.Errorf("%s is more than two clicks away from README.md", file)
		}
	}
}
