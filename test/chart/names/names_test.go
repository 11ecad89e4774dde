// Package names tests that releases of the chart do not meet. It is a module of its own, which renders with helm's engine in its own process: so
// hundreds of releases cost seconds, and the project's module needs none of helm's dependencies.
package names

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// release is an installation with everything on that makes an object.
type release struct {
	name, namespace string
	instance        string
}

func (r release) String() string {
	return fmt.Sprintf("release %s in namespace %s, instance %q", r.name, r.namespace, r.instance)
}

const chartName = "karpenter-provider-ssh"

// H1, C5: any two releases in one cluster render disjoint objects, however alike their names are, and whatever instance they are given: two releases
// with the name of one instance are told so by the chart and by the lease, and not by helm's "invalid ownership metadata".
func TestTwoReleasesShareNoObject(t *testing.T) {
	loaded, err := loader.Load("../../../charts/" + chartName)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	pairs := known
	for range 400 {
		pairs = append(pairs, pair(random))
	}
	for _, p := range pairs {
		first, second := objects(t, loaded, p[0]), objects(t, loaded, p[1])
		if len(first) < 15 {
			t.Fatalf("%s renders only %v", p[0], first)
		}
		for _, object := range first {
			if slices.Contains(second, object) {
				t.Errorf("%s is rendered by\n  %s and\n  %s", object, p[0], p[1])
			}
		}
	}
}

// known are pairs that some way of making names gets wrong.
var known = [][2]release{
	{{"kpssh", "kp-a", "seg-a"}, {"kpssh", "kp-b", "seg-b"}},
	// Namespace and name joined by a dash are alike.
	{{"b-c", "a", "seg-a"}, {"c", "a-b", "seg-b"}},
	{{"c", "b-a", "default"}, {"a-c", "b", "default"}},
	// The chart's name is added to the first, and is in the second already.
	{{"x", "ns", "seg-a"}, {"x-" + chartName, "ns", "seg-b"}},
	{{chartName, "ns", "seg-a"}, {chartName + "-" + chartName, "ns", "seg-b"}},
	{{chartName + "-x", "ns", "seg-a"}, {chartName + "-x-" + chartName, "ns", "seg-b"}},
	// A part that is added to a name, such as that of the role for tokens.
	{{"x", "ns", "seg-a"}, {"x-tokens", "ns", "seg-b"}},
	// One instance name twice.
	{{"one", "ns", "default"}, {"two", "ns", "default"}},
	{{"kpssh", "kp-a", "seg-a"}, {"kpssh", "kp-b", "seg-a"}},
}

// pair makes two releases that are as alike as they can be: they differ in one place at least of namespace and name.
func pair(random *rand.Rand) [2]release {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	word := func(length int) string {
		const letters = "ab-1"
		for {
			var b strings.Builder
			for range length {
				b.WriteByte(letters[random.IntN(len(letters))])
			}
			if w := b.String(); !strings.HasPrefix(w, "-") && !strings.HasSuffix(w, "-") {
				return w
			}
		}
	}
	for {
		// 60 characters that share 55, short words of few letters, and the chart's name in all places.
		shared := word(55)
		name := func() string {
			switch random.IntN(4) {
			case 0:
				return shared + word(5)
			case 1:
				return word(1 + random.IntN(3))
			case 2:
				return pick(word(1)+"-", "") + chartName + pick("-"+word(1), "")
			default:
				return word(1) + "-" + word(1)
			}
		}
		namespace := func() string { return pick("a", "a-b", "b", "a-a", shared[:54]+"x"+word(5)) }
		r := [2]release{{name(), namespace(), pick("default", "seg-a")}, {name(), namespace(), pick("default", "seg-a", "seg-b")}}
		if r[0].name != r[1].name || r[0].namespace != r[1].namespace {
			return r
		}
	}
}

// objects lists "kind namespace/name" of everything that the release makes.
func objects(t *testing.T, c *chart.Chart, r release) []string {
	t.Helper()
	on := map[string]any{"enabled": true}
	create := map[string]any{"create": true}
	values, err := chartutil.ToRenderValues(c, map[string]any{
		"instance": map[string]any{"name": r.instance}, "poolNamespace": "pool", "replicas": 2,
		"bootstrapRBAC": create, "podDisruptionBudget": on, "networkPolicy": on, "serviceMonitor": on, "prometheusRule": on, "grafanaDashboard": on,
	}, chartutil.ReleaseOptions{Name: r.name, Namespace: r.namespace, IsInstall: true}, capabilities())
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	var found []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(path, "NOTES.txt") {
			continue
		}
		for document := range strings.SplitSeq("\n"+files[path], "\n---") {
			var object struct {
				Kind     string
				Metadata struct{ Namespace, Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %s: %v", r, path, err)
			}
			if object.Kind != "" {
				found = append(found, fmt.Sprintf("%s %s/%s", object.Kind, object.Metadata.Namespace, object.Metadata.Name))
			}
		}
	}
	slices.Sort(found)
	if unique := len(slices.Compact(slices.Clone(found))); unique != len(found) {
		t.Errorf("%s has an object twice: %v", r, found)
	}
	return found
}

func capabilities() *chartutil.Capabilities {
	c := chartutil.DefaultCapabilities.Copy()
	c.KubeVersion = chartutil.KubeVersion{Version: "v1.35.4", Major: "1", Minor: "35"}
	return c
}
