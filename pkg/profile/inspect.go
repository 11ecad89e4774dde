package profile

import (
	"fmt"
	"reflect"
	"strings"
	"text/template"
	"text/template/parse"
)

// fieldNames are the names that templates may use.
var fieldNames = func() []string {
	var names []string
	for field := range reflect.TypeFor[fields]().Fields() {
		names = append(names, field.Name)
	}
	return names
}()

// inspect finds what would fail, or never end, only when the script is needed. It returns the problem, or nothing.
func inspect(parsed *template.Template, phase Phase) string {
	for _, each := range parsed.Templates() {
		if each.Tree == nil || each.Root == nil {
			continue
		}
		in := inspector{phase: phase, main: each.Name() == parsed.Name()}
		in.list(each.Root, in.main)
		if in.problem != "" {
			return in.problem
		}
	}
	return ""
}

// inspector walks one template. Whether a field is one of ours is known only where the dot is: at the top of the main template, and
// behind $ anywhere in it. Inside with, range and define the dot is something else.
type inspector struct {
	phase   Phase
	main    bool
	problem string
}

func (in *inspector) list(list *parse.ListNode, atTop bool) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		in.node(node, atTop)
	}
}

func (in *inspector) node(node parse.Node, atTop bool) {
	switch n := node.(type) {
	case *parse.ActionNode:
		in.pipe(n.Pipe, atTop)
	case *parse.TemplateNode:
		in.pipe(n.Pipe, atTop)
	case *parse.IfNode:
		in.pipe(n.Pipe, atTop)
		in.list(n.List, atTop)
		in.list(n.ElseList, atTop)
	case *parse.WithNode:
		in.pipe(n.Pipe, atTop)
		in.list(n.List, false)
		in.list(n.ElseList, atTop)
	case *parse.RangeNode:
		in.pipe(n.Pipe, atTop)
		in.counting(n.Pipe)
		in.list(n.List, false)
		in.list(n.ElseList, atTop)
	case *parse.PipeNode:
		in.pipe(n, atTop)
	case *parse.ChainNode:
		in.node(n.Node, atTop)
	case *parse.FieldNode:
		in.field(n.Ident[0], atTop)
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			in.field(n.Ident[1], true)
		}
	}
}

func (in *inspector) pipe(pipe *parse.PipeNode, atTop bool) {
	if pipe == nil {
		return
	}
	for _, command := range pipe.Cmds {
		for _, arg := range command.Args {
			in.node(arg, atTop)
		}
	}
}

func (in *inspector) field(name string, atTop bool) {
	known := false
	for _, field := range fieldNames {
		known = known || field == name
	}
	switch {
	case !known && atTop && in.main:
		in.found("there is no field .%s; there are .%s", name, strings.Join(fieldNames, " ."))
	case in.phase == Leave && (name == "Vars" || name == "Secrets"):
		// Even behind a condition: a leave that fails does so when nobody can help it any more.
		in.found("leave must not use .%s: it runs when class and Secrets are gone; have install or join write what it needs to a file", name)
	}
}

// counting refuses a range over a number: `range 1000000000000` would render until the end of time.
func (in *inspector) counting(pipe *parse.PipeNode) {
	for _, command := range pipe.Cmds {
		for _, arg := range command.Args {
			if _, number := arg.(*parse.NumberNode); number {
				in.found("range over a number; loop in bash instead")
			}
		}
	}
}

func (in *inspector) found(format string, args ...any) {
	if in.problem == "" {
		in.problem = fmt.Sprintf(format, args...)
	}
}
