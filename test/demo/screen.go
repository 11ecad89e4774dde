package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

// screen shows snapshots: a table that is redrawn in place on a terminal, else a line for every change.
type screen struct {
	out   io.Writer
	live  bool
	width func() int
	begin time.Time
	drawn int // lines of the table on the terminal
	last  *snapshot
}

func newScreen(out *os.File, begin time.Time) *screen {
	fd := int(out.Fd())
	return &screen{out: out, live: term.IsTerminal(fd), begin: begin, width: func() int {
		width, _, err := term.GetSize(fd)
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}}
}

// say prints a line that stays.
func (c *screen) say(format string, args ...any) {
	c.erase()
	fmt.Fprintf(c.out, "%7.1fs  %s\n", time.Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (c *screen) show(s *snapshot) {
	defer func() { c.last = s }()
	if c.live {
		table := cut(table(s, s.at.Sub(c.begin)), c.width())
		// In one write, or it flickers.
		fmt.Fprint(c.out, c.eraser(), table)
		c.drawn = strings.Count(table, "\n")
		return
	}
	for _, line := range changes(c.last, s) {
		fmt.Fprintf(c.out, "%7.1fs    %s\n", s.at.Sub(c.begin).Seconds(), line)
	}
}

// erase takes the table off the terminal.
func (c *screen) erase() {
	fmt.Fprint(c.out, c.eraser())
	c.drawn = 0
}

// eraser moves up to where the table began and clears the rest of the screen.
func (c *screen) eraser() string {
	if c.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", c.drawn)
}

// cut shortens lines: one that wraps would make the table higher than it knows.
func cut(table string, width int) string {
	lines := strings.Split(table, "\n")
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			lines[i] = string(runes[:width])
		}
	}
	return strings.Join(lines, "\n")
}

func table(s *snapshot, elapsed time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%.1fs   pods: %d running, %d pending   nodes: %d   NodeClaims: %d\n", elapsed.Seconds(), s.running, s.pending, s.nodes, s.claims)
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "HOST\tSTATE\tNOW\tNODECLAIM\t\tNODE\tPODS")
	for _, h := range s.hosts {
		pods := ""
		if h.pods > 0 {
			pods = fmt.Sprintf("%d/%d", h.running, h.pods)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.name, h.state, h.operation, h.claim, h.claimStep, h.node, pods)
	}
	_ = w.Flush() // into memory
	return b.String()
}

// changes are lines for what differs.
func changes(before, after *snapshot) []string {
	if before == nil {
		before = &snapshot{}
	}
	was := map[string]host{}
	for _, h := range before.hosts {
		was[h.name] = h
	}
	var lines []string
	step := func(name, what, from, to string) {
		if from == to {
			return
		}
		if from == "" {
			from = "-"
		}
		if to == "" {
			to = "-"
		}
		lines = append(lines, fmt.Sprintf("%-6s %-9s %s → %s", name, what, from, to))
	}
	for _, h := range after.hosts {
		old := was[h.name]
		step(h.name, "host", old.state, h.state)
		step(h.name, "does", old.operation, h.operation)
		step(h.name, "nodeclaim", strings.TrimSpace(old.claim+" "+old.claimStep), strings.TrimSpace(h.claim+" "+h.claimStep))
		step(h.name, "node", old.node, h.node)
		if old.running != h.running || old.pods != h.pods {
			step(h.name, "pods", fmt.Sprintf("%d/%d", old.running, old.pods), fmt.Sprintf("%d/%d", h.running, h.pods))
		}
		if h.trouble != old.trouble && h.trouble != "" {
			lines = append(lines, fmt.Sprintf("%-6s trouble   %s", h.name, h.trouble))
		}
	}
	return lines
}
