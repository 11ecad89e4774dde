package rights

import (
	"slices"
	"testing"

	"github.com/kpssh/karpenter-provider-ssh/test/chart"
	"github.com/kpssh/karpenter-provider-ssh/test/lab"
)

func request(verb, group, resource, sub, namespace, name string, code int) lab.AuditEvent {
	var e lab.AuditEvent
	e.Verb, e.Response.Code = verb, code
	e.Object.Group, e.Object.Resource, e.Object.Subresource, e.Object.Namespace, e.Object.Name = group, resource, sub, namespace, name
	return e
}

// Issue: no missing right, no spare one. Each row is one request of the only holder, unless it says otherwise.
func TestRightsAreComparedWithRequests(t *testing.T) {
	nodes := Right{Resource: "nodes", Verb: "patch"}
	secrets := Right{Namespace: "pool-a", Resource: "secrets", Verb: "list"}
	lease := Right{Namespace: "kube-system", Group: "coordination.k8s.io", Resource: "leases", Name: "kpssh-a", Verb: "update"}
	status := Right{Group: "karpenter.sh", Resource: "nodepools/status", Verb: "patch"}
	read := Right{Resource: "pods", Verb: "get"}
	for _, c := range []struct {
		name    string
		right   Right
		request lab.AuditEvent
		excuses []Excuse
		want    Judgement
	}{
		{"used", nodes, request("patch", "", "nodes", "", "", "n", 200), nil, Judgement{}},
		{"spare: another verb", nodes, request("delete", "", "nodes", "", "", "n", 403), nil,
			Judgement{Missing: []string{"a: delete nodes n"}, Spare: []string{"patch nodes"}}},
		{"another group", nodes, request("patch", "x", "nodes", "", "", "n", 403), nil,
			Judgement{Missing: []string{"a: patch nodes.x n"}, Spare: []string{"patch nodes"}}},
		{"a subresource is another right", status, request("patch", "karpenter.sh", "nodepools", "", "", "p", 403), nil,
			Judgement{Missing: []string{"a: patch nodepools.karpenter.sh p"}, Spare: []string{"patch nodepools/status.karpenter.sh"}}},
		{"a subresource", status, request("patch", "karpenter.sh", "nodepools", "status", "", "p", 200), nil, Judgement{}},
		{"in its namespace", secrets, request("list", "", "secrets", "", "pool-a", "", 200), nil, Judgement{}},
		{"in another namespace", secrets, request("list", "", "secrets", "", "pool-b", "", 403), nil,
			Judgement{Missing: []string{"a: list secrets in pool-b"}, Spare: []string{"list secrets in pool-a"}}},
		{"of its name", lease, request("update", "coordination.k8s.io", "leases", "", "kube-system", "kpssh-a", 200), nil, Judgement{}},
		{"of another name", lease, request("update", "coordination.k8s.io", "leases", "", "kube-system", "kpssh-b", 403), nil,
			Judgement{Missing: []string{"a: update leases.coordination.k8s.io kpssh-b in kube-system"}, Spare: []string{"update leases.coordination.k8s.io kpssh-a in kube-system"}}},
		{"refused in spite of the right", nodes, request("patch", "", "nodes", "", "", "n", 403), nil, Judgement{Refused: []string{"a: patch nodes n"}}},
		{"an error that is no refusal", nodes, request("patch", "", "nodes", "", "", "n", 409), nil, Judgement{}},
		{"whoever lists need not get, but may not", read, request("list", "", "pods", "", "", "", 403), nil, Judgement{Missing: []string{"a: list pods"}}},
		{"whoever watches lists, from an older API server", Right{Resource: "pods", Verb: "list"}, request("watch", "", "pods", "", "", "", 403), nil, Judgement{Missing: []string{"a: watch pods"}}},
		{"whoever lists need not watch", Right{Resource: "pods", Verb: "watch"}, request("list", "", "pods", "", "", "", 403), nil,
			Judgement{Missing: []string{"a: list pods"}, Spare: []string{"watch pods"}}},
		{"what everybody may ask", nodes, request("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", "", "", 201),
			[]Excuse{{Resource: "nodes", Verbs: []string{"patch"}}}, Judgement{}},
		{"an excuse for what there is not", nodes, request("patch", "", "nodes", "", "", "n", 200),
			[]Excuse{{Resource: "nodes", Verbs: []string{"patch", "delete"}}}, Judgement{Stale: []string{"delete nodes"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Judge([]Holder{{Name: "a", Rights: []Right{c.right}, Requests: []lab.AuditEvent{c.request}}}, c.excuses)
			for what, lists := range map[string][2][]string{
				"missing": {got.Missing, c.want.Missing}, "refused": {got.Refused, c.want.Refused}, "spare": {got.Spare, c.want.Spare}, "stale": {got.Stale, c.want.Stale},
			} {
				if !slices.Equal(lists[0], lists[1]) {
					t.Errorf("%s: %q, want %q", what, lists[0], lists[1])
				}
			}
		})
	}
}

// What one installation uses is not spare, though another does not use it; its right does not serve another.
func TestInstallationsAreComparedEachWithItsOwnRights(t *testing.T) {
	right := func(namespace string) []Right {
		return []Right{{Namespace: namespace, Resource: "secrets", Verb: "list"}}
	}
	listed := request("list", "", "secrets", "", "pool-b", "", 200)
	got := Judge([]Holder{{Name: "a", Rights: right("pool-a")}, {Name: "b", Rights: right("pool-b"), Requests: []lab.AuditEvent{listed}}}, nil)
	if len(got.Missing)+len(got.Spare) > 0 {
		t.Errorf("%+v", got)
	}
	got = Judge([]Holder{{Name: "a", Rights: right("pool-a"), Requests: []lab.AuditEvent{listed}}, {Name: "b", Rights: right("pool-b")}}, nil)
	if len(got.Missing) != 1 || len(got.Spare) != 1 {
		t.Errorf("%+v", got)
	}
}

// H4: the chart gives no rights but single ones, by name, and every excuse is for one of them.
func TestTheChartsRightsAreSingleOnes(t *testing.T) {
	objects, err := chart.Render(t.Context(), chart.Release{Name: "kpssh", Namespace: "kp-a"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := Of(objects)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Right]bool{}
	for _, r := range all {
		if seen[r] {
			t.Errorf("%s is given twice", r)
		}
		seen[r] = true
		if slices.Contains([]string{r.Group, r.Resource, r.Verb}, "*") {
			t.Errorf("%s: name what is needed", r)
		}
	}
	for _, r := range all {
		listed := r
		listed.Verb = "list"
		if r.Verb == "watch" && !seen[listed] {
			t.Errorf("%s is of no use without the right to list, to older API servers", r)
		}
	}
	if len(all) < 60 {
		t.Errorf("only %d rights were found", len(all))
	}
	for _, stale := range Stale(all, InEndToEndTests) {
		t.Errorf("there is an excuse for %s, and no such right", stale)
	}
}
