// Package rights compares what the chart grants with what controllers asked for, as an audit log has it: nothing may be missing, and nothing may be
// spare. It decides on data only; test/e2e feeds it.
package rights

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

// Right is one verb on one resource.
type Right struct {
	// Namespace it holds in. Empty: the whole cluster.
	Namespace       string
	Group, Resource string // a subresource is behind a slash
	// Name it holds for. Empty: every one.
	Name string
	Verb string
}

func (r Right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// Of lists the rights that the roles among a release's objects give, in the order of the chart.
func Of(objects []*unstructured.Unstructured) ([]Right, error) {
	var rights []Right
	for _, o := range objects {
		if kind := o.GetKind(); kind != "ClusterRole" && kind != "Role" {
			continue
		}
		role := &rbacv1.Role{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, role); err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		for _, rule := range role.Rules {
			rights = append(rights, each(o.GetNamespace(), rule)...)
		}
	}
	return rights, nil
}

func each(namespace string, rule rbacv1.PolicyRule) (rights []Right) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				for _, verb := range rule.Verbs {
					rights = append(rights, Right{Namespace: namespace, Group: group, Resource: resource, Name: name, Verb: verb})
				}
			}
		}
	}
	return rights
}

// allows tells whether the right covers a request.
func (r Right) allows(e lab.AuditEvent) bool {
	return r.Verb == e.Verb && r.about(e) && (r.Name == "" || r.Name == e.Object.Name)
}

func (r Right) about(e lab.AuditEvent) bool {
	return r.Group == e.Object.Group && r.Resource == resource(e) && (r.Namespace == "" || r.Namespace == e.Object.Namespace)
}

// usedBy tells whether a request needed the right. To list is to get everything, so that to get is nothing more. To watch is to list first: an API server
// that sends what there is with the watch is not asked to, but older ones are.
func (r Right) usedBy(e lab.AuditEvent) bool {
	switch {
	case r.allows(e):
		return true
	case r.Name != "" || !r.about(e):
		return false
	}
	return r.Verb == "get" && (e.Verb == "list" || e.Verb == "watch") || r.Verb == "list" && e.Verb == "watch"
}

func resource(e lab.AuditEvent) string {
	if e.Object.Subresource == "" {
		return e.Object.Resource
	}
	return e.Object.Resource + "/" + e.Object.Subresource
}

// Holder is an installation: what the chart gives it, and what it asked for.
type Holder struct {
	Name     string
	Rights   []Right // those of all holders are of one chart, and so in one order
	Requests []lab.AuditEvent
}

// Excuse says why nobody uses a right where this is checked, and what does.
type Excuse struct {
	Group, Resource string
	Verbs           []string
	Because         string
}

func (x Excuse) covers(r Right) bool {
	return x.Group == r.Group && x.Resource == r.Resource && slices.Contains(x.Verbs, r.Verb)
}

// Judgement is what is wrong. Empty lists are right.
type Judgement struct {
	// Missing are requests that no right covers; Refused, requests that the API server refused though one does: admission policies do so.
	Missing, Refused []string
	// Spare are rights that no holder used and no excuse covers, as the first holder has them.
	Spare []string
	// Stale are excuses for rights that there are not.
	Stale []string
}

// Judge compares. A right is used if any holder used it.
func Judge(holders []Holder, excuses []Excuse) Judgement {
	var j Judgement
	if len(holders) == 0 {
		return j
	}
	used := make([]bool, len(holders[0].Rights))
	for _, h := range holders {
		for _, e := range h.Requests {
			if everybodys(e) {
				continue
			}
			request := fmt.Sprintf("%s: %s", h.Name, Right{Namespace: e.Object.Namespace, Group: e.Object.Group, Resource: resource(e), Name: e.Object.Name, Verb: e.Verb})
			switch {
			case !slices.ContainsFunc(h.Rights, func(r Right) bool { return r.allows(e) }):
				j.Missing = append(j.Missing, request)
			case e.Response.Code == http.StatusForbidden:
				j.Refused = append(j.Refused, request)
			}
			for i, r := range h.Rights {
				used[i] = used[i] || r.usedBy(e)
			}
		}
	}
	for i, r := range holders[0].Rights {
		if !used[i] && !slices.ContainsFunc(excuses, func(x Excuse) bool { return x.covers(r) }) {
			j.Spare = append(j.Spare, r.String())
		}
	}
	j.Stale = Stale(holders[0].Rights, excuses)
	for _, list := range []*[]string{&j.Missing, &j.Refused} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return j
}

// Stale are the excuses, verb by verb, for rights that there are not.
func Stale(rights []Right, excuses []Excuse) (stale []string) {
	for _, x := range excuses {
		for _, verb := range x.Verbs {
			one := Excuse{Group: x.Group, Resource: x.Resource, Verbs: []string{verb}}
			if !slices.ContainsFunc(rights, one.covers) {
				stale = append(stale, Right{Group: x.Group, Resource: x.Resource, Verb: verb}.String())
			}
		}
	}
	return stale
}

// everybodys are questions that the API server answers to whoever is known to it: what there is, and who one is.
func everybodys(e lab.AuditEvent) bool {
	return e.Object.Resource == "" || strings.HasPrefix(e.Object.Resource, "self")
}
