// Package shim holds kpssh-shim, the program that stands on machines in Verified mode: it checks what the controller sends before anything
// of it runs. The program is one file of POSIX shell, made by `make generate`; this package only gives it to tests and tools. How it is
// installed and what it answers: docs/verified.md.
package shim

import _ "embed"

// Script is the program's text.
//
//go:embed kpssh-shim
var Script string
