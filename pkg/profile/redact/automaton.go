package redact

// root is the state in which no pattern is under way.
const root int32 = 0

// automaton finds any of many patterns in one pass, in time that does not depend on how many there are (Aho-Corasick). Bytes in skip
// are passed over, and are no part of patterns: up to maxRun of them in a row.
type automaton struct {
	nodes  []node
	first  [256]int32
	skip   [256]bool
	maxRun int
}

// node is a prefix of patterns. Children are a list: nearly all nodes have one.
type node struct {
	child, sibling, fail int32
	// depth is the prefix's length in bytes.
	depth int32
	// match is the length of the longest pattern that ends here, 0 for none. Shorter ones hide no byte that it does not.
	match int32
	b     byte
}

func compile(patterns []string, skip string, maxRun int) *automaton {
	a := &automaton{nodes: make([]node, 1), maxRun: maxRun}
	for _, b := range []byte(skip) {
		a.skip[b] = true
	}
	for _, pattern := range patterns {
		at := root
		for _, b := range []byte(pattern) {
			at = a.grow(at, b)
		}
		a.nodes[at].match = a.nodes[at].depth
	}
	a.link()
	return a
}

func (a *automaton) grow(at int32, b byte) int32 {
	if child := a.childOf(at, b); child != root {
		return child
	}
	child := int32(len(a.nodes))
	a.nodes = append(a.nodes, node{b: b, depth: a.nodes[at].depth + 1, sibling: a.nodes[at].child})
	a.nodes[at].child = child
	if at == root {
		a.first[b] = child
	}
	return child
}

func (a *automaton) childOf(at int32, b byte) int32 {
	if at == root {
		return a.first[b]
	}
	for child := a.nodes[at].child; child != root; child = a.nodes[child].sibling {
		if a.nodes[child].b == b {
			return child
		}
	}
	return root
}

// link sets for each node where to go on when no child fits: the longest proper suffix that is a prefix too. Breadth first, for a
// node's link is less deep than the node.
func (a *automaton) link() {
	queue := []int32{root}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for child := a.nodes[at].child; child != root; child = a.nodes[child].sibling {
			if at != root {
				fail := a.next(a.nodes[at].fail, a.nodes[child].b)
				a.nodes[child].fail = fail
				a.nodes[child].match = max(a.nodes[child].match, a.nodes[fail].match)
			}
			queue = append(queue, child)
		}
	}
}

func (a *automaton) next(at int32, b byte) int32 {
	for {
		if child := a.childOf(at, b); child != root || at == root {
			return child
		}
		at = a.nodes[at].fail
	}
}
