// Command generate writes docs/metrics.md and the chart's dashboards below a directory: the repository, or an empty one to compare with it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kpssh/karpenter-provider-ssh/pkg/observability"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	table, err := observability.Table()
	if err != nil {
		return err
	}
	boards, err := observability.Dashboards()
	if err != nil {
		return err
	}
	files := map[string][]byte{filepath.Join("docs", "metrics.md"): []byte(table)}
	for name, content := range boards {
		files[filepath.Join("charts", "karpenter-provider-ssh", "files", "dashboards", name)] = content
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // what is generated is public
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}
